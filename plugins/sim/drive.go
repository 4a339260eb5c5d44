package sim

import (
	"time"
)

// A waiter is a goroutine, not a coroutine of the world, that is in Progress or Sleep. The clock does not pass the
// deadline of any.
type waiter struct{ deadline time.Duration }

// drive makes the world go on until ready reports true, p is gone or the time is up. p is nil for one who only sleeps.
//
//	look ─► nothing ready ─► take the turn ─► what was asked for, next event ─► give the turn ─► look
//	              │ somebody has the turn, or nothing can happen by itself
//	              └─► sleep until a Wake, something asked for, or the clock has moved
func (w *World) drive(p *port, timeout time.Duration, ready func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	me := &waiter{w.deadline(timeout)}
	w.waiters = append(w.waiters, me)
	defer w.leaveLocked(me)
	if p != nil {
		p.drives.Add(1)
		defer p.drives.Add(-1)
	}
	var seen uint64 // wakes come before the first look: it is never missed
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
			if p.over(me.deadline) {
				return false
			}
		}
		switch {
		case w.now.Load() >= int64(me.deadline):
			return false
		case w.turn:
			w.restLocked(p, seen, 0)
		default:
			w.advanceLocked(me, p, seen)
		}
	}
}

// leaveLocked takes a waiter out; the clock may go on.
func (w *World) leaveLocked(me *waiter) {
	w.waiters = without(w.waiters, me)
	if w.waiting.Load() > 0 {
		w.cond.Broadcast()
	}
}

// limitLocked is the first deadline of those who wait.
func (w *World) limitLocked() time.Duration {
	limit := forever
	for _, o := range w.waiters {
		limit = min(limit, o.deadline)
	}
	return limit
}

// advanceLocked takes the turn for one event, or moves the clock to the first deadline, or sleeps.
func (w *World) advanceLocked(me *waiter, p *port, seen uint64) {
	w.takeTurnLocked()
	limit := w.limitLocked()
	w.mu.Unlock()
	w.settle()
	if p != nil && w.cfg.NoAssist {
		p.serve()
	}
	ev := w.events.min()
	now := time.Duration(w.now.Load())
	next := limit
	if ev != nil {
		next = min(next, ev.at)
	}
	wait := time.Duration(0) // in real time
	moved := true
	switch {
	case w.cfg.Paced && next != forever && next > now+w.cfg.PollCost && !w.events.busy(): // polls do not wait
		wait = next - now
	case w.step(limit):
		w.settle()
	case limit == forever, limit <= now:
		moved = false
	default:
		w.now.Store(int64(limit))
	}
	w.mu.Lock()
	again := w.asked.Load()
	w.turn = false
	now = time.Duration(w.now.Load())
	if w.takers > 0 || now >= limit && len(w.waiters) > 1 {
		w.cond.Broadcast()
	}
	switch {
	case again, now >= me.deadline:
	case wait > 0:
		w.restLocked(p, seen, wait)
	case !moved && w.limitLocked() == limit: // else who had that deadline has left meanwhile, and nobody else will move the clock
		w.restLocked(p, seen, 0)
	}
}

// restLocked sleeps, unless p was woken since it was seen. wait, if not zero, bounds it in real time.
func (w *World) restLocked(p *port, seen uint64, wait time.Duration) {
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
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

// creditLocked lets the virtual clock follow the real one for as long as a paced world was idle. The turn has just been
// taken.
func (w *World) creditLocked() {
	if w.idleFrom.IsZero() {
		return
	}
	now := time.Duration(w.now.Load())
	to := min(now+time.Since(w.idleFrom), w.limitLocked())
	if ev := w.events.min(); ev != nil {
		to = min(to, ev.at)
	}
	w.idleFrom = time.Time{}
	if to > now {
		w.now.Store(int64(to))
	}
}
