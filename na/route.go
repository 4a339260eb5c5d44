package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A route is a transport of the class with the carrier that an endpoint has for it. The first is the class's own.
type route struct {
	*network
	carrier carrier.Carrier
	stager  carrier.Stager  // the carrier, if it is one; else nil
	reacher carrier.Reacher // likewise
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

// markPending has the carrier send what l has, when the lock is returned with Unlock.
func (l *session) markPending() {
	if !l.pending && l.state != stateDown {
		l.makeBusy()
		l.pending = true
		l.e.pending = append(l.e.pending, l)
		l.e.hasPending.Store(true)
	}
}

// Lock takes the endpoint's lock; carriers call session methods under it.
func (e *endpoint) Lock() { e.mu.Lock() }

// Unlock sends what was queued, unless it is held back (Cork), and returns the lock. It returns the lock for a while before
// that, too: what comes before it has to leave everything in order.
func (e *endpoint) Unlock() { e.unlockSoon(e.sendDue()) }

// sendDue sends what was queued, unless it is held back. It reports whether it is the first that is: who sends it soon sends all. Locked, though not
// all the time.
func (e *endpoint) sendDue() (first bool) {
	if len(e.pending) == 0 {
		return false
	}
	if e.unlocks++; e.nctx.corks.Load() == 0 || e.unlocks == e.pending[len(e.pending)-1].(*session).route.FlushEvery {
		e.flushPending()
		return false
	}
	return e.unlocks == 1
}

// unlockSoon returns the lock. flush: something is held back, and has to leave soon.
func (e *endpoint) unlockSoon(flush bool) {
	e.unlock()
	if flush {
		e.nctx.flushSoon()
	}
}

// unlock returns the lock.
func (e *endpoint) unlock() {
	e.mu.Unlock()
	if e.dom.self.pending.Load() {
		e.dom.self.drainTodo()
	}
}

// Pause returns the lock inside carrier.Carrier.Flush, around a system call or a copy, and sends nothing. Lock follows.
func (e *endpoint) Pause() { e.mu.Unlock() }

// flushPending has the carriers send what was queued. Locked, though not all the time.
func (e *endpoint) flushPending() {
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

// flushHeld sends frames that are held back.
func (e *endpoint) flushHeld() {
	e.mu.Lock()
	e.flushPending()
	e.unlock()
}

// Held reports whether frames wait for an Uncork or a Flush.
func (e *endpoint) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pending) > 0
}

// Poll makes one pass without waiting: timers that are due, descriptors that are closed late, frames that are held. It
// returns when it has something to do again although nothing arrives: 0 for never. What is due earlier than it said needs
// Host.PollSoon. Only the goroutine that leads Progress calls it. What has arrived since may not be taken in yet: Host.TakeIn.
func (e *endpoint) Poll(now time.Duration) time.Duration {
	if at := e.timer.Load(); at != 0 && int64(now) >= at {
		e.nctx.receiveAll() // nobody is given up while his answer lies here
		e.mu.Lock()
		e.now = now
		e.tick(now)
		e.mu.Unlock()
	}
	if at := e.due.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.expire(now)
		e.mu.Unlock()
	}
	if at := e.heldDue.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.now = now
		e.reportHeld(now)
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

// pollCarrier polls a carrier. One of a broken endpoint may panic again; it has returned the lock by then.
func (e *endpoint) pollCarrier(i int, now time.Duration) (next time.Duration) {
	if e.nctx.isBroken() {
		defer e.Rescue(func(error) {})
	}
	return e.routes[i].carrier.Poll(now)
}

// Next returns when the endpoint itself has something to do; 0 for never.
func (e *endpoint) Next() time.Duration {
	if e.dom.self.pending.Load() || e.dom.self.rest.Load() {
		return 1
	}
	return earlierOf(earlierOf(time.Duration(e.timer.Load()), time.Duration(e.due.Load())), time.Duration(e.heldDue.Load()))
}

// earlierOf returns the earlier of two times; 0 is never.
func earlierOf(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
