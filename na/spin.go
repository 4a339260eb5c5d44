package na

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

// A spinner decides how the leader of a context waits: asleep, or polling for a while first, which
// answers sooner where a processor is free for it. It does not compare the two: how long a wait
// takes says how the peer waits, and two sides that measure each other send each other to sleep. It
// gives polling up for two reasons only: nothing came, three times in a row, until something comes
// soon after a sleep began; or somebody else needs this processor and nothing comes of letting him,
// for a while that grows. The goroutine that leads uses it.
type spinner struct {
	limit  time.Duration // 0: always asleep
	procs  int           // that goroutines run on, as of a few waits ago
	waits  uint          // since then
	misses int           // spins in a row in which nothing came
	vain   time.Duration // of the spin that a timer has interrupted: the next one goes on with it
	looks  uint

	// The processor is given to others now and then. How long that takes says whether anybody needs
	// it.
	give    func()        // yieldProcessor
	yields  int           // looks from one yield to the next
	since   int           // looks since the last one
	crowded uint64        // the last 64 yields: 1 for one that took long and after which nothing came
	again   time.Duration // not to poll before
	pause   time.Duration // that this was the last time
}

// The ways to wait.
const (
	asleep = iota
	awake
)

const (
	// spinMisses is how many spins in vain are made in a row.
	spinMisses = 3
	// spinYield looks are made before the clock is read, and at least as many from one yield to the
	// next; spinYields at most, where nobody needs the processor.
	spinYield, spinYields = 8, 256
	// yieldLong is how long a yield takes in which somebody else has run; yieldHog in which that
	// was somebody who computes.
	yieldLong, yieldHog = 1500 * time.Nanosecond, 100 * time.Microsecond
	// hotLooks is how many looks at the inlets and the descriptor that was readable last are made
	// for one at all of them; inletLooks where there are inlets.
	hotLooks, inletLooks = 4, 64
	// The bounds of spinner.pause. It grows when polling went well for less than so many times what
	// it has cost in the end.
	pauseFirst, pauseLast = 2 * time.Millisecond, time.Second
	usefulFor             = 4
	// spinProcs waits are made before the number of processors is looked at again.
	spinProcs = 1024
)

// How a spin ended.
type spinResult int

const (
	spinNone spinResult = iota // it did not begin: so many others spin that no processor would be left
	spinCame                   // something is ready, or may be
	spinVain                   // nothing came for as long as the spinner polls
	// Poll is due, which says nothing of peers: neither that one answers nor that none does
	spinDue
)

// spinning is how many goroutines of this process spin. One processor is left to those that do not.
var spinning atomic.Int32

func newSpinner(limit time.Duration) spinner {
	return spinner{limit: max(limit, 0), pause: pauseFirst, again: -time.Hour, give: yieldProcessor}
}

// choose returns the way to wait from now on; learn follows.
func (s *spinner) choose(now time.Duration) int {
	if s.waits++; s.procs == 0 || s.waits >= spinProcs {
		s.procs, s.waits = runtime.GOMAXPROCS(0), 0 // it follows the limits of the process's control group
	}
	if s.limit == 0 || s.procs == 1 || s.misses >= spinMisses || now < s.again {
		return asleep
	}
	return awake
}

// learn is told how long a wait took, which way it was, for choose may have been overruled, and
// whether anything came at its end: it may only have become time.
func (s *spinner) learn(way int, d time.Duration, came bool) {
	switch {
	case way == awake && came:
		s.misses, s.vain = 0, 0
	case way == awake:
		s.vain = 0
		s.misses++
	case came && d < s.limit && s.misses > 0:
		s.misses--
	}
}

// yield gives the processor to others, if it is time for that, and returns how long they used it; 0
// if not at all.
func (s *spinner) yield(now func() time.Duration) (took time.Duration) {
	if s.since += spinYield; s.since < s.yields {
		return 0
	}
	s.since = 0
	begun := now()
	s.give()
	took = now() - begun
	if s.crowded <<= 1; took > yieldLong {
		s.yields = spinYield
		return took
	}
	s.yields = min(s.yields+spinYield, spinYields)
	return 0
}

// yielded notes that nothing came right after a yield in which others ran for so long, and reports
// whether to give polling up: because most yields are like that, or because whoever ran is not the
// peer, who does not take so long to answer.
func (s *spinner) yielded(now, took time.Duration) (giveUp bool) {
	s.crowded |= 1
	if bits.OnesCount64(s.crowded) <= 32 && took < yieldHog {
		return false
	}
	// else it was hardly worth it
	if s.pause = min(2*s.pause, pauseLast); now-s.again > usefulFor*max(took, yieldHog) {
		s.pause = pauseFirst
	}
	s.crowded, s.again = 0, now+s.pause
	return true
}

// spin polls from now on until something is ready, for as long as pays and no longer than wait
// (negative: no limit). It returns when it ended if that was for lack of time.
func (c *Context) spin(now, wait time.Duration, w pollWaiter) (end time.Duration, how spinResult) {
	s := &c.spinner
	defer spinning.Add(-1)
	if int(spinning.Add(1)) >= s.procs {
		return now, spinNone
	}
	limit, how := s.limit-s.vain, spinVain
	if wait >= 0 && wait < limit {
		limit, how = wait, spinDue
	}
	s.since = 0 // an answer that comes at once needs none
	for took := time.Duration(0); ; took = s.yield(c.Now) {
		for range spinYield {
			if c.pollSpinning() || w.Stirred() || c.isReleasable() {
				if took >= yieldHog {
					s.yielded(c.Now(), took)
				}
				return 0, spinCame
			}
		}
		end = c.Now()
		switch {
		case took > 0 && s.yielded(end, took):
			return end, spinVain
		case end-now >= limit:
		case c.nudged.Load(): // earlier than it said
			how = spinDue
		default:
			continue
		}
		if how == spinDue {
			s.vain += end - now
		}
		return end, how
	}
}
