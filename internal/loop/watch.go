package loop

import "time"

// A watch looks after a leader that is in Run for long while others are parked, and after what is held back while none leads.
type watch struct {
	timer *time.Timer
	on    bool
	seen  uint64 // Loop.passes when it was last looked at
}

func (l *Loop) armWatch() {
	l.mu.Lock()
	l.armWatchLocked()
	l.mu.Unlock()
}

// armWatchLocked has watched look in a moment, unless that is on its way.
func (l *Loop) armWatchLocked() {
	w := &l.watch
	if w.on {
		return
	}
	w.on = true
	if w.timer == nil {
		w.timer = time.AfterFunc(long, l.watched)
		return
	}
	w.timer.Reset(long)
}

func (l *Loop) watched() {
	l.mu.Lock()
	w := &l.watch
	w.on = false
	s, passes := l.lead.Load(), l.passes.Load()
	switch {
	case s&lent == 0:
	case w.seen != passes:
		w.seen = passes
		l.armWatchLocked()
	case !l.passLeadLocked(s): // who is in the callback sees that it has lost the lead when that returns
		l.armWatchLocked()
	}
	unhold := s == 0 && l.batch.held.Load()
	l.mu.Unlock()
	if unhold {
		l.closeBatch()
	}
}
