package na

import (
	"time"
)

// startTimer ends t when the clock reads at.
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

// maxExpire bounds the timers that end in one Poll: those that are left are due in the next one.
const maxExpire = 1024

// expire ends timers, and calls and probes with a deadline, that are due. Locked.
func (e *endpoint) expire(now time.Duration) {
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

// addTimer has o end at a time, and reports whether nothing is due before: then Poll is due sooner.
func (e *endpoint) addTimer(o *Op, at time.Duration) (first bool) {
	e.timers.Set(o, &o.place, max(at, 1))
	return e.setDue(o.place == 1)
}

// dropTimer takes out what addTimer has added; nothing if that has not.
func (e *endpoint) dropTimer(o *Op) {
	first := o.place == 1
	e.timers.Remove(&o.place)
	e.setDue(first)
}

// setDue follows the first timer if that is another one now.
func (e *endpoint) setDue(changed bool) bool {
	if changed {
		_, at := e.timers.First()
		e.due.Store(int64(at))
	}
	return changed
}
