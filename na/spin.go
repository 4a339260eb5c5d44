package na

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

// A spinner decides how the leader of a context waits: by sleeping in the poller, or by polling for
// a while first. Polling has lower latency if a processor is free.
//
// It does not compare the times of the two ways: the time of a wait depends on how the peer waits,
// and two sides that measure each other would both end up asleep. It stops polling for two reasons
// only:
//   - nothing arrived while polling, three times in a row; until something arrives soon after a sleep
//     began
//   - another thread needs this processor, and nothing arrived after it ran; for a pause that grows
//
// Only the leader uses it.
type spinner struct {
	limit  time.Duration // 0: always asleep
	procs  int           // GOMAXPROCS, as of at most spinProcs waits ago
	waits  uint          // waits since procs was read
	misses int           // spins in a row in which nothing arrived
	vain   time.Duration // duration of a spin that a timer has interrupted, by which the next spin is shorter
	looks  uint

	// The spinner yields the processor periodically. The duration of a yield shows whether another
	// thread needs it.
	give    func()        // yieldProcessor, or that of a test
	yields  int           // polls from one yield to the next
	since   int           // polls since the last yield
	crowded uint64        // the last 64 yields: 1 for one that took long and after which nothing arrived
	again   time.Duration // do not poll before this time
	pause   time.Duration // how long polling was stopped last
}

// The ways to wait.
const (
	asleep = iota
	awake
)

const (
	// spinMisses is the number of unsuccessful spins in a row after which the leader sleeps.
	spinMisses = 3
	// spinYield polls are made before the clock is read. Between two yields there are at least as
	// many, and up to spinYields where no other thread needs the processor.
	spinYield, spinYields = 8, 256
	// A yield that takes yieldLong has let another thread run; one that takes yieldHog, a thread
	// that computes.
	yieldLong, yieldHog = 1500 * time.Nanosecond, 100 * time.Microsecond
	// hotLooks is how many polls of the inlets, and of the descriptor that was readable last, are
	// made for one of all descriptors; inletLooks where there are inlets.
	hotLooks, inletLooks = 4, 64
	// pauseFirst and pauseLast are the limits of spinner.pause. It grows if polling was useful for
	// less than usefulFor times its cost.
	pauseFirst, pauseLast = 2 * time.Millisecond, time.Second
	usefulFor             = 4
	// spinProcs is how many waits pass before GOMAXPROCS is read again.
	spinProcs = 1024
)

// A spinResult is how a spin ended.
type spinResult int

const (
	spinNone spinResult = iota // not started: other goroutines spin on all processors but one
	spinCame                   // something is ready, or may be
	spinVain                   // nothing arrived during the spin
	// a Poll is due, which gives no information about the peer
	spinDue
)

// spinning counts the goroutines of this process that spin. At least one processor does not spin.
var spinning atomic.Int32

func newSpinner(limit time.Duration) spinner {
	return spinner{limit: max(limit, 0), pause: pauseFirst, again: -time.Hour, give: yieldProcessor}
}

// choose returns the way to wait now; the caller reports the result to learn.
func (s *spinner) choose(now time.Duration) int {
	if s.waits++; s.procs == 0 || s.waits >= spinProcs {
		s.procs, s.waits = runtime.GOMAXPROCS(0), 0 // it changes with the limits of the control group (Go 1.25)
	}
	if s.limit == 0 || s.procs == 1 || s.misses >= spinMisses || now < s.again {
		return asleep
	}
	return awake
}

// learn records a wait of d. way is the way that was used: the leader may have slept although
// choose returned awake. came reports whether anything arrived; otherwise only the time passed.
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

// yield yields the processor if that is due, and returns how long other threads have used it, or 0.
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

// yielded records that nothing arrived right after a yield of length took, and reports whether to
// stop polling. It does if most yields were unsuccessful, or if took is too long for the other
// thread to have been the peer.
func (s *spinner) yielded(now, took time.Duration) (giveUp bool) {
	s.crowded |= 1
	if bits.OnesCount64(s.crowded) <= 32 && took < yieldHog {
		return false
	}
	// The pause doubles, unless polling was useful for long enough.
	if s.pause = min(2*s.pause, pauseLast); now-s.again > usefulFor*max(took, yieldHog) {
		s.pause = pauseFirst
	}
	s.crowded, s.again = 0, now+s.pause
	return true
}

// spin polls until something is ready, for at most the limit of the spinner and wait (negative: no
// limit). end is the time at its end if it ended because its time was over.
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
	s.since = 0 // no yield for an answer that arrives at once
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
		case c.nudged.Load(): // a timer was set that is due earlier
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
