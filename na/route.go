package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A route combines a transport of the class with the endpoint's carrier on that transport. The
// first element of endpoint.routes is for the class's primary transport.
type route struct {
	*network
	carrier carrier.Carrier
	stager  carrier.Stager  // the carrier if it implements carrier.Stager, or nil
	reacher carrier.Reacher // the carrier if it implements carrier.Reacher, or nil
}

// routeOf returns the route whose carrier is c. It panics if there is none.
func (e *endpoint) routeOf(c carrier.Carrier) *route {
	for i := range e.routes {
		if e.routes[i].carrier == c {
			return &e.routes[i]
		}
	}
	panic(fmt.Sprintf("na: peer admitted by %T, which is not a carrier of the context", c))
}

// markPending adds l to the sessions whose frames the next Unlock sends.
func (l *session) markPending() {
	if !l.pending && l.state != stateDown {
		l.makeBusy()
		l.pending = true
		l.e.pending = append(l.e.pending, l)
		l.e.hasPending.Store(true)
	}
}

// Lock locks the endpoint. Carriers must hold this lock when they call session methods.
func (e *endpoint) Lock() { e.mu.Lock() }

// Unlock sends queued frames, unless Cork holds them back, and unlocks the endpoint. Because Unlock
// may release the lock while sending, the caller must first leave all state consistent.
func (e *endpoint) Unlock() { e.unlockSoon(e.sendDueLocked()) }

// sendDueLocked sends queued frames, unless Cork holds them back. If first is true, these are the
// first frames held back since the last flush, and the caller must schedule a flush. e.mu must be
// held. sendDueLocked may release it while sending.
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

// unlockSoon unlocks the endpoint. If flush is true, it schedules a flush of the frames that are
// held back.
func (e *endpoint) unlockSoon(flush bool) {
	e.unlock()
	if flush {
		e.nctx.flushSoon()
	}
}

// unlock unlocks the endpoint and then delivers the frames of loopback sessions.
func (e *endpoint) unlock() {
	e.mu.Unlock()
	if e.dom.self.pending.Load() {
		e.dom.self.drainTodo()
	}
}

// Pause unlocks the endpoint for a system call or a copy, without sending anything. The caller must
// call Lock afterward.
func (e *endpoint) Pause() { e.mu.Unlock() }

// flushPendingLocked makes the carriers send all queued frames. e.mu must be held.
// flushPendingLocked may release it while sending.
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

// flushHeld sends the frames that Cork holds back.
func (e *endpoint) flushHeld() {
	e.mu.Lock()
	e.flushPendingLocked()
	e.unlock()
}

// Held reports whether any frames are queued, waiting for Uncork or Flush.
func (e *endpoint) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pending) > 0
}

// Poll handles expired timers, polls the carriers, and sends frames that Cork holds back. It does
// not block. It returns the time at which it must be called again even if nothing arrives, or 0 if
// there is none. After a call to PollSoon, it must be called earlier. Only the leader may call
// Poll.
func (e *endpoint) Poll(now time.Duration) time.Duration {
	if at := e.timer.Load(); at != 0 && int64(now) >= at {
		e.nctx.receiveAll() // so that a peer is not declared lost while its frames are waiting to be read
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

// pollCarrier calls Poll of the carrier of route i and returns its result. If the endpoint is
// broken, pollCarrier recovers from panics in Poll.
func (e *endpoint) pollCarrier(i int, now time.Duration) (next time.Duration) {
	if e.nctx.isBroken() {
		defer e.Rescue(func(error) {})
	}
	return e.routes[i].carrier.Poll(now)
}

// Next returns the time at which Poll must be called next because a timer expires, or 0 if no timer
// is set. If frames for this context itself are waiting, it returns 1, a time in the past.
func (e *endpoint) Next() time.Duration {
	if e.dom.self.pending.Load() || e.dom.self.rest.Load() {
		return 1
	}
	return earlierOf(earlierOf(time.Duration(e.timer.Load()), time.Duration(e.due.Load())), time.Duration(e.heldDue.Load()))
}

// earlierOf returns the earlier of a and b, where 0 means never.
func earlierOf(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
