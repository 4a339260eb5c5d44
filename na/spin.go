package na

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

// A spinner decides how the leader of a context waits: by sleeping in the poller, or by first
// polling for a while. Polling has lower latency if a processor is free.
//
// The spinner does not base this decision on how long waits last, because that depends on how the
// peer waits: two peers that did so would both end up sleeping. It stops polling for only two
// reasons:
//   - Nothing arrived during polling, three times in a row. Polling resumes when something
//     arrives soon after a sleep began.
//   - Another thread needs this processor, and nothing arrived after that thread ran. Polling
//     stops for a pause that grows each time.
//
// A spinner is used only by the leader.
type spinner struct {
	limit  time.Duration // 0 means always asleep
	procs  int           // value of GOMAXPROCS, read again every spinProcs waits
	waits  uint          // number of waits since procs was read
	misses int           // number of consecutive spins during which nothing arrived
	vain   time.Duration // total duration of the last spins that a timer interrupted; it shortens the next spin
	looks  uint

	// The spinner yields the processor periodically. The duration of a yield indicates whether
	// another thread needs the processor.
	give    func()        // yieldProcessor or a test's replacement
	yields  int           // number of polls between two yields
	since   int           // number of polls since the last yield
	crowded uint64        // last 64 yields; a 1 bit is a yield that took long and after which nothing arrived
	again   time.Duration // time before which polling is disabled
	pause   time.Duration // duration of the last pause of polling
}

// Ways to wait.
const (
	asleep = iota
	awake
)

const (
	// spinMisses is the number of consecutive unsuccessful spins after which the leader sleeps.
	spinMisses = 3
	// spinYield is the number of polls before the clock is read, and the minimum number of polls
	// between two yields. If no other thread needs the processor, that number grows to spinYields.
	spinYield, spinYields = 8, 256
	// A yield that takes at least yieldLong has let another thread run. One that takes at least
	// yieldHog has let a thread run that was computing.
	yieldLong, yieldHog = 1500 * time.Nanosecond, 100 * time.Microsecond
	// hotLooks is the number of times that the most recently readable descriptor is polled for each
	// poll of all descriptors. If there are inlets, they are polled as well, and inletLooks is used
	// instead.
	hotLooks, inletLooks = 4, 64
	// pauseFirst and pauseLast are the minimum and the maximum of spinner.pause. The pause doubles if
	// the time for which polling was enabled was less than usefulFor times the duration of the yield
	// that ended it.
	pauseFirst, pauseLast = 2 * time.Millisecond, time.Second
	usefulFor             = 4
	// spinProcs is the number of waits after which GOMAXPROCS is read again.
	spinProcs = 1024
)

// A spinResult describes how a spin ended.
type spinResult int

const (
	spinNone spinResult = iota // not started, because other goroutines already spin on all processors but one
	spinCame                   // something is or may be ready
	spinVain                   // nothing arrived during the spin
	// a timer expired, or work for Poll appeared, before anything arrived
	spinDue
)

// spinning is the number of goroutines in this process that are spinning. It is kept below
// GOMAXPROCS, so that at least one processor is available to other goroutines.
var spinning atomic.Int32

func newSpinner(limit time.Duration) spinner {
	return spinner{limit: max(limit, 0), pause: pauseFirst, again: -time.Hour, give: yieldProcessor}
}

// choose returns asleep or awake, the way in which the leader must wait next. The leader must then
// report the outcome by calling learn.
func (s *spinner) choose(now time.Duration) int {
	if s.waits++; s.procs == 0 || s.waits >= spinProcs {
		s.procs, s.waits = runtime.GOMAXPROCS(0), 0 // it changes with the limits of the control group (Go 1.25)
	}
	if s.limit == 0 || s.procs == 1 || s.misses >= spinMisses || now < s.again {
		return asleep
	}
	return awake
}

// learn records the outcome of a wait that lasted d. way is the way in which the leader waited,
// which may be asleep even if choose returned awake. came reports whether anything arrived before
// the time expired.
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

// yield yields the processor if enough polls have been made since the last yield. It returns how
// long the yield took if another thread ran, and 0 otherwise.
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

// yielded records that nothing arrived right after a yield that let another thread run for the
// duration took. It reports whether the spinner must stop polling, which is the case if this
// happened after most of the last 64 yields, or if took is too long for the other thread to have
// been the peer.
func (s *spinner) yielded(now, took time.Duration) (giveUp bool) {
	s.crowded |= 1
	if bits.OnesCount64(s.crowded) <= 32 && took < yieldHog {
		return false
	}
	// The pause doubles unless polling was enabled for long enough since the last pause.
	if s.pause = min(2*s.pause, pauseLast); now-s.again > usefulFor*max(took, yieldHog) {
		s.pause = pauseFirst
	}
	s.crowded, s.again = 0, now+s.pause
	return true
}

// spin polls until something is ready, the spinner's limit has elapsed, or wait has elapsed. If
// wait is negative, only the spinner's limit applies. how reports why the spin ended, and end is
// the time at which it ended if nothing arrived.
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
	s.since = 0 // no yield for an answer that arrives immediately
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
		case c.nudged.Load(): // a timer that expires earlier has been set
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
