package na

import (
	"fmt"
	"slices"
)

// A panic of this library while it handles bytes from a peer is recovered:
//
//	no lock is held           poller, or endpoint.Rescue ─► the connection is closed
//	the endpoint is locked    endpoint.UnlockInput          ─► the endpoint is closed, because its state may be inconsistent
//
// In both cases the process continues, and the panic is logged and counted. Code that handles
// received bytes must therefore unlock with a deferred UnlockInput. If it unlocks in between, it
// must lock again with a deferred Lock, so that the deferred UnlockInput can rely on the lock being
// held.

// UnlockInput unlocks e like Unlock, for code that handles bytes from a peer. It recovers a panic,
// which breaks e, and must therefore be deferred directly.
func (e *endpoint) UnlockInput() { e.UnlockAfter(recover()) }

// UnlockAfter is like UnlockInput, for a deferred function that first has to determine which
// endpoint is locked. v is the result of recover.
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

// trySend calls sendDueLocked and returns the value of any recovered panic.
func (e *endpoint) trySend() (flush bool, v any) {
	defer func() { v = recover() }()
	return e.sendDueLocked(), nil
}

// Rescue recovers a panic in code that handles bytes from a peer without holding a lock. It must be
// deferred directly. cut must close the connection.
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

// breakDownLocked shuts down e after a panic. All current and future operations fail with the
// error, all sessions are closed, and no more peers are admitted. Because the state of e may be
// inconsistent, any step may panic again, and no step relies on the preceding ones.
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
	// These are operations without a session and those that closing the sessions did not complete.
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

// dropOpLocked completes an operation without removing it from tables, which may be inconsistent.
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

// closedErrLocked returns the error for operations that start after e has been shut down.
func (e *endpoint) closedErrLocked() error {
	if e.broken != nil {
		return e.broken
	}
	return ErrClosed
}
