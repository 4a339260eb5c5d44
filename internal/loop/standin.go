package loop

import "context"

// OnIdle has f be called, on any goroutine and without a lock held, when nobody has led for 1 to 2 ms, when one has
// been in Run for so long, and when many are parked: f has a goroutine call StandIn, unless one does already. When
// that has ended OnIdle is called again. nil is nothing from now on.
//
//	the lead is free, for 1 to 2 ms ──┬─► f ─► StandIn: it leads ─ others wait, but few ─► it rests
//	many are parked when one leaves ──┘          ▲                                             │
//	            └────────────────────────────────┴─────────────────────────────────────────────┘
//
// So what nobody waits for, as a call that may last for ever, goes on; and those who wait drive themselves, which
// costs no switch between goroutines, though they cease to wait again and again.
func (l *Loop) OnIdle(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idler = f
	l.hasIdler.Store(f != nil)
	if f != nil {
		l.armWatchdogLocked()
	}
}

// Rouse calls what OnIdle has given at once, if nobody leads: something was queued that is not to wait.
func (l *Loop) Rouse() {
	if !l.hasIdler.Load() || l.lead.Load() != 0 {
		return
	}
	l.mu.Lock()
	f := l.idler
	if l.standInLocked(0) {
		f = nil
	}
	l.mu.Unlock()
	if f != nil {
		f()
	}
}

// StandIn drives until ctx ends, while nobody else does, or while many wait. The error is that of Wait.
func (l *Loop) StandIn(ctx context.Context) error {
	w := l.NewWaiter()
	w.standsIn = true
	return w.Wait(ctx)
}

// crowd is from how many parked on a goroutine that stands in leads: one that does nothing else wakes all that a pass
// has ended, and each of them would hand the lead on.
const crowd = 4

// relieved reports whether w stands in, and others are to drive from now on.
func (l *Loop) relieved(w *Waiter) bool {
	if !w.standsIn {
		return false
	}
	n := w.woke + l.parkedCount.Load()
	w.woke = 0
	return n > 0 && n < crowd
}

// rest has w, which stands in, sleep until it is handed the lead.
func (l *Loop) rest(w *Waiter) {
	l.mu.Lock()
	if l.resting != nil { // one is enough
		l.mu.Unlock()
		<-w.canceled
		return
	}
	l.resting = w
	l.mu.Unlock()
	if s := l.lead.Load(); s&^lent == w.id {
		l.releaseLead(s)
	}
	select {
	case <-w.token:
	case <-w.canceled:
		l.mu.Lock()
		rests := l.resting == w
		if rests {
			l.resting = nil
		}
		l.mu.Unlock()
		if !rests {
			<-w.token
		}
	}
}

// standInLocked hands the lead s to the one that rests, and reports whether it has it.
func (l *Loop) standInLocked(s uint64) bool {
	w := l.resting
	if w == nil || !l.lead.CompareAndSwap(s, w.id) {
		return false
	}
	l.resting = nil
	w.token <- struct{}{}
	return true
}
