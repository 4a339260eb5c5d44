package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A route is a transport of the class, with the endpoint's carrier for it. The first route is that
// of the class's own transport.
type route struct {
	*network
	carrier carrier.Carrier
	stager  carrier.Stager  // the carrier, if it implements that; otherwise nil
	reacher carrier.Reacher // the carrier, if it implements that; otherwise nil
}

// routeOf returns the route of a carrier.
func (e *endpoint) routeOf(c carrier.Carrier) *route {
	for i := range e.routes {
		if e.routes[i].carrier == c {
			return &e.routes[i]
		}
	}
	panic(fmt.Sprintf("na: a peer is admitted by %T, which is no carrier of the context", c))
}

// markPending makes Unlock send the frames of l.
func (l *session) markPending() {
	if !l.pending && l.state != stateDown {
		l.makeBusy()
		l.pending = true
		l.e.pending = append(l.e.pending, l)
		l.e.hasPending.Store(true)
	}
}

// Lock locks the endpoint. Carriers call session methods under this lock.
func (e *endpoint) Lock() { e.mu.Lock() }

// Unlock sends queued frames, unless they are held back (Cork), and unlocks the endpoint. It may
// release the lock while it sends, so the state must be consistent before.
func (e *endpoint) Unlock() { e.unlockSoon(e.sendDueLocked()) }

// sendDueLocked sends queued frames, unless they are held back. first reports whether frames are
// now held back and none were before, so that the caller must schedule a flush. It may release the
// lock while it sends.
func (e *endpoint) sendDueLocked() (first bool) {
	if len(e.pending) == 0 {
		return false
	}
	if e.unlocks++; e.nctx.corks.Load() == 0 || e.unlocks == e.pending[len(e.pending)-1].(*session).route.FlushEvery {
		e.flushPendingLocked()
		return false
	}
	return e.unlocks == 1
}

// unlockSoon unlocks the endpoint. If flush is true it schedules a flush of the frames that are
// held back.
func (e *endpoint) unlockSoon(flush bool) {
	e.unlock()
	if flush {
		e.nctx.flushSoon()
	}
}

// unlock unlocks the endpoint, and then moves the frames of loopback sessions.
func (e *endpoint) unlock() {
	e.mu.Unlock()
	if e.dom.self.pending.Load() {
		e.dom.self.drainTodo()
	}
}

// Pause unlocks the endpoint for a system call or a copy, and sends nothing. Lock follows.
func (e *endpoint) Pause() { e.mu.Unlock() }

// flushPendingLocked makes the carriers send queued frames. It may release the lock while it sends.
func (e *endpoint) flushPendingLocked() {
	for len(e.pending) > 0 {
		e.unlocks = 0
		batch := e.pending
		e.pending, e.flushing = e.flushing[:0], nil
		for _, l := range batch {
			l.(*session).pending = false
		}
		for i, j := 0, 1; i < len(batch); i, j = j, j+1 {
			for j < len(batch) && batch[j].(*session).route == batch[i].(*session).route {
				j++
			}
			batch[i].(*session).route.carrier.Flush(batch[i:j])
		}
		clear(batch)
		e.flushing = batch[:0]
	}
	e.hasPending.Store(false)
}

// flushHeld sends the frames that are held back.
func (e *endpoint) flushHeld() {
	e.mu.Lock()
	e.flushPendingLocked()
	e.unlock()
}

// Held reports whether frames wait for Uncork or Flush.
func (e *endpoint) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pending) > 0
}

// Poll runs timers that have expired, polls the carriers, and sends frames that are held back,
// without blocking. It returns when to call it again even if nothing arrives; 0 is never. PollSoon
// makes that earlier. Only the leader calls it.
func (e *endpoint) Poll(now time.Duration) time.Duration {
	if at := e.timer.Load(); at != 0 && int64(now) >= at {
		e.nctx.receiveAll() // so that a peer is not declared lost while its frames wait to be read
		e.mu.Lock()
		e.now = now
		e.tick(now)
		e.mu.Unlock()
	}
	if at := e.due.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.expireLocked(now)
		e.mu.Unlock()
	}
	if at := e.heldDue.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.now = now
		e.reportHeldLocked(now)
		e.mu.Unlock()
	}
	next := time.Duration(0)
	for i := range e.routes {
		next = earlierOf(next, e.pollCarrier(i, now))
	}
	if e.hasPending.Load() || e.dom.self.pending.Load() {
		e.flushHeld()
	}
	if e.dom.self.rest.Load() {
		e.dom.self.drainTodo()
	}
	return earlierOf(next, e.Next())
}

// pollCarrier polls a carrier. It recovers a panic if the endpoint is broken.
func (e *endpoint) pollCarrier(i int, now time.Duration) (next time.Duration) {
	if e.nctx.isBroken() {
		defer e.Rescue(func(error) {})
	}
	return e.routes[i].carrier.Poll(now)
}

// Next returns when the next timer of the endpoint expires; 0 is never.
func (e *endpoint) Next() time.Duration {
	if e.dom.self.pending.Load() || e.dom.self.rest.Load() {
		return 1
	}
	return earlierOf(earlierOf(time.Duration(e.timer.Load()), time.Duration(e.due.Load())), time.Duration(e.heldDue.Load()))
}

// earlierOf returns the earlier of two times, where 0 is never.
func earlierOf(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
