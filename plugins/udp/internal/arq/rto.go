package arq

import "time"

// clock is the time as packets carry it: us, which wraps after 71 minutes.
func clock(now time.Duration) uint32 { return uint32(now / time.Microsecond) }

// heardClock remembers the peer's clock, to be sent back.
func (a *Assoc) heardClock(now time.Duration, p *Packet) {
	if f := a.takeFlight(); !f.tsSet || !before(p.ts, f.ts) {
		f.ts, f.tsAt, f.tsSet = p.ts, now, true
	}
}

// sample measures the round trip by a clock of ours that came back, less how long the peer kept it: RFC 6298, with the
// timestamps of RFC 7323, so that a packet sent twice does no harm. A clock that came back before says nothing new.
func (a *Assoc) sample(now time.Duration, p *Packet) {
	f := a.takeFlight()
	if p.flags&flagEcho == 0 || f.echoed && !before(f.lastEcho, p.echo) {
		return
	}
	rtt := int64(int32(clock(now)-p.echo)) - 8*int64(p.delay)
	if rtt < 0 || rtt > 60e6 { // forged, or the peer's clock runs faster than ours
		return
	}
	f.lastEcho, f.echoed, f.latest = p.echo, true, time.Duration(rtt)*time.Microsecond
	f.cc.sample(a, f.latest, now)
	if a.srtt == 0 {
		a.srtt, a.rttvar = uint32(max(rtt, 1)), uint32(rtt/2)
		return
	}
	diff := rtt - int64(a.srtt)
	a.srtt = uint32(max(1, int64(a.srtt)+diff/8))
	a.rttvar = uint32(int64(a.rttvar) + (max(diff, -diff)-int64(a.rttvar))/4)
}

// rtt is the smoothed round trip; 0: not known.
func (a *Assoc) rtt() time.Duration { return time.Duration(a.srtt) * time.Microsecond }

const (
	granularity     = time.Millisecond       // of timers, and of how processes are scheduled
	leastReordering = 200 * time.Microsecond // packets arrive later by that which others have overtaken
)

// rto is the timeout without backoff.
func (a *Assoc) rto() time.Duration { return max(a.patience(), a.m.cfg.MinRTO) }

// patience is how long an answer takes on this path that is not lost, if the peer is not busy.
func (a *Assoc) patience() time.Duration {
	c := &a.m.cfg
	if a.srtt == 0 {
		return c.InitialRTO
	}
	vary := max(4*time.Duration(a.rttvar)*time.Microsecond, granularity)
	return min(a.rtt()+vary+ackDelay, c.MaxRTO)
}

// timeout is the timeout of a lane: doubled for each that has expired in a row, up to MaxRTO. All that an expired timer does is ask, and
// nothing else tells of a loss at the end of a burst: Modern does not wait for MinRTO with the first two questions.
func (a *Assoc) timeout(s *sender) time.Duration {
	tries, c := s.tries, &a.m.cfg
	if c.Profile == Modern {
		switch first := a.patience(); tries {
		case 0:
			return first
		case 1:
			return max(first, min(2*first, c.MinRTO))
		}
		tries--
	}
	return min(a.rto()<<min(tries, 16), c.MaxRTO)
}

// onTimeout runs the timer of lane i, which is that of its left edge. It proves nothing: the peer may be busy. So it only sends
// the left edge again, and the last packet where packets are lost at random, and the answer says what is missing.
func (a *Assoc) onTimeout(now time.Duration, i int) {
	f := a.flight
	s, l := &f.send[i], &a.lane[i]
	if s.due == 0 || now < s.due {
		return
	}
	if l.una == s.high {
		s.due = 0
		return
	}
	if s.early { // set by soon: time for overtaken packets to arrive is over, and no answer was asked for
		s.early = false
		s.due = now + a.timeout(s)
		switch {
		case a.selective:
			a.detect(now, i)
			a.arm(now, i)
		case !before(l.una, s.recover) && a.isAcked(i):
			a.goBack(i)
		}
		return
	}
	s.tries++
	a.m.stats.Timeouts++
	if a.tooMany(s.tries) {
		a.endSilent(false)
		return
	}
	s.probe, s.since = true, now
	s.tail = a.selective && !a.local && !a.isInquiring(i) // RFC 9002 6.2.4: one of two is lost less often than one
	s.due = now + a.timeout(s)
	if s.tries == 3 { // once proves nothing; by now the path is not what it was
		a.cwnd, a.slowStart = leastWindow, true
		a.blackHole()
	}
}
