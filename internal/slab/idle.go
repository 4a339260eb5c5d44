package slab

import (
	"sync/atomic"
	"time"
)

// pause is how long a buffer has to lie on its shelf before it is given back: at least this, and at most twice this.
const pause = time.Second

// looking is true while a timer runs that will call look: from the first Put until the shelves are empty.
var looking atomic.Bool

// look gives back what nobody has needed since the last look, and comes again while there is something left.
func look() {
	looking.Store(false)
	left := false
	for i := range shelves {
		idle, more := shelves[i].idle()
		for _, b := range idle {
			release(b)
		}
		left = left || more
	}
	if left && !looking.Swap(true) {
		time.AfterFunc(pause, look)
	}
}
