package na

import (
	"fmt"
	"slices"
)

// What happens to a panic of this library itself while it handles what a peer has sent:
//
//	no lock is held           Poller, or endpoint.Rescue ─► the connection is cut
//	the endpoint is locked    endpoint.UnlockInput          ─► the endpoint breaks: what the lock guards may be half changed
//
// The process lives in both cases, and the panic is logged and counted. Code that handles what has come therefore returns the lock by
// a deferred UnlockInput, and where it gives the lock up for a while it takes it back by a deferred Lock: so who recovers knows
// whether the lock is held.

// UnlockInput is Unlock, for who handles what a peer has sent. It is deferred, and nothing else: a panic ends in it, and breaks e.
func (e *endpoint) UnlockInput() { e.UnlockAfter(recover()) }

// UnlockAfter is UnlockInput for a deferred function that finds out first which endpoint is locked: v is what recover has returned.
func (e *endpoint) UnlockAfter(v any) {
	flush := false
	if v == nil {
		flush, v = e.trySend()
	}
	if v == nil {
		e.unlockSoon(flush)
		return
	}
	p := caughtPanic(v)
	e.breakDown(p)
	e.mu.Unlock()
	e.nctx.reportPanic(p)
}

// trySend is sendDue, and returns what it has panicked with.
func (e *endpoint) trySend() (flush bool, v any) {
	defer func() { v = recover() }()
	return e.sendDue(), nil
}

// Rescue ends a panic of a goroutine that handles what a peer has sent, with no lock held. It is deferred. cut ends the connection, and
// nothing else.
func (e *endpoint) Rescue(cut func(err error)) {
	if v := recover(); v != nil {
		p := caughtPanic(v)
		cut(p)
		e.nctx.reportPanic(p)
	}
}

// Rescue implements carrier.Class.
func (d *domain) Rescue(cut func(err error)) {
	if v := recover(); v != nil {
		p := caughtPanic(v)
		cut(p)
		if e := d.endpointOf(0); e != nil {
			e.nctx.reportPanic(p)
		}
	}
}

// breakDown ends e because of err: every operation gets it, now or when it begins, every session is cut, and nobody is let in any more.
// What e holds may be half changed, so each step may panic again, and none relies on the one before. Locked.
func (e *endpoint) breakDown(p *libraryPanic) {
	if e.broken != nil {
		return
	}
	err := fmt.Errorf("the context has ended by %w", p)
	e.broken, e.shut = err, true
	e.freeEnvs = nil
	for i := range e.routes {
		tryCall(e.routes[i].carrier.Shut)
	}
	for _, l := range e.sessions {
		tryCall(func() {
			l.close(err, ErrPeerLost, "the process has ended the context: a defect of Quicksilver there", false)
		})
	}
	for _, o := range slices.Clone(e.ops) { // those of no session, and what is left
		tryCall(func() { e.dropOp(o, err) })
	}
	tryCall(func() {
		for env := e.takeEnvelope(); env != nil; env = e.takeEnvelope() {
			e.acceptMessage(env)
		}
		e.countArrived()
	})
	tryCall(e.flushPending)
	e.pending = nil
	e.timer.Store(0)
	e.due.Store(0)
	e.nctx.breakBy(err)
}

// tryCall calls f, of which nothing is expected any more.
func tryCall(f func()) {
	defer func() { _ = recover() }()
	f()
}

// dropOp ends an operation that is in whatever tables it may be. Locked.
func (e *endpoint) dropOp(o *Op, err error) {
	stop := o.lookupStop()
	if x := o.x; x != nil {
		if x.source != nil {
			x.source.dead, x.source.op = true, nil
		}
		if x.sink != nil {
			x.sink.dead, x.sink.op = true, nil
		}
	}
	e.finishDetached(o, Result{Err: err, Fate: MaybeRan})
	if stop != nil {
		stop()
	}
}

// closedErr is why no operation begins any more. Locked.
func (e *endpoint) closedErr() error {
	if e.broken != nil {
		return e.broken
	}
	return ErrClosed
}
