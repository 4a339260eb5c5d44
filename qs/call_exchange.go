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

// An exchange is one attempt of a call, from the choice of a backend to the release of lent memory,
// files and streams. prepareHandle must be called first. If it succeeds, the handle's Call and
// takeAnswer follow. finish must be called last, even if an earlier step failed.
type exchange struct {
	o       *outgoingCall
	c       *Call // the Call of the innermost interceptor
	ctx     context.Context
	attempt *attempt // nil until the attempt has started
	h       *hg.Handle
	in      any      // value that h encodes: c.In, or a copy of it with tickets
	loans   *loanSet // nil if nothing is lent and there are no streams

	lease        backendLease // valid if hasLease
	hasLease     bool         // lease is valid
	unwatch      func() bool  // stops watching the caller's context; nil if it is not watched
	streamsBegun bool         // callStreams.beginAttempt has been called
	hasStreams   bool         // h has streams and callbacks, which must be removed before h is reused
	hasMeta      bool         // h has metadata, which must be cleared before h is reused
	callEnded    bool         // the call of h has completed, and h has been returned to the cache
}

// prepareHandle starts an attempt in s: it chooses a backend, lends the memory, files and streams
// of the input, and sets up a handle for the call.
func (x *exchange) prepareHandle(ctx context.Context, s *callScope) (err error) {
	o, c := x.o, x.c
	x.ctx = ctx
	if c.Peer.p == nil {
		return errNoPeer(o.m.name)
	}
	if x.attempt, err = o.addAttempt(s, c.Attempt); err != nil {
		return err
	}
	// An interceptor may have passed a context that outlives the caller's, for example one made by
	// context.WithoutCancel.
	if ctx.Done() != o.callerCtx.Done() {
		x.unwatch = context.AfterFunc(o.callerCtx, func() { o.stopAttempts((*hg.Handle).Abandon) })
		if o.callerCtx.Err() != nil {
			x.ctx = o.callerCtx // already done, so that nothing is sent
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
	to := x.lease.backend.addr
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

// setMetaAndStreams sets the metadata and the streams of h, and attaches h to the call's
// attemptControl. It fails if the call has been canceled.
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

// takeAnswer completes the attempt after the handle's Call has returned err. It finishes the pumps,
// records the fate, decodes the response, and returns h to the cache.
func (x *exchange) takeAnswer(ctx context.Context, err error) error {
	o, h := x.o, x.h
	if err == nil && x.loans != nil {
		err = x.loans.finishPumps(ctx, x.c.Peer.p.i, h.Peer())
	}
	fate := FateOf(err)
	if err == nil && o.m.oneWay {
		fate = MaybeRan // a one-way request was sent, but nothing confirms that it ran
	}
	stalled := o.hasStalled(x.attempt)
	o.recordOutcome(x.attempt, fate)
	if err == nil {
		err = o.decodeAnswer(x.c, h)
		if stalled && x.streamsBegun {
			o.streams.setResetReason(errStalled(x.c.progressTimeout))
		}
	} else if e, ok := err.(*hg.Error); ok && stalled && ctx.Err() == nil &&
		hg.CodeOf(err) == hg.ErrCanceled {
		late := *e
		late.Err = errStalled(x.c.progressTimeout)
		err = &late
	}
	if x.hasStreams {
		x.loans.takeStreams(h, err)
	}
	if x.loans != nil || x.c != &o.Call { // without an interceptor, ResponseMetadata is never read
		answer := h.OutputMeta()
		if x.c.ResponseMetadata = answer.WithoutOwn(); x.loans != nil && err == nil {
			err = x.loans.takeAnswer(answer)
		}
	}
	x.returnHandle()
	return err
}

// errStalled returns the error for an attempt that was canceled for lack of progress.
func errStalled(stall time.Duration) error {
	return na.WithText(hg.ErrTimeout,
		fmt.Sprintf("no response and no data for %v (RetryPolicy.ProgressTimeout)", stall))
}

// returnHandle clears the settings of this call from h and returns h to the handle cache. The call
// of h must not be in flight.
func (x *exchange) returnHandle() {
	if x.hasMeta {
		_ = x.h.SetMeta(hg.Metadata{}) // the next call sets its own metadata
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

// finish releases everything that prepareHandle acquired. *err is the error of the attempt, which
// finish may replace. finish must be deferred, because a codec may panic or call runtime.Goexit.
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
		fate := NotRun // the encoder panicked or called runtime.Goexit before anything was sent
		if hghook.HasForwarded(x.h) {
			fate = MaybeRan // another callback panicked or called runtime.Goexit while the call waited
		}
		x.o.recordOutcome(x.attempt, fate)
		_ = x.h.Close()
	}
}
