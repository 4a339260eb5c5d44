package loop

import (
	"sync/atomic"
	"time"
)

// A watchdog is a timer that passes the lead on if the leader has been in Run for longRun while
// goroutines are parked. While no goroutine leads, it sends output that is held back and calls the
// function set by OnIdle.
type watchdog struct {
	timer      *time.Timer
	armed      atomic.Bool // whether the timer is running; written with Loop.mu held
	seenPasses uint64      // value of Loop.passes when the timer last fired
}

// armWatchdog starts the timer if it is not running. onWatchdog observes all changes that the
// caller made before the call.
func (l *Loop) armWatchdog() {
	if l.watchdog.armed.Load() { // onWatchdog clears armed before it reads the state
		return
	}
	l.mu.Lock()
	l.armWatchdogLocked()
	l.mu.Unlock()
}

// armWatchdogLocked starts the timer if it is not running. l.mu must be held.
func (l *Loop) armWatchdogLocked() {
	w := &l.watchdog
	if w.armed.Load() {
		return
	}
	w.armed.Store(true)
	if w.timer == nil {
		w.timer = time.AfterFunc(longRun, l.onWatchdog)
		return
	}
	w.timer.Reset(longRun)
}

// onWatchdog is called when the timer fires. If the lead is still lent in the same pass as at the
// previous call, the lead is passed on.
func (l *Loop) onWatchdog() {
	l.mu.Lock()
	w := &l.watchdog
	w.armed.Store(false)
	var onIdle func()
	s, passes := l.lead.Load(), l.passes.Load()
	switch {
	case s != 0 && s&lent == 0, s == 0 && l.onIdle == nil:
	case w.seenPasses != passes:
		w.seenPasses = passes
		l.armWatchdogLocked()
	case s == 0:
		if !l.standInLocked(0) {
			onIdle = l.onIdle
		}
	// The goroutine in the callback notices the loss of the lead when the callback returns.
	case !l.passLeadLocked(s):
		if !l.standInLocked(s) {
			onIdle = l.onIdle
		}
		l.armWatchdogLocked()
	}
	unhold := s == 0 && l.batch.held.Load()
	l.mu.Unlock()
	if unhold {
		l.closeBatch()
	}
	if onIdle != nil {
		onIdle()
	}
}
