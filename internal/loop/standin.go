package loop

import "context"

// OnIdle makes the Loop call f when for 1 to 2 ms no goroutine has led or the leader has been in Run,
// and when many goroutines are parked. f is called on any goroutine, without
// locks, and must make a goroutine call StandIn, unless one is in it. When that has returned,
// OnIdle must be called again. A nil f removes it.
//
//	the lead is free, for 1 to 2 ms ──┬─► f ─► StandIn: it leads ─ others wait, but few ─► it rests
//	many are parked when one leaves ──┘          ▲                                             │
//	            └────────────────────────────────┴─────────────────────────────────────────────┘
//
// So operations for which no goroutine waits, such as a call that may last forever, make progress.
// Waiting goroutines drive themselves, which needs no switch between goroutines, also if there are
// short times in which none waits.
func (l *Loop) OnIdle(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onIdle = f
	l.hasOnIdle.Store(f != nil)
	if f != nil {
		l.armWatchdogLocked()
	}
}

// Rouse makes a goroutine stand in at once, if none leads, for work that must not wait until the
// Loop is idle.
func (l *Loop) Rouse() {
	if !l.hasOnIdle.Load() || l.lead.Load() != 0 {
		return
	}
	l.mu.Lock()
	f := l.onIdle
	if l.standInLocked(0) {
		f = nil
	}
	l.mu.Unlock()
	if f != nil {
		f()
	}
}

// StandIn drives while no other goroutine does, or while many are parked, and rests otherwise,
// until ctx is done. The error is that of Wait.
func (l *Loop) StandIn(ctx context.Context) error {
	w := l.NewWaiter()
	w.standsIn = true
	return w.Wait(ctx)
}

// standInThreshold is from how many parked goroutines on the one in StandIn leads: it wakes all
// waiters that are over in a pass, while each of them would have to pass the lead on.
const standInThreshold = 4

// shouldRest reports whether w stands in and others should drive from now on: a few wait, or were
// woken by w.
func (l *Loop) shouldRest(w *Waiter) bool {
	if !w.standsIn {
		return false
	}
	n := w.lastWoken + l.parkedCount.Load()
	w.lastWoken = 0
	return n > 0 && n < standInThreshold
}

// restStandIn releases the lead of w, which stands in, and sleeps until w gets it again, or its
// context is done.
func (l *Loop) restStandIn(w *Waiter) {
	w.clock = -1
	l.mu.Lock()
	if l.restingStandIn != nil { // another goroutine stands in already
		l.mu.Unlock()
		<-w.canceled
		return
	}
	l.restingStandIn = w
	l.mu.Unlock()
	if s := l.lead.Load(); s&^lent == w.id {
		l.releaseLead(s)
	}
	select {
	case <-w.token:
	case <-w.canceled:
		l.mu.Lock()
		isResting := l.restingStandIn == w
		if isResting {
			l.restingStandIn = nil
		}
		l.mu.Unlock()
		if !isResting {
			<-w.token
		}
	}
}

// standInLocked passes the lead, if it is s, to the goroutine that rests in StandIn, and reports
// whether it did.
func (l *Loop) standInLocked(s uint64) bool {
	w := l.restingStandIn
	if w == nil || !l.lead.CompareAndSwap(s, w.id) {
		return false
	}
	l.restingStandIn = nil
	w.token <- struct{}{}
	return true
}
