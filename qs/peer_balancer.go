package qs

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Balancer chooses the address for each attempt of a call. Pick returns an index into ts, which
// is not empty, or -1 if it makes no choice. In the latter case the address that failed least
// recently is used. c is nil if Pick is called by Peer.Addr.
//
// Pick is called with a lock held. It must return quickly, must not call this package, and must not
// retain c or ts.
type Balancer interface {
	Pick(c *Call, ts []Candidate) int
}

// A Candidate is an address of a Peer as presented to a Balancer.
type Candidate struct {
	Addr      hg.Addr
	InFlight  int   // number of this Peer's attempts in flight
	LentBytes int64 // number of bytes in the Sources and Sinks of these attempts
	// Latency is a moving average of the duration of recent attempts. It is halved for each second
	// without an attempt. It is 0 before the first attempt completes.
	Latency time.Duration
	Failing bool // the address has failed or was already tried by the call; others should be preferred
}

// inOrder is a Balancer that chooses the first healthy address.
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

// RoundRobin returns a Balancer that chooses the healthy addresses in turn.
func RoundRobin() Balancer { return &roundRobin{} }

// A roundRobin is the Balancer returned by RoundRobin.
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

// LeastLoaded returns a Balancer that chooses the address with the fewest calls of this Peer in
// flight. Each MiB in the Sources and Sinks of these calls counts as one more call. If an address
// has more than twice the latency of others, its calls count up to four times, and it counts as
// having at least one call. Ties are broken at random. The latency is an average over recent calls
// of all methods, in which a stream counts as one call. A single slow call can therefore divert
// other calls for a few seconds.
func LeastLoaded() Balancer { return leastLoaded{} }

// leastLoaded is the Balancer returned by LeastLoaded.
type leastLoaded struct{}

// Pick implements Balancer.
func (leastLoaded) Pick(c *Call, ts []Candidate) int {
	var slowest time.Duration
	for i := range ts {
		if !ts[i].Failing {
			slowest = max(slowest, ts[i].Latency)
		}
	}
	// An address without a measured latency is assumed to have a quarter of the slowest latency.
	weight := func(t *Candidate) float64 {
		return float64(t.load()+1<<20) * float64(max(t.Latency,
			slowest/4, 1))
	}
	// Find the address with the least weight.
	best := -1
	for i := range ts {
		if !ts[i].Failing && (best < 0 || weight(&ts[i]) < weight(&ts[best])) {
			best = i
		}
	}
	if best < 0 || c == nil {
		return best
	}
	least := ts[best] // least loaded of the candidates with similar latency
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

// load returns the load of an address, in bytes. Each call in flight counts as 1 MiB.
func (t *Candidate) load() int64 { return int64(t.InFlight)<<20 + t.LentBytes }

// countHealthy returns the number of healthy addresses in ts.
func countHealthy(ts []Candidate) (n int) {
	for i := range ts {
		if !ts[i].Failing {
			n++
		}
	}
	return n
}

// nthHealthy returns the index in ts of the n-th healthy address. n counts from 0.
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
