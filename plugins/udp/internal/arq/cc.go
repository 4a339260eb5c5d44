package arq

import "time"

// congestion adapts the congestion window. It is driven by delay, because random loss is no sign
// of a queue. Once per round trip it compares the least recent round trip with the least one
// ever; the difference is the time in queues, and from it follow the bytes of this association that
// are queued. The window grows while those are few and shrinks when they are many, as in TCP Vegas
// (Brakmo and Peterson, 1995). It is reduced at once only if much is lost.
type congestion struct {
	// the least round trip of this period; at its end it replaces Assoc.least, so that a changed
	// route is noticed
	least       time.Duration
	periodAt    time.Duration // when the period began
	round       time.Duration // the least sample since roundAt
	roundAt     time.Duration // when the window was adapted last
	acked, lost int           // bytes since roundAt
	full        bool          // the window has held back a packet since roundAt
	paced       bool          // pacing has held back a packet
	nextAt      time.Duration // when pacing allows the next packet
}

const (
	firstWindow = 32 * BaseSize
	minWindow   = 4 * BaseSize
	maxWindow   = 64 << 20
	fewQueued   = 4 * BaseSize // with fewer queued bytes the window grows
	manyQueued  = 6 * BaseSize // with more queued bytes it shrinks
	// noise is the difference between round trips that scheduling causes, and no queue.
	noise = time.Millisecond
	// burst is how far ahead of the pace an association may send, because timers are no finer.
	burst     = time.Millisecond
	minPeriod = 10 * time.Second
)

// hasWindow reports whether a has a congestion window. There is none within the machine, and none
// in profile Seed.
func (a *Assoc) hasWindow() bool { return !a.local && a.m.cfg.Profile == Modern }

// maySend reports whether the congestion window and pacing allow one more packet now.
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

// pacedUntil returns when pacing allows the next packet, 0 if it has not held one back.
func (a *Assoc) pacedUntil(now time.Duration) time.Duration {
	if c := &a.flight.cc; c.paced {
		return max(c.nextAt-burst, now+1)
	}
	return 0
}

// pace delays the next packet, after n bytes were sent, so that the window is spread over a round
// trip. The gain of 5/4, or 2 in slow start, lets the window limit the rate (RFC 9002 7.7).
func (c *congestion) pace(a *Assoc, now time.Duration, n int) {
	if !a.hasWindow() || a.srtt == 0 {
		return
	}
	gain := 5 // quarters
	if a.slowStart {
		gain = 8
	}
	c.nextAt = max(c.nextAt, now) + time.Duration(n)*a.rtt()*4/time.Duration(gain*int(a.cwnd))
}

// sample updates the minima with a sample of the round-trip time.
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

// round adapts the window, once per round trip.
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
	// Without a queue only loss beyond that of a bad path cuts the window; with one, a tenth is
	// enough.
	case lost > 35 && c.lost >= minWindow, lost > 10 && queued > 0:
		a.slowStart = false
		w = w * 7 / 10
	case queued > manyQueued:
		a.slowStart = false
		w -= max(BaseSize, (queued-manyQueued)/2)
	case !c.full: // the window did not limit sending, so nothing is known about a larger one
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
