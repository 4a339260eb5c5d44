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
	o   *outgoingCall
	c   *Call
	ctx context.Context
	a   *attempt // nil until it has begun
	h   *hg.Handle
	in  any
	l   *loanSet // nil if nothing is lent, and there is no stream

	trip     backendAttempt
	traveled bool        // trip has begun
	unwatch  func() bool // ends the watch of the caller's context; nil if there is none
	streams  bool        // an attempt of the streams of items has begun
	bound    bool        // h has streams
	said     bool        // h has metadata
	over     bool        // the call of h has ended
}

// prepareHandle makes everything ready for the call of h.
func (x *exchange) prepareHandle(ctx context.Context, s *callScope) (err error) {
	o, c := x.o, x.c
	x.ctx = ctx
	if c.Peer.p == nil {
		return noPeer(o.m.name)
	}
	if x.a, err = o.addAttempt(s, c.Attempt); err != nil {
		return err
	}
	if ctx.Done() != o.caller.Done() { // an interceptor's own, which may go on when the caller's has ended
		x.unwatch = context.AfterFunc(o.caller, func() { o.stopAttempts((*hg.Handle).Abandon) })
		if o.caller.Err() != nil {
			x.ctx = o.caller // nothing is sent
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
	if x.trip, err = p.acquireAddr(c); err != nil {
		return err
	}
	x.traveled = true
	to := x.trip.at.addr
	meta := c.Metadata.WithoutOwn()
	x.in = c.In
	if o.streams != nil {
		if err = o.streams.beginAttempt(); err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		x.streams = true
	}
	if len(o.m.fields) > 0 || o.streams != nil {
		x.l = &loanSet{n: n, hctx: n.all[p.i], m: o.m, streams: o.streams}
		if x.in, err = x.l.lendInput(c.In); err == nil {
			meta, err = x.l.requestMeta(meta)
		}
		if err != nil {
			if _, coded := errors.AsType[hg.Code](err); !coded {
				err = fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		x.a.loans = x.l
		p.addLent(&x.trip, x.l.lentBytes())
	}
	if x.h, err = n.takeHandle(p.i, to, id); err != nil {
		return err
	}
	if err = x.setBesideInput(meta); err != nil {
		x.returnHandle()
	}
	return err
}

// setBesideInput sets what the call of h has beside its input.
func (x *exchange) setBesideInput(meta hg.Metadata) (err error) {
	o, h := x.o, x.h
	if x.said = !meta.IsZero(); x.said {
		if err = h.SetMeta(meta); err != nil {
			return err
		}
	}
	if l := x.l; l != nil && len(l.streamSpecs()) > 0 {
		x.bound = true
		hghook.OnCall(h, func() { l.bindStreams(h) })
		if err = h.SetStreams(l.streamSpecs()...); err != nil {
			return err
		}
	}
	if x.l != nil {
		hghook.ReportCall(h, x.l)
	}
	return o.beginForward(x.a, h, x.c.stall, x.c.withdraw)
}

// takeAnswer takes the answer of the call of h, which has ended with err.
func (x *exchange) takeAnswer(ctx context.Context, err error) error {
	o, h := x.o, x.h
	if err == nil && x.l != nil {
		err = x.l.finishPumps(ctx, x.c.Peer.p.i, h.Peer())
	}
	fate := FateOf(err)
	if err == nil && o.m.oneWay {
		fate = MaybeRan // it has left
	}
	stalled := o.stalledOut(x.a)
	o.recordOutcome(x.a, fate)
	if err == nil {
		err = o.decodeAnswer(x.c, h)
		if stalled && x.streams {
			o.streams.giveUp(stalledAfter(x.c.stall))
		}
	} else if e, ok := err.(*hg.Error); ok && stalled && ctx.Err() == nil && hg.CodeOf(err) == hg.ErrCanceled {
		late := *e
		late.Err = stalledAfter(x.c.stall)
		err = &late
	}
	if x.bound {
		x.l.takeStreams(h, err)
	}
	if x.l != nil || x.c != &o.Call { // an interceptor looks at it
		answer := h.OutputMeta()
		if x.c.ResponseMetadata = answer.WithoutOwn(); x.l != nil && err == nil {
			err = x.l.takeAnswer(answer)
		}
	}
	x.returnHandle()
	return err
}

// stalledAfter is the error of an attempt that was given up.
func stalledAfter(stall time.Duration) error {
	return na.WithText(hg.ErrTimeout, fmt.Sprintf("no answer and no byte for %v (RetryPolicy.ProgressTimeout)", stall))
}

// returnHandle gives h back, whose call has ended, or has not begun.
func (x *exchange) returnHandle() {
	if x.said {
		_ = x.h.SetMeta(hg.Metadata{}) // of the next call
	}
	if x.l != nil {
		hghook.ReportCall(x.h, nil)
	}
	if x.bound {
		hghook.OnCall(x.h, nil)
		hghook.OnEnd(x.h, nil)
		_ = x.h.SetStreams()
	}
	x.over = true
	p := x.c.Peer.p
	p.n.keepHandle(p.i, x.h)
}

// finish ends x, with *err.
func (x *exchange) finish(err *error) {
	if x.a == nil {
		return
	}
	defer func() {
		if x.unwatch != nil {
			x.unwatch()
		}
		if x.o.removeAttempt(x.a) {
			x.o.home.n.all[x.o.home.i].Wake()
		}
	}()
	p := x.c.Peer.p
	if x.traveled {
		defer func() { p.finishAttempt(x.trip, *err) }()
	}
	if x.streams {
		defer x.o.streams.failAttempt()
	}
	if x.l != nil {
		defer func() { *err = x.l.takeBack(x.o, x.c, *err) }()
	}
	if x.h != nil && !x.over {
		fate := NotRun // the encoder has panicked, or ended the goroutine,
		if hghook.HasForwarded(x.h) {
			fate = MaybeRan // or a callback of somebody else in the wait
		}
		x.o.recordOutcome(x.a, fate)
		_ = x.h.Close()
	}
}
