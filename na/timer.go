package na

import (
	"time"
)

// startTimer starts a timer that completes t at time at.
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

// maxExpire limits the number of timers handled in one Poll. The next Poll handles the rest.
const maxExpire = 1024

// expireLocked completes the expired timers, and the calls and probes whose deadline has passed.
// e.mu must be held.
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

// addTimer sets a timer for o. It reports whether this timer is now the earliest, in which case the
// next Poll must happen sooner.
func (e *endpoint) addTimer(o *Op, at time.Duration) (first bool) {
	e.timers.Set(o, &o.place, max(at, 1))
	return e.setDue(o.place == 1)
}

// dropTimer removes o's timer, if it has one.
func (e *endpoint) dropTimer(o *Op) {
	first := o.place == 1
	e.timers.Remove(&o.place)
	e.setDue(first)
}

// setDue sets endpoint.due to the time of the first timer if changed is true. It returns changed.
func (e *endpoint) setDue(changed bool) bool {
	if changed {
		_, at := e.timers.First()
		e.due.Store(int64(at))
	}
	return changed
}
