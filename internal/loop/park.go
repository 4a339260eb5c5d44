package loop

import "time"

// park sleeps until w is woken, its context is done, or its deadline passes. It returns immediately
// if w's wait is complete or w may lead.
func (l *Loop) park(w *Waiter) {
	w.clock = -1
	l.mu.Lock()
	w.index = len(l.parked)
	l.parked = append(l.parked, w)
	w.isParked.Store(true)
	l.parkedCount.Add(1)
	if w.runner != nil {
		l.drivers.Add(1)
	}
	if w.deadline != Never && !w.onlyPolls {
		l.deadlines.Set(w, &w.heapIndex, w.deadline)
		l.timedCount.Add(1)
	}
	// A goroutine that ends w's wait or releases the lead after this point finds w in the list. The
	// effect of one that did so earlier is visible here.
	s := l.lead.Load()
	if w.isOverSafe() || l.mayLead(w, s) {
		l.unlistLocked(w)
		l.mu.Unlock()
		return
	}
	if s&lent != 0 {
		l.armWatchdogLocked()
	}
	l.mu.Unlock()
	if w.deadline != Never && !w.onlyPolls && int64(w.deadline) < l.pollUntil.Load() {
		l.stirred.Store(true)
		l.driver.Stir()
	}
	late := w.startTimer()
	if w.canceled == nil && late == nil {
		<-w.token
		return
	}
	select {
	case <-w.token:
	case <-w.canceled:
		l.unparkSelf(w)
	case <-late:
		w.timedOut = true
		l.unparkSelf(w)
	}
	if late != nil {
		w.timer.Stop()
	}
}

// unparkSelf removes w, the caller's own waiter, from the list. If another goroutine has already
// removed it, unparkSelf consumes the token.
func (l *Loop) unparkSelf(w *Waiter) {
	l.mu.Lock()
	parked := w.index >= 0
	if parked {
		l.unlistLocked(w)
	}
	l.mu.Unlock()
	if !parked {
		<-w.token
	}
}

// startTimer returns the channel that ends a parked poller's sleep at its deadline. It returns nil
// for other waiters, whose deadlines the leader watches.
func (w *Waiter) startTimer() <-chan time.Time {
	if !w.onlyPolls || w.deadline == Never {
		return nil
	}
	left := w.deadline - w.loop.driver.Now()
	if w.timer == nil {
		w.timer = time.NewTimer(left)
	} else {
		w.timer.Reset(left)
	}
	return w.timer.C
}

// unparkLocked wakes w, which must be parked. l.mu must be held.
func (l *Loop) unparkLocked(w *Waiter) {
	l.unlistLocked(w)
	w.token <- struct{}{} // does not block: the channel is empty while w is parked
}

// unlistLocked removes w from l.parked and l.deadlines. l.mu must be held.
func (l *Loop) unlistLocked(w *Waiter) {
	last := len(l.parked) - 1
	moved := l.parked[last]
	l.parked[w.index], moved.index = moved, w.index
	l.parked[last] = nil
	l.parked = l.parked[:last]
	l.parkedCount.Add(-1)
	if w.runner != nil {
		l.drivers.Add(-1)
	}
	w.index = -1
	w.isParked.Store(false)
	if w.deadline != Never && !w.onlyPolls {
		l.deadlines.Remove(&w.heapIndex)
		l.timedCount.Add(-1)
	}
}

// End ends the wait of w. It may be called by any goroutine, including from a callback. If the
// leader is in a pass, w is woken only at the end of that pass.
func (w *Waiter) End() {
	l := w.loop
	w.ended.Store(true)
	switch {
	case w.isParked.Load():
		l.mu.Lock()
		l.endLocked(w)
		l.mu.Unlock()
	case l.mode == Each || l.lead.Load() == w.id:
		l.driver.Stir()
	}
}

// endLocked wakes w if it is parked, either at the end of the pass in progress or immediately. l.mu
// must be held.
func (l *Loop) endLocked(w *Waiter) {
	if w.index < 0 {
		return
	}
	if l.lead.Load()&lent != 0 && !w.due {
		w.due = true
		l.due = append(l.due, w)
		l.dueCount.Add(1)
	}
	// Check again even if it was lent above: the leader may have ended its pass without seeing w in
	// due.
	if l.lead.Load()&lent == 0 {
		l.unparkLocked(w)
	}
}

// wakeOverLocked wakes the parked waiters whose wait is complete. l.mu must be held.
func (l *Loop) wakeOverLocked() {
	l.checkAll = false
	l.dueCount.Add(-1)
	for i := len(l.parked) - 1; i >= 0; i-- {
		if w := l.parked[i]; w.isOverSafe() {
			l.unparkLocked(w)
		}
	}
}
