package na

import (
	"fmt"
	"slices"
)

// A panic in this library while it handles bytes from a peer is recovered. If no lock is held, the
// poller or endpoint.Rescue recovers, and only the peer's connection is closed. If the endpoint is
// locked, endpoint.UnlockInput recovers and closes the endpoint, because its state may be
// inconsistent.
//
// In both cases the process continues, and the panic is logged and counted. Code that handles
// received bytes must therefore unlock with a deferred UnlockInput. If it unlocks in between, it
// must lock again with a deferred Lock, so that the deferred UnlockInput can rely on the lock being
// held.

// UnlockInput is like Unlock, for code that handles bytes from a peer. If that code has panicked,
// UnlockInput recovers and shuts down e. It must be called directly by a defer statement.
func (e *endpoint) UnlockInput() { e.UnlockAfter(recover()) }

// UnlockAfter is like UnlockInput, for deferred functions that must first determine which endpoint
// is locked. v is the result of recover in that function.
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
	e.breakDownLocked(p)
	e.mu.Unlock()
	e.nctx.reportPanic(p)
}

// trySend calls sendDueLocked and returns its result. If sendDueLocked panics, trySend recovers and
// returns the panic value as v.
func (e *endpoint) trySend() (flush bool, v any) {
	defer func() { v = recover() }()
	return e.sendDueLocked(), nil
}

// Rescue recovers from a panic in code that handles bytes from a peer without holding a lock, calls
// cut, and reports the panic. It must be called directly by a defer statement. cut must close the
// peer's connection.
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

// breakDownLocked shuts down e after the panic p. All current and later operations fail with an
// error that wraps p, all sessions are closed, and no more peers are admitted. Because the state of
// e may be inconsistent, any step may panic again. Such panics are ignored, and the following steps
// are still taken.
func (e *endpoint) breakDownLocked(p *libraryPanic) {
	if e.broken != nil {
		return
	}
	err := fmt.Errorf("context terminated: %w", p)
	e.broken, e.shut = err, true
	e.freeEnvs = nil
	for i := range e.routes {
		tryCall(e.routes[i].carrier.Shut)
	}
	for _, l := range e.sessions {
		tryCall(func() {
			l.close(err, ErrPeerLost, "the peer's context was terminated by an internal panic", false)
		})
	}
	// The remaining operations have no session, or were not completed when their session was closed.
	for _, o := range slices.Clone(e.ops) {
		tryCall(func() { e.dropOpLocked(o, err) })
	}
	tryCall(func() {
		for env := e.takeEnvelope(); env != nil; env = e.takeEnvelope() {
			e.acceptMessage(env)
		}
		e.countArrived()
	})
	tryCall(e.flushPendingLocked)
	e.pending = nil
	e.timer.Store(0)
	e.due.Store(0)
	e.nctx.breakBy(err)
}

// tryCall calls f and recovers any panic.
func tryCall(f func()) {
	defer func() { _ = recover() }()
	f()
}

// dropOpLocked completes o with err. It does not remove o from the endpoint's tables, which may be
// inconsistent.
func (e *endpoint) dropOpLocked(o *Op, err error) {
	stop := o.lookupStop()
	if x := o.x; x != nil {
		if x.source != nil {
			x.source.dead, x.source.op = true, nil
		}
		if x.sink != nil {
			x.sink.dead, x.sink.op = true, nil
		}
	}
	e.finishDetachedLocked(o, Result{Err: err, Fate: MaybeRan})
	if stop != nil {
		stop()
	}
}

// closedErrLocked returns the error with which operations fail that start after e has been shut
// down: the error of the panic that broke e, or ErrClosed.
func (e *endpoint) closedErrLocked() error {
	if e.broken != nil {
		return e.broken
	}
	return ErrClosed
}
