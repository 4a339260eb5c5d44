package loop

import (
	"sync/atomic"
	"time"
)

// A watch looks after a leader that is in Run for long while others are parked, and after what is held back while none leads.
type watch struct {
	timer *time.Timer
	on    atomic.Bool // timer is on its way; written under Loop.mu
	seen  uint64      // Loop.passes when it was last looked at
}

// armWatch has watched look in a moment, at what the caller has changed before.
func (l *Loop) armWatch() {
	if l.watch.on.Load() { // watched takes that back before it looks
		return
	}
	l.mu.Lock()
	l.armWatchLocked()
	l.mu.Unlock()
}

// armWatchLocked has watched look in a moment, unless that is on its way.
func (l *Loop) armWatchLocked() {
	w := &l.watch
	if w.on.Load() {
		return
	}
	w.on.Store(true)
	if w.timer == nil {
		w.timer = time.AfterFunc(long, l.watched)
		return
	}
	w.timer.Reset(long)
}

func (l *Loop) watched() {
	l.mu.Lock()
	w := &l.watch
	w.on.Store(false)
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
