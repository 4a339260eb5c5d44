package na

import (
	"time"
)

// startTimer starts the operation t, a timer that completes at time at.
func (e *endpoint) startTimer(t ticket, at time.Duration) {
	e.mu.Lock()
	if err := e.refusalOfLocked(t); err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
	first := e.addTimer(o, at)
	e.mu.Unlock()
	if first {
		e.nctx.pollSoon()
	}
}

// maxExpire is the maximum number of timers that one call to Poll handles. The next call handles
// the rest.
const maxExpire = 1024

// expireLocked completes timers that have expired and fails calls and probes whose deadlines have
// passed. e.mu must be held.
func (e *endpoint) expireLocked(now time.Duration) {
	for range maxExpire {
		o, at := e.timers.First()
		if o == nil || at > now {
			return
		}
		if o.kind == kindCall || o.kind == kindProbe {
			e.dropTimer(o)
			o.ticket().setDue()
		} else {
			e.finishOpLocked(o, Result{})
		}
	}
}

// addTimer sets a timer for o that expires at time at. It reports whether this is now the earliest
// timer, in which case the caller must call pollSoon.
func (e *endpoint) addTimer(o *Op, at time.Duration) (first bool) {
	e.timers.Set(o, &o.place, max(at, 1))
	return e.setDue(o.place == 1)
}

// dropTimer removes the timer of o. If o has none, it does nothing.
func (e *endpoint) dropTimer(o *Op) {
	first := o.place == 1
	e.timers.Remove(&o.place)
	e.setDue(first)
}

// setDue sets endpoint.due to the time of the earliest timer if that time has changed, as reported
// by changed. It returns changed.
func (e *endpoint) setDue(changed bool) bool {
	if changed {
		_, at := e.timers.First()
		e.due.Store(int64(at))
	}
	return changed
}
