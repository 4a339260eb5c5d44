package arq

import "time"

// clock returns the timestamp for a time. Timestamps are in microseconds and wrap after 71 minutes.
func clock(now time.Duration) uint32 { return uint32(now / time.Microsecond) }

// noteTimestamp records the timestamp in p, so that it is echoed to the peer.
func (a *Assoc) noteTimestamp(now time.Duration, p *Packet) {
	if f := a.takeFlight(); !f.tsSet || !before(p.ts, f.ts) {
		f.ts, f.tsAt, f.tsSet = p.ts, now, true
	}
}

// sample updates the round-trip time from p, which echoes a timestamp of this side. A sample is the
// time since that timestamp, less the time for which the peer held it. The estimate is that of RFC
// 6298. With timestamps (RFC 7323) samples are correct even for retransmitted packets. sample
// ignores an echo that is not newer than the last one.
func (a *Assoc) sample(now time.Duration, p *Packet) {
	f := a.takeFlight()
	if p.flags&flagEcho == 0 || f.echoed && !before(f.lastEcho, p.echo) {
		return
	}
	rtt := int64(int32(clock(now)-p.echo)) - 8*int64(p.delay)
	if rtt < 0 || rtt > 60e6 { // the packet is forged, or the peer's clock runs faster
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

// rtt returns the smoothed round-trip time, or 0 if it is not known.
func (a *Assoc) rtt() time.Duration { return time.Duration(a.srtt) * time.Microsecond }

const (
	granularity   = time.Millisecond       // granularity of timers and scheduling
	minReordering = 200 * time.Microsecond // minimum time to wait for reordered packets
)

// rto returns the retransmission timeout without backoff.
func (a *Assoc) rto() time.Duration { return max(a.probeTimeout(), a.m.cfg.MinRTO) }

// probeTimeout returns the longest time to expect for an answer on this path if the peer is not
// busy. It is the probe timeout of RFC 9002, Section 6.2.1.
func (a *Assoc) probeTimeout() time.Duration {
	c := &a.m.cfg
	if a.srtt == 0 {
		return c.InitialRTO
	}
	vary := max(4*time.Duration(a.rttvar)*time.Microsecond, granularity)
	return min(a.rtt()+vary+ackDelay, c.MaxRTO)
}

// timeout returns the current timeout for the lane of s. It doubles with each consecutive timeout,
// up to MaxRTO. With profile Modern the first two may be shorter than MinRTO, because expiry only
// causes a probe, and only a probe detects a loss at the end of a burst.
func (a *Assoc) timeout(s *sender) time.Duration {
	tries, c := s.tries, &a.m.cfg
	if c.Profile == Modern {
		switch first := a.probeTimeout(); tries {
		case 0:
			return first
		case 1:
			return max(first, min(2*first, c.MinRTO))
		}
		tries--
	}
	return min(a.rto()<<min(tries, 16), c.MaxRTO)
}

// onTimeout handles expiry of the timer of lane i. A timeout does not prove a loss, because the
// peer may be busy. For that reason onTimeout only schedules probes: the oldest unacknowledged
// packet and, if random loss is likely, the last packet. The peer's answer shows which packets are
// missing.
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
	if s.early { // the wait for reordered packets has expired; this is not a timeout
		s.early = false
		s.due = now + a.timeout(s)
		switch {
		case a.selective:
			a.detect(now, i)
			a.arm(now, i)
		case !before(l.una, s.recover) && a.allInFlight(i):
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
	// RFC 9002, Section 6.2.4: two probes are less likely to be lost than one.
	s.tail = a.selective && !a.local && !a.isInquiring(i)
	s.due = now + a.timeout(s)
	if s.tries == 3 { // three consecutive timeouts suggest that the path has changed
		a.cwnd, a.slowStart = minWindow, true
		a.blackHole()
	}
}
