package slab

import (
	"sync/atomic"
	"time"
)

// idleTime is the minimum time that a buffer is idle before it is released. The maximum is twice
// that.
const idleTime = time.Second

// sweepScheduled reports whether a timer that calls sweep is running. A timer runs from the first
// Put until all free lists are empty.
var sweepScheduled atomic.Bool

// sweep releases the buffers that have not been used since the last sweep, and schedules another
// one if buffers remain.
func sweep() {
	sweepScheduled.Store(false)
	left := false
	for i := range freeLists {
		idle, more := freeLists[i].takeIdle()
		for _, b := range idle {
			releasePages(b)
		}
		left = left || more
	}
	if left && !sweepScheduled.Swap(true) {
		time.AfterFunc(idleTime, sweep)
	}
}
