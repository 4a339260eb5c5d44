package arq

import "time"

// congestion adapts the congestion window. It is driven by delay, because random loss does not
// indicate a queue. Once per round trip it compares the recent minimum round-trip time with the
// overall minimum. The difference is the queueing delay, from which it derives the number of this
// association's bytes in queues. The window grows while that number is small and shrinks when it is
// large, as in TCP Vegas (Brakmo and Peterson, 1995). It is reduced immediately only if many
// packets are lost.
type congestion struct {
	// least is the minimum round-trip time in this period. At the end of the period it replaces
	// Assoc.least, so that route changes are noticed.
	least       time.Duration
	periodAt    time.Duration // time at which the period began
	round       time.Duration // minimum sample since roundAt
	roundAt     time.Duration // time at which the window was last adapted
	acked, lost int           // bytes acknowledged and lost since roundAt
	full        bool          // whether the window has held back a packet since roundAt
	paced       bool          // whether pacing has held back a packet
	nextAt      time.Duration // time at which pacing permits the next packet
}

const (
	firstWindow = 32 * BaseSize
	minWindow   = 4 * BaseSize
	maxWindow   = 64 << 20
	fewQueued   = 4 * BaseSize // with fewer queued bytes the window grows
	manyQueued  = 6 * BaseSize // with more queued bytes the window shrinks
	// noise is the difference between round-trip times that scheduling, rather than a queue, may
	// cause.
	noise = time.Millisecond
	// burst is how far ahead of the pace an association may send. It is the resolution of timers.
	burst     = time.Millisecond
	minPeriod = 10 * time.Second
)

// hasWindow reports whether a has a congestion window. It does not if the peer is on the same host
// or the profile is Seed.
func (a *Assoc) hasWindow() bool { return !a.local && a.m.cfg.Profile == Modern }

// maySend reports whether the congestion window and pacing currently permit another packet.
func (a *Assoc) maySend(now time.Duration) bool {
	f := a.flight
	if !a.hasWindow() || f.flying == 0 {
		return true
	}
	if f.flying >= int(a.cwnd) {
		f.cc.full = true
		return false
	}
	f.cc.paced = f.cc.nextAt > now+burst
	return !f.cc.paced
}

// pacedUntil returns the time at which pacing permits the next packet, or 0 if no packet was held
// back.
func (a *Assoc) pacedUntil(now time.Duration) time.Duration {
	if c := &a.flight.cc; c.paced {
		return max(c.nextAt-burst, now+1)
	}
	return 0
}

// pace delays the next packet after n bytes were sent, so that the window is spread over a round
// trip. The gain of 5/4, or 2 in slow start, ensures that the window rather than the pace limits
// the rate (RFC 9002, Section 7.7).
func (c *congestion) pace(a *Assoc, now time.Duration, n int) {
	if !a.hasWindow() || a.srtt == 0 {
		return
	}
	gain := 5 // in quarters
	if a.slowStart {
		gain = 8
	}
	c.nextAt = max(c.nextAt, now) + time.Duration(n)*a.rtt()*4/time.Duration(gain*int(a.cwnd))
}

// sample updates the minimum round-trip times with a new sample.
func (c *congestion) sample(a *Assoc, rtt, now time.Duration) {
	less := func(v *time.Duration) {
		if *v == 0 || rtt < *v {
			*v = max(rtt, time.Microsecond)
		}
	}
	less(&c.round)
	less(&c.least)
	if c.periodAt == 0 {
		c.periodAt = now
	}
	base := time.Duration(a.least) * time.Microsecond
	if less(&base); now-c.periodAt > minPeriod {
		base, c.least, c.periodAt = c.least, c.round, now
	}
	a.least = uint32(base / time.Microsecond)
}

// round adapts the congestion window once per round trip. Additional calls have no effect.
func (a *Assoc) round(now time.Duration) {
	c := &a.flight.cc
	if !a.hasWindow() || now-c.roundAt < a.rtt() || c.round == 0 {
		return
	}
	w := int(a.cwnd)
	queued := 0
	if late := c.round - time.Duration(a.least)*time.Microsecond - noise; late > 0 {
		queued = int(int64(w) * int64(late) / int64(c.round))
	}
	lost := 100 * c.lost / max(1, c.lost+c.acked)
	switch {
	// Without a queue, only a loss rate above that of a bad path reduces the window. With a queue,
	// a tenth is enough.
	case lost > 35 && c.lost >= minWindow, lost > 10 && queued > 0:
		a.slowStart = false
		w = w * 7 / 10
	case queued > manyQueued:
		a.slowStart = false
		w -= max(BaseSize, (queued-manyQueued)/2)
	case !c.full: // the window did not limit sending, so it must not grow
	case a.slowStart && queued < fewQueued:
		w *= 2
	case queued == 0:
		w += max(BaseSize, w/16)
	case queued < fewQueued:
		a.slowStart = false
		w += BaseSize
	default:
		a.slowStart = false
	}
	a.cwnd = uint32(min(max(w, minWindow), maxWindow))
	c.acked, c.lost, c.round, c.full, c.roundAt = 0, 0, 0, false, now
}
