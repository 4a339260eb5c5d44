package slab

import (
	"sync/atomic"
	"time"
)

// idleTime is how long a buffer is idle before it is released: at least this, and at most twice this.
const idleTime = time.Second

// sweepScheduled is true while a timer runs that will call sweep: from the first Put until all free
// lists are empty.
var sweepScheduled atomic.Bool

// sweep releases the buffers that were not used since the last sweep, and schedules the next one if
// buffers remain.
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
