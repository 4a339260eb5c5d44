package qs

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Balancer chooses the address of each attempt of a call. Pick returns an index of ts, which is
// not empty, or -1 for no choice. In that case, and if all addresses fail, the address with the
// oldest failure is used. c is nil for Peer.Addr.
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
	LentBytes int64 // bytes in the Sources and Sinks of these attempts
	// Latency is a moving average over the last attempts. It is halved each second without an
	// attempt, and 0 before the first one.
	Latency time.Duration
	Failing bool // the address has failed, or the call has tried it: others are preferable
}

// inOrder is the Balancer that chooses the first healthy address.
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

// RoundRobin returns a Balancer that chooses the addresses in turn.
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

// LeastLoaded returns a Balancer that chooses the address with the fewest calls of this Peer in
// flight; each MiB in their Sources and Sinks counts as one more call. Calls to an address with
// more than twice the latency of others count up to four times, and such an address without calls
// counts as having one. Ties are broken at random. The latency is a mean over the last calls of all
// methods, a stream counting as one call. So one slow call diverts others for a few seconds.
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

// load returns the load of an address: a call counts as much as a MiB of its Sources and Sinks.
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

// nthHealthy returns the index of the n-th healthy address in ts, counted from 0.
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
