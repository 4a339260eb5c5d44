package arq

import "time"

// congestion keeps the window of bytes under way. It goes by delay: packets that are lost at random say nothing about a queue.
// Once for each round trip it compares the least round trip of late with the least that was ever seen; what lies between is
// packets of ours, or others', in a queue. The window grows while those of ours are few and shrinks when they are many, as TCP
// Vegas does (Brakmo and Peterson, 1995); it is cut only when much is lost.
type congestion struct {
	least       time.Duration // of this period: when it is over it stands for all, so that a changed route is noticed
	periodAt    time.Duration
	round       time.Duration // the least of this round trip
	roundAt     time.Duration
	acked, lost int  // bytes in this round trip
	full        bool // the window has held something back in this round trip
	waits       bool // pacing has
	nextAt      time.Duration
}

const (
	firstWindow = 32 * BaseSize
	leastWindow = 4 * BaseSize
	mostWindow  = 64 << 20
	fewQueued   = 4 * BaseSize // below: grow
	manyQueued  = 6 * BaseSize // above: shrink
	// noise is the difference between round trips that is nobody's queue: processes are scheduled.
	noise = time.Millisecond
	// burst is how far ahead of its pace an association sends, because timers are no finer.
	burst       = time.Millisecond
	leastPeriod = 10 * time.Second
)

// hasWindow reports whether a has a window at all.
func (a *Assoc) hasWindow() bool { return !a.local && a.m.cfg.Profile == Modern }

// maySend reports whether one more packet may be sent now.
func (a *Assoc) maySend(now time.Duration) bool {
	f := a.flight
	if !a.hasWindow() || f.flying == 0 {
		return true
	}
	if f.flying >= int(a.cwnd) {
		f.cc.full = true
		return false
	}
	f.cc.waits = f.cc.nextAt > now+burst
	return !f.cc.waits
}

// pacedUntil returns when pacing lets the next packet go, if it has held one back.
func (a *Assoc) pacedUntil(now time.Duration) time.Duration {
	if c := &a.flight.cc; c.waits {
		return max(c.nextAt-burst, now+1)
	}
	return 0
}

// pace notes that n bytes were sent.
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
	if less(&base); now-c.periodAt > leastPeriod {
		base, c.least, c.periodAt = c.least, c.round, now
	}
	a.least = uint32(base / time.Microsecond)
}

// round adapts the window, once for each round trip.
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
	// Loss alone counts when it is more than a bad path has by itself; with a queue that fills, a tenth is enough.
	case lost > 35 && c.lost >= leastWindow, lost > 10 && queued > 0:
		a.slowStart = false
		w = w * 7 / 10
	case queued > manyQueued:
		a.slowStart = false
		w -= max(BaseSize, (queued-manyQueued)/2)
	case !c.full: // it was not the window that limited what was sent: it has not been tried
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
	a.cwnd = uint32(min(max(w, leastWindow), mostWindow))
	c.acked, c.lost, c.round, c.full, c.roundAt = 0, 0, 0, false, now
}
