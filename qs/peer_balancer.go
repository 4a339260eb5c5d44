package qs

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Balancer chooses the backend address of each attempt of a call. Pick returns an index of ts,
// which is not empty, or -1 to choose none. Then, and if all addresses fail, the address whose
// failure is oldest is used. c is nil for Peer.Addr.
//
// Pick is called with a lock held. It must be quick, must not call this package, and must not
// retain c or ts.
type Balancer interface {
	Pick(c *Call, ts []Candidate) int
}

// A Candidate is an address of a Peer, as a Balancer sees it.
type Candidate struct {
	Addr      hg.Addr
	InFlight  int   // number of this Peer's attempts in flight
	LentBytes int64 // bytes that these attempts lend
	// Latency is moving average of the last attempts; halved each second without one, and 0 before
	// the first.
	Latency time.Duration
	Failing bool // other addresses are preferable: this one fails, or the call has been there
}

// inOrder is the Balancer that takes the first address that does not fail.
type inOrder struct{}

// Pick implements Balancer.
func (inOrder) Pick(_ *Call, ts []Candidate) int {
	for i := range ts {
		if !ts[i].Failing {
			return i
		}
	}
	return -1
}

// RoundRobin returns a Balancer that takes the addresses in turn.
func RoundRobin() Balancer { return &roundRobin{} }

// A roundRobin is the Balancer of RoundRobin.
type roundRobin struct{ turn atomic.Uint64 }

// Pick implements Balancer.
func (r *roundRobin) Pick(c *Call, ts []Candidate) int {
	turn := r.turn.Load()
	if c != nil {
		turn = r.turn.Add(1) - 1
	}
	good := countHealthy(ts)
	if good == 0 {
		return -1
	}
	return nthHealthy(ts, int(turn%uint64(good)))
}

// LeastLoaded returns a Balancer that takes the address with the fewest calls of this Peer in
// flight; each MiB that they lend counts as one more. Calls to an address that is over twice as
// slow as others weigh up to four times as much, and an address without calls then counts as having
// one. Ties are broken at random. How slow an address is is a mean of the last calls of all
// methods, and of streams as a whole: one slow call keeps others away for some seconds.
func LeastLoaded() Balancer { return leastLoaded{} }

// leastLoaded is the Balancer of LeastLoaded.
type leastLoaded struct{}

// Pick implements Balancer.
func (leastLoaded) Pick(c *Call, ts []Candidate) int {
	var slowest time.Duration
	for i := range ts {
		if !ts[i].Failing {
			slowest = max(slowest, ts[i].Latency)
		}
	}
	// Slowest/4 for an address without a measured latency.
	weight := func(t *Candidate) float64 {
		return float64(t.load()+1<<20) * float64(max(t.Latency,
			slowest/4, 1))
	}
	// Index of the least weight.
	best := -1
	for i := range ts {
		if !ts[i].Failing && (best < 0 || weight(&ts[i]) < weight(&ts[best])) {
			best = i
		}
	}
	if best < 0 || c == nil {
		return best
	}
	least := ts[best] // the least load among addresses with a similar latency
	for i := range ts {
		if t := &ts[i]; !t.Failing && t.load() < least.load() && t.Latency <= 2*ts[best].Latency {
			least = *t
		}
	}
	equal := func(t *Candidate) bool {
		return !t.Failing && t.load() == least.load() &&
			t.Latency <= 2*max(least.Latency, ts[best].Latency)
	}
	n := uint64(0)
	for i := range ts {
		if equal(&ts[i]) {
			n++
		}
	}
	var b [8]byte
	if n > 1 {
		c.Peer.p.n.class.NA().Rand(b[:])
	}
	drawn := binary.LittleEndian.Uint64(b[:]) % n
	for i := range ts {
		if equal(&ts[i]) {
			if drawn == 0 {
				return i
			}
			drawn--
		}
	}
	return best
}

// load returns the load of an address: a call counts as much as a MiB lent.
func (t *Candidate) load() int64 { return int64(t.InFlight)<<20 + t.LentBytes }

// countHealthy returns the number of ts that do not fail.
func countHealthy(ts []Candidate) (n int) {
	for i := range ts {
		if !ts[i].Failing {
			n++
		}
	}
	return n
}

// nthHealthy returns the index of the n-th of ts that does not fail, counted from 0.
func nthHealthy(ts []Candidate, n int) int {
	for i := range ts {
		if !ts[i].Failing {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return -1
}
