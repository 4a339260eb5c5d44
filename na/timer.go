package na

import (
	"time"
)

// startTimer sets a timer that ends t at time at.
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

// maxExpire limits the timers that end in one Poll; the others end in the next one.
const maxExpire = 1024

// expireLocked ends the timers, and the calls and probes with a deadline, that are due. The caller holds
// e.mu.
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

// addTimer sets a timer of o, and reports whether it is now the earliest, so that Poll is due
// earlier.
func (e *endpoint) addTimer(o *Op, at time.Duration) (first bool) {
	e.timers.Set(o, &o.place, max(at, 1))
	return e.setDue(o.place == 1)
}

// dropTimer removes the timer of o, if there is one.
func (e *endpoint) dropTimer(o *Op) {
	first := o.place == 1
	e.timers.Remove(&o.place)
	e.setDue(first)
}

// setDue sets endpoint.due to the time of the first timer if changed is true, and returns changed.
func (e *endpoint) setDue(changed bool) bool {
	if changed {
		_, at := e.timers.First()
		e.due.Store(int64(at))
	}
	return changed
}
