package loop

import "context"

// OnIdle makes the Loop call f when no goroutine has led, or the leader has been in Run, for 1 to 2
// ms, and when many goroutines are parked. f is called on any goroutine, with no locks held. It
// must make a goroutine call StandIn, unless one already has. After StandIn returns, OnIdle must be
// called again. A nil f removes the hook.
//
// The goroutine in StandIn leads while no other goroutine waits, or while many are parked, and
// rests otherwise.
//
// This lets operations for which no goroutine is waiting, such as a call that may last forever,
// make progress. Waiting goroutines drive the Loop themselves, which avoids goroutine switches,
// even if there are short intervals in which none of them waits.
func (l *Loop) OnIdle(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onIdle = f
	l.hasOnIdle.Store(f != nil)
	if f != nil {
		l.armWatchdogLocked()
	}
}

// Rouse makes a goroutine stand in immediately if none leads. It is for work that must not wait
// until the Loop is idle.
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

// StandIn drives the loop while no other goroutine does, or while many are parked, and rests
// otherwise, until ctx is done. Errors are those documented for Wait.
func (l *Loop) StandIn(ctx context.Context) error {
	w := l.NewWaiter()
	w.standsIn = true
	return w.Wait(ctx)
}

// standInThreshold is the number of parked goroutines at which the goroutine in StandIn leads. A
// goroutine in StandIn wakes all completed waiters in one pass, whereas a waiting goroutine would
// pass the lead on as soon as its own wait is complete.
const standInThreshold = 4

// shouldRest reports whether w, which may be the stand-in, must rest. The stand-in must rest if
// some goroutines, but fewer than standInThreshold, are parked or were woken by it in its last
// pass, because these can drive the loop themselves.
func (l *Loop) shouldRest(w *Waiter) bool {
	if !w.standsIn {
		return false
	}
	n := w.lastWoken + l.parkedCount.Load()
	w.lastWoken = 0
	return n > 0 && n < standInThreshold
}

// restStandIn releases the lead of w, which stands in, and sleeps until w gets the lead again or
// its context is done.
func (l *Loop) restStandIn(w *Waiter) {
	w.clock = -1
	l.mu.Lock()
	if l.restingStandIn != nil { // another goroutine already stands in
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

// standInLocked passes the lead to the goroutine resting in StandIn, if any, and reports whether it
// did. It does nothing unless the lead's value is s. l.mu must be held.
func (l *Loop) standInLocked(s uint64) bool {
	w := l.restingStandIn
	if w == nil || !l.lead.CompareAndSwap(s, w.id) {
		return false
	}
	l.restingStandIn = nil
	w.token <- struct{}{}
	return true
}
