package na

import (
	"fmt"
	"slices"
)

// A panic of this library while it handles bytes of a peer is recovered:
//
//	no lock is held           poller, or endpoint.Rescue ─► the connection ends
//	the endpoint is locked    endpoint.UnlockInput          ─► the endpoint ends, because its state may be inconsistent
//
// The process goes on in both cases, and the panic is logged and counted. Therefore code that
// handles received bytes unlocks by a deferred UnlockInput, and if it unlocks in between, it locks
// again by a deferred Lock: so the deferred function knows whether the lock is held.

// UnlockInput unlocks e as Unlock does, for code that handles bytes of a peer. It must be called by
// defer, directly: it recovers a panic, which ends e.
func (e *endpoint) UnlockInput() { e.UnlockAfter(recover()) }

// UnlockAfter is UnlockInput for a deferred function that first has to determine which endpoint is
// locked. v is the result of recover.
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

// trySend calls sendDueLocked and returns the value of a recovered panic.
func (e *endpoint) trySend() (flush bool, v any) {
	defer func() { v = recover() }()
	return e.sendDueLocked(), nil
}

// Rescue recovers a panic of code that handles bytes of a peer without a lock. It must be called by
// defer, directly. cut ends the connection.
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

// breakDownLocked ends e after a panic: every operation ends with the error, now or when it starts,
// every session ends, and no peer is admitted any more. The state of e may be inconsistent, so each
// step may panic again, and none relies on those before.
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
	// those without a session, and those that closing the sessions has not ended
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

// tryCall calls f and ignores a panic in it.
func tryCall(f func()) {
	defer func() { _ = recover() }()
	f()
}

// dropOpLocked ends an operation without removing it from tables, which may be inconsistent.
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

// closedErrLocked returns the error of operations that start after e was shut.
func (e *endpoint) closedErrLocked() error {
	if e.broken != nil {
		return e.broken
	}
	return ErrClosed
}
