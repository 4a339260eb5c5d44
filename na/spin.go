package na

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A spinner decides how the leader of a context waits: asleep, or polling for a while first, which answers sooner where
// a processor is free for it, and later where the peer needs that very processor. So it measures both ways and takes the
// better, and tries the other one again now and then. Where nothing comes while it polls it sleeps, until something
// comes soon after a sleep began. The goroutine that leads uses it.
type spinner struct {
	limit  time.Duration    // 0: always asleep
	procs  int              // that goroutines run on, as of a few waits ago
	waits  uint             // since then
	cost   [2]time.Duration // moving median of how long a wait took: asleep, awake
	misses int              // spins in a row in which nothing came
	turns  int              // waits until the other way is tried
	gap    int              // turns from one trial to the next: the longer the more often it confirmed the choice
	best   int              // the way that is taken when nothing is tried
	looks  uint
}

// The ways to wait.
const (
	asleep = iota
	awake
)

const (
	// spinMisses is how many spins in vain are made in a row.
	spinMisses = 3
	// spinYield looks are made before other goroutines get the processor and the clock is read.
	spinYield = 8
	// hotLooks is how many looks at the sources and the descriptor that was readable last are made for one at all of them.
	hotLooks = 4
	// The bounds of spinner.gap.
	spinGapFirst, spinGapLast = 16, 1024
	// spinProcs waits are made before the number of processors is looked at again.
	spinProcs = 1024
	// spinLong is a wait that tells nothing: nobody was about to answer.
	spinLong = time.Millisecond
)

// spinning is how many goroutines of this process spin. One processor is left to those that do not.
var spinning atomic.Int32

func newSpinner(limit time.Duration) spinner {
	return spinner{limit: max(limit, 0), best: awake, gap: spinGapFirst, turns: spinGapFirst}
}

// choose returns the way to wait this time; learn follows.
func (s *spinner) choose() int {
	if s.waits++; s.procs == 0 || s.waits >= spinProcs {
		s.procs, s.waits = runtime.GOMAXPROCS(0), 0 // it follows the limits of the process's control group
	}
	if s.limit == 0 || s.procs == 1 || s.misses >= spinMisses {
		return asleep
	}
	best := awake
	if s.cost[asleep] != 0 && s.cost[asleep] < s.cost[awake] {
		best = asleep
	}
	if best != s.best {
		s.best, s.gap, s.turns = best, spinGapFirst, spinGapFirst
	}
	if s.turns--; s.turns > 0 {
		return best
	}
	s.gap = min(2*s.gap, spinGapLast)
	s.turns = s.gap
	return 1 - best
}

// learn is told how long a wait took, and which way it was: choose may have been overruled.
func (s *spinner) learn(way int, d time.Duration) {
	if s.limit == 0 {
		return
	}
	switch {
	case way == awake && d < s.limit:
		s.misses = 0
	case way == awake:
		s.misses++
	case d < s.limit && s.misses > 0:
		s.misses--
	}
	if d >= spinLong {
		return
	}
	step := s.cost[way] / 16
	if way != s.best { // tried once in a while only
		step = s.cost[way] / 4
	}
	switch {
	case s.cost[way] == 0:
		s.cost[way] = d
	case d > s.cost[way]:
		s.cost[way] += step + 1
	default:
		s.cost[way] -= step
	}
}

// spin polls until something is ready, for as long as pays and less than wait (negative: no limit), and reports whether
// something is. It does not when so many others do that no processor would be left.
func (c *Context) spin(now, wait time.Duration, ready func() bool) (spun, came bool) {
	limit := c.spinner.limit
	if wait >= 0 && wait < limit {
		return false, false
	}
	defer spinning.Add(-1)
	if int(spinning.Add(1)) >= c.spinner.procs {
		return false, false
	}
	for end := now + limit; ; {
		for range spinYield {
			if c.glance() || ready() || c.releasable() {
				return true, true
			}
		}
		if c.Now() >= end {
			return true, false
		}
	}
}
