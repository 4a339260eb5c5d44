package loop

import "time"

// park sleeps until there is a reason to look again.
func (l *Loop) park(w *Waiter) {
	l.mu.Lock()
	w.index = len(l.parked)
	l.parked = append(l.parked, w)
	w.isParked.Store(true)
	l.parkedCount.Add(1)
	if w.deadline != Never && !w.onlyPolls {
		l.deadlines.Set(w, &w.place, w.deadline)
		l.timedCount.Add(1)
	}
	// Listed first: who ends w, or gives the lead up, from now on sees it. What came before is seen here.
	s := l.lead.Load()
	if w.seemsOver() || l.mayLead(w, s) {
		l.unlistLocked(w)
		l.mu.Unlock()
		return
	}
	if s&lent != 0 {
		l.armWatchLocked()
	}
	l.mu.Unlock()
	if w.deadline != Never && !w.onlyPolls && int64(w.deadline) < l.until.Load() {
		l.stirred.Store(true)
		l.d.Stir()
	}
	late := w.startTimer()
	if w.gone == nil && late == nil {
		<-w.token
		return
	}
	select {
	case <-w.token:
	case <-w.gone:
		l.comeBack(w)
	case <-late:
		w.late = true
		l.comeBack(w)
	}
	if late != nil {
		w.timer.Stop()
	}
}

// comeBack has w not be parked any more.
func (l *Loop) comeBack(w *Waiter) {
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

// startTimer returns what ends the sleep of a poller at its deadline. The deadlines of others are the leader's: it comes back for them.
func (w *Waiter) startTimer() <-chan time.Time {
	if !w.onlyPolls || w.deadline == Never {
		return nil
	}
	left := w.deadline - w.l.d.Now()
	if w.timer == nil {
		w.timer = time.NewTimer(left)
	} else {
		w.timer.Reset(left)
	}
	return w.timer.C
}

// unparkLocked wakes w, which is parked.
func (l *Loop) unparkLocked(w *Waiter) {
	l.unlistLocked(w)
	w.token <- struct{}{} // never blocks: the slot is empty while w is parked
}

func (l *Loop) unlistLocked(w *Waiter) {
	last := len(l.parked) - 1
	moved := l.parked[last]
	l.parked[w.index], moved.index = moved, w.index
	l.parked[last] = nil
	l.parked = l.parked[:last]
	l.parkedCount.Add(-1)
	w.index = -1
	w.isParked.Store(false)
	if w.deadline != Never && !w.onlyPolls {
		l.deadlines.Remove(&w.place)
		l.timedCount.Add(-1)
	}
}

// End ends what w waits for. It is called from a callback or from any other goroutine: one that runs in a pass of the leader
// wakes nobody by itself.
func (w *Waiter) End() {
	l := w.l
	w.ended.Store(true)
	switch {
	case w.isParked.Load():
		l.mu.Lock()
		l.endLocked(w)
		l.mu.Unlock()
	case l.mode == Each || l.lead.Load() == w.id:
		l.d.Stir()
	}
}

// endLocked wakes w, or has the end of the pass wake it.
func (l *Loop) endLocked(w *Waiter) {
	if w.index < 0 {
		return
	}
	if l.lead.Load()&lent != 0 && !w.due {
		w.due = true
		l.due = append(l.due, w)
		l.dueCount.Add(1)
	}
	if l.lead.Load()&lent == 0 { // also if it was lent before: who leads now may not have seen that one is due
		l.unparkLocked(w)
	}
}

// lookLocked wakes those whose condition is true.
func (l *Loop) lookLocked() {
	l.look = false
	l.dueCount.Add(-1)
	for i := len(l.parked) - 1; i >= 0; i-- {
		if w := l.parked[i]; w.seemsOver() {
			l.unparkLocked(w)
		}
	}
}
