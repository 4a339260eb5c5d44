package engine

import (
	"fmt"
	"time"
)

// A route is a transport of the class with the carrier that an endpoint has for it. The first is the class's own.
type route struct {
	*Transport
	carrier Carrier
	stager  Stager  // the carrier, if it is one; else nil
	reacher Reacher // likewise
}

// routeOf returns the route of a carrier.
func (e *Endpoint) routeOf(c Carrier) *route {
	for i := range e.routes {
		if e.routes[i].carrier == c {
			return &e.routes[i]
		}
	}
	panic(fmt.Sprintf("engine: a peer is admitted by %T, which is no carrier of the endpoint", c))
}

// kick has the carrier send what l has, when the lock is returned with Unlock.
func (l *Link) kick() {
	if !l.kicked && l.state != linkDown {
		l.makeBusy()
		l.kicked = true
		l.e.kicked = append(l.e.kicked, l)
		l.e.pending.Store(true)
	}
}

// Lock takes the endpoint's lock; carriers call Link methods under it.
func (e *Endpoint) Lock() { e.mu.Lock() }

// Unlock sends what was queued, unless it is held back (Cork), and returns the lock. It returns the lock for a while before
// that, too: what comes before it has to leave everything in order.
func (e *Endpoint) Unlock() { e.unlockSoon(e.sendDue()) }

// sendDue sends what was queued, unless it is held back. It reports whether it is the first that is: who sends it soon sends all. Locked, though not
// all the time.
func (e *Endpoint) sendDue() (first bool) {
	if len(e.kicked) == 0 {
		return false
	}
	if e.kicks++; e.corks == 0 || e.kicks == e.kicked[len(e.kicked)-1].route.Batch {
		e.sendQueued()
		return false
	}
	return e.kicks == 1
}

// unlockSoon returns the lock. flush: something is held back, and has to leave soon.
func (e *Endpoint) unlockSoon(flush bool) {
	e.unlock()
	if flush {
		e.host.FlushSoon()
	}
}

// unlock returns the lock.
func (e *Endpoint) unlock() {
	e.mu.Unlock()
	if e.eng.self.pending.Load() {
		e.eng.self.drain()
	}
}

// Pause returns the lock inside Carrier.Flush, around a system call or a copy, and sends nothing. Lock follows.
func (e *Endpoint) Pause() { e.mu.Unlock() }

// sendQueued has the carriers send what was queued. Locked, though not all the time.
func (e *Endpoint) sendQueued() {
	for len(e.kicked) > 0 {
		e.kicks = 0
		batch := e.kicked
		e.kicked, e.flushing = e.flushing[:0], nil
		for _, l := range batch {
			l.kicked = false
		}
		for i, j := 0, 1; i < len(batch); i, j = j, j+1 {
			for j < len(batch) && batch[j].route == batch[i].route {
				j++
			}
			batch[i].route.carrier.Flush(batch[i:j])
		}
		clear(batch)
		e.flushing = batch[:0]
	}
	e.pending.Store(false)
}

// Cork implements na.Endpoint.
func (e *Endpoint) Cork() {
	e.mu.Lock()
	e.corks++
	e.mu.Unlock()
}

// Uncork implements na.Endpoint.
func (e *Endpoint) Uncork() {
	e.mu.Lock()
	e.corks--
	e.Unlock()
}

// Flush implements na.Endpoint.
func (e *Endpoint) Flush() {
	e.mu.Lock()
	e.sendQueued()
	e.unlock()
}

// Held reports whether frames wait for an Uncork or a Flush.
func (e *Endpoint) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.kicked) > 0
}

// Poll implements na.Endpoint.
func (e *Endpoint) Poll(now time.Duration) time.Duration {
	if at := e.timer.Load(); at != 0 && int64(now) >= at {
		e.host.TakeIn() // nobody is given up while his answer lies here
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
	next := time.Duration(0)
	for i := range e.routes {
		next = sooner(next, e.pollCarrier(i, now))
	}
	if e.pending.Load() || e.eng.self.pending.Load() {
		e.Flush()
	}
	if e.eng.self.rest.Load() {
		e.eng.self.drain()
	}
	return sooner(next, e.Next())
}

// pollCarrier polls a carrier. One of a broken endpoint may panic again; it has returned the lock by then.
func (e *Endpoint) pollCarrier(i int, now time.Duration) (next time.Duration) {
	if e.host.Broken() {
		defer e.Rescue(func(error) {})
	}
	return e.routes[i].carrier.Poll(now)
}

// Next returns when the endpoint itself has something to do; 0 for never.
func (e *Endpoint) Next() time.Duration {
	if e.eng.self.pending.Load() || e.eng.self.rest.Load() {
		return 1
	}
	return sooner(time.Duration(e.timer.Load()), time.Duration(e.due.Load()))
}

// sooner returns the earlier of two times; 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
