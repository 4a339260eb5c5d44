package qs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An exchange is one attempt of a call, from the choice of an address to the end of what was lent.
//
//	begin ─► h is ready ─► hg.Handle.Call ─► take ─► finish
//	  └─ fails ──────────────────────────────────────►┘
type exchange struct {
	o       *outgoingCall
	c       *Call
	ctx     context.Context
	attempt *attempt // nil until it has begun
	h       *hg.Handle
	in      any
	loans   *loanSet // nil if nothing is lent, and there is no stream

	lease        backendLease
	hasLease     bool        // trip has begun
	unwatch      func() bool // ends the watch of the caller's context; nil if there is none
	streamsBegun bool        // an attempt of the streams of items has begun
	hasStreams   bool        // h has streams
	hasMeta      bool        // h has metadata
	callEnded    bool        // the call of h has ended
}

// prepareHandle makes everything ready for the call of h.
func (x *exchange) prepareHandle(ctx context.Context, s *callScope) (err error) {
	o, c := x.o, x.c
	x.ctx = ctx
	if c.Peer.p == nil {
		return errNoPeer(o.m.name)
	}
	if x.attempt, err = o.addAttempt(s, c.Attempt); err != nil {
		return err
	}
	if ctx.Done() != o.callerCtx.Done() { // an interceptor's own, which may go on when the caller's has ended
		x.unwatch = context.AfterFunc(o.callerCtx, func() { o.stopAttempts((*hg.Handle).Abandon) })
		if o.callerCtx.Err() != nil {
			x.ctx = o.callerCtx // nothing is sent
		}
	}
	p := c.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	if err := o.checkWhole(); err != nil {
		return err
	}
	if x.lease, err = p.acquireAddr(c); err != nil {
		return err
	}
	x.hasLease = true
	to := x.lease.at.addr
	meta := c.Metadata.WithoutOwn()
	x.in = c.In
	if o.streams != nil {
		if err = o.streams.beginAttempt(); err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		x.streamsBegun = true
	}
	if len(o.m.fields) > 0 || o.streams != nil {
		x.loans = &loanSet{n: n, hctx: n.contexts[p.i], m: o.m, streams: o.streams}
		if x.in, err = x.loans.lendInput(c.In); err == nil {
			meta, err = x.loans.requestMeta(meta)
		}
		if err != nil {
			if _, coded := errors.AsType[hg.Code](err); !coded {
				err = fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		x.attempt.loans = x.loans
		p.addLent(&x.lease, x.loans.lentBytes())
	}
	if x.h, err = n.takeHandle(p.i, to, id); err != nil {
		return err
	}
	if err = x.setMetaAndStreams(meta); err != nil {
		x.returnHandle()
	}
	return err
}

// setMetaAndStreams sets what the call of h has beside its input.
func (x *exchange) setMetaAndStreams(meta hg.Metadata) (err error) {
	o, h := x.o, x.h
	if x.hasMeta = !meta.IsZero(); x.hasMeta {
		if err = h.SetMeta(meta); err != nil {
			return err
		}
	}
	if l := x.loans; l != nil && len(l.streamSpecs()) > 0 {
		x.hasStreams = true
		hghook.OnCall(h, func() { l.bindStreams(h) })
		if err = h.SetStreams(l.streamSpecs()...); err != nil {
			return err
		}
	}
	if x.loans != nil {
		hghook.ReportCall(h, x.loans)
	}
	return o.beginForward(x.attempt, h, x.c.progressTimeout, x.c.withdrawTimeout)
}

// takeAnswer takes the answer of the call of h, which has ended with err.
func (x *exchange) takeAnswer(ctx context.Context, err error) error {
	o, h := x.o, x.h
	if err == nil && x.loans != nil {
		err = x.loans.finishPumps(ctx, x.c.Peer.p.i, h.Peer())
	}
	fate := FateOf(err)
	if err == nil && o.m.oneWay {
		fate = MaybeRan // it has left
	}
	stalled := o.hasStalled(x.attempt)
	o.recordOutcome(x.attempt, fate)
	if err == nil {
		err = o.decodeAnswer(x.c, h)
		if stalled && x.streamsBegun {
			o.streams.setResetReason(errStalled(x.c.progressTimeout))
		}
	} else if e, ok := err.(*hg.Error); ok && stalled && ctx.Err() == nil && hg.CodeOf(err) == hg.ErrCanceled {
		late := *e
		late.Err = errStalled(x.c.progressTimeout)
		err = &late
	}
	if x.hasStreams {
		x.loans.takeStreams(h, err)
	}
	if x.loans != nil || x.c != &o.Call { // an interceptor looks at it
		answer := h.OutputMeta()
		if x.c.ResponseMetadata = answer.WithoutOwn(); x.loans != nil && err == nil {
			err = x.loans.takeAnswer(answer)
		}
	}
	x.returnHandle()
	return err
}

// errStalled is the error of an attempt that was given up.
func errStalled(stall time.Duration) error {
	return na.WithText(hg.ErrTimeout, fmt.Sprintf("no answer and no byte for %v (RetryPolicy.ProgressTimeout)", stall))
}

// returnHandle gives h back, whose call has ended, or has not begun.
func (x *exchange) returnHandle() {
	if x.hasMeta {
		_ = x.h.SetMeta(hg.Metadata{}) // of the next call
	}
	if x.loans != nil {
		hghook.ReportCall(x.h, nil)
	}
	if x.hasStreams {
		hghook.OnCall(x.h, nil)
		hghook.OnEnd(x.h, nil)
		_ = x.h.SetStreams()
	}
	x.callEnded = true
	p := x.c.Peer.p
	p.n.keepHandle(p.i, x.h)
}

// finish ends x, with *err.
func (x *exchange) finish(err *error) {
	if x.attempt == nil {
		return
	}
	defer func() {
		if x.unwatch != nil {
			x.unwatch()
		}
		if x.o.removeAttempt(x.attempt) {
			x.o.home.n.contexts[x.o.home.i].Wake()
		}
	}()
	p := x.c.Peer.p
	if x.hasLease {
		defer func() { p.finishAttempt(x.lease, *err) }()
	}
	if x.streamsBegun {
		defer x.o.streams.failAttempt()
	}
	if x.loans != nil {
		defer func() { *err = x.loans.takeBack(x.o, x.c, *err) }()
	}
	if x.h != nil && !x.callEnded {
		fate := NotRun // the encoder has panicked, or ended the goroutine,
		if hghook.HasForwarded(x.h) {
			fate = MaybeRan // or a callback of somebody else in the wait
		}
		x.o.recordOutcome(x.attempt, fate)
		_ = x.h.Close()
	}
}
