package loop

import (
	"sync/atomic"
	"time"
)

// A watchdog is a timer that passes the lead on if the leader is in Run for longRun while
// goroutines are parked, and that sends output which is held back, and calls the function of
// OnIdle, while no goroutine leads.
type watchdog struct {
	timer      *time.Timer
	armed      atomic.Bool // the timer is running; written under Loop.mu
	seenPasses uint64      // Loop.passes when the timer fired last
}

// armWatchdog starts the timer, unless it is running. onWatchdog sees all changes that the caller
// made before.
func (l *Loop) armWatchdog() {
	if l.watchdog.armed.Load() { // onWatchdog clears armed before it reads the state
		return
	}
	l.mu.Lock()
	l.armWatchdogLocked()
	l.mu.Unlock()
}

// armWatchdogLocked starts the timer, unless it is running.
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

// onWatchdog is the function of the timer. A lead that is lent in the same pass as at the last call
// is passed on.
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
	// the goroutine in the callback sees the loss of the lead when the callback returns
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
