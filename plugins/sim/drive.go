package sim

import (
	"time"
)

// A waiter is a goroutine in Progress or Sleep that is not one of the world's coroutines. The clock
// does not advance past the deadline of any waiter.
type waiter struct{ deadline time.Duration }

// driveUntil runs the world until ready reports true, p is released, or the timeout expires. p is
// nil for a Sleep.
//
// While ready reports false, the goroutine takes the turn, runs the queued functions and the next
// event, and releases the turn. If another goroutine holds the turn or there is no event, it sleeps
// until Wake is called, a function is queued, or the clock has advanced.
func (w *World) driveUntil(p *port, timeout time.Duration, ready func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	me := &waiter{w.deadlineAfter(timeout)}
	w.waiters = append(w.waiters, me)
	defer w.removeWaiterLocked(me)
	if p != nil {
		p.drivers.Add(1)
		defer p.drivers.Add(-1)
	}
	var seen uint64 // value of p.wakes before the last check, so that no wake-up is missed
	for first := true; ; first = false {
		if p != nil {
			if n := p.wakes.Load(); n != seen || first {
				seen = n
				w.mu.Unlock()
				ok := ready()
				w.mu.Lock()
				if ok {
					return true
				}
				continue
			}
			if p.isWaitInVain(me.deadline) {
				return false
			}
		}
		switch {
		case w.now.Load() >= int64(me.deadline):
			return false
		case w.turnTaken:
			w.sleepUnlessWokenLocked(p, seen, 0)
		default:
			w.advanceLocked(me, p, seen)
		}
	}
}

// removeWaiterLocked removes a waiter, so that the clock may advance past its deadline. w.mu must
// be held.
func (w *World) removeWaiterLocked(me *waiter) {
	w.waiters = removeElement(w.waiters, me)
	if w.sleepers.Load() > 0 {
		w.cond.Broadcast()
	}
}

// firstDeadlineLocked returns the earliest deadline of the waiters. w.mu must be held.
func (w *World) firstDeadlineLocked() time.Duration {
	limit := noDeadline
	for _, o := range w.waiters {
		limit = min(limit, o.deadline)
	}
	return limit
}

// advanceLocked takes the turn and runs one event, advances the clock to the earliest deadline, or
// sleeps. w.mu must be held.
func (w *World) advanceLocked(me *waiter, p *port, seen uint64) {
	w.takeTurnLocked()
	limit := w.firstDeadlineLocked()
	w.mu.Unlock()
	w.runQueued()
	if p != nil && w.cfg.NoAssist {
		p.serveDelayed()
	}
	ev := w.events.first()
	now := time.Duration(w.now.Load())
	next := limit
	if ev != nil {
		next = min(next, ev.at)
	}
	wait := time.Duration(0) // real time
	moved := true
	switch {
	// Wait in real time, unless next is the deadline of a nonblocking Progress.
	case w.cfg.Paced && next != noDeadline && next > now+w.cfg.PollCost && !w.events.hasInFlight():
		wait = next - now
	case w.runNext(limit):
		w.runQueued()
	case limit == noDeadline, limit <= now:
		moved = false
	default:
		w.now.Store(int64(limit))
	}
	w.mu.Lock()
	again := w.hasQueued.Load()
	w.turnTaken = false
	now = time.Duration(w.now.Load())
	if w.turnWaiters > 0 || now >= limit && len(w.waiters) > 1 {
		w.cond.Broadcast()
	}
	switch {
	case again, now >= me.deadline:
	case wait > 0:
		w.sleepUnlessWokenLocked(p, seen, wait)
	// Sleep, unless the waiter with that deadline has left and this one must advance the clock.
	case !moved && w.firstDeadlineLocked() == limit:
		w.sleepUnlessWokenLocked(p, seen, 0)
	}
}

// sleepUnlessWokenLocked sleeps unless p has been woken since seen was read. A nonzero wait limits
// the sleep, in real time. w.mu must be held.
func (w *World) sleepUnlessWokenLocked(p *port, seen uint64, wait time.Duration) {
	w.sleepers.Add(1)
	defer w.sleepers.Add(-1)
	if p != nil && p.wakes.Load() != seen {
		return
	}
	if wait > 0 {
		if w.idleFrom.IsZero() {
			w.idleFrom = time.Now()
		}
		t := time.AfterFunc(wait, func() {
			w.mu.Lock()
			w.cond.Broadcast()
			w.mu.Unlock()
		})
		defer t.Stop()
	}
	w.cond.Wait()
}

// catchUpLocked advances the virtual clock by the real time for which a paced world was idle. The
// caller must hold w.mu and must have just taken the turn.
func (w *World) catchUpLocked() {
	if w.idleFrom.IsZero() {
		return
	}
	now := time.Duration(w.now.Load())
	to := min(now+time.Since(w.idleFrom), w.firstDeadlineLocked())
	if ev := w.events.first(); ev != nil {
		to = min(to, ev.at)
	}
	w.idleFrom = time.Time{}
	if to > now {
		w.now.Store(int64(to))
	}
}
