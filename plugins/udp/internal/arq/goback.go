package arq

import "time"

// This file implements go-back-n, for lanes on which the peer drops packets that arrive out of
// order. Those are the lanes of Seed.

// allInFlight reports whether every packet that lane i has ever sent is either acknowledged or in
// flight. It returns false while a go-back-n of the lane is in progress.
func (a *Assoc) allInFlight(i int) bool {
	s := &a.flight.send[i]
	return s.snd == s.high
}

// goBackAfter detects losses after the acknowledgment in p, which is from a peer that drops packets
// received out of order. advanced reports whether p acknowledges new packets. answered reports
// whether the peer has received a probe. If it has, every unacknowledged packet sent before the
// probe is lost.
func (a *Assoc) goBackAfter(now time.Duration, p *Packet, advanced, answered bool) {
	i := p.lane()
	s, l := &a.flight.send[i], &a.lane[i]
	// Only progress resets the timer. A peer that answers without making progress must not keep the
	// timer from expiring.
	if advanced {
		s.due, s.tries, s.early, s.probe = 0, 0, false, false
		if l.una != s.high {
			s.due = now + a.timeout(s)
		}
	}
	if p.kind == kindAck && p.flags&flagGap != 0 {
		a.onGap(now, i, p)
	}
	if answered && l.una != s.high && s.at(l.una).sent < s.probed && (a.allInFlight(i) || a.isInquiring(i)) {
		a.goBack(i)
	}
}

// goBack makes lane i retransmit all unacknowledged packets, starting with the oldest one
// (go-back-n, as in U-Net; von Eicken and others, 1995). The receiver has dropped the packets after
// the gap. Until all retransmitted packets, those before sender.recover, are acknowledged, reports
// of a gap may refer to the earlier transmission.
func (a *Assoc) goBack(i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	a.m.stats.GoneBack++
	for seq := l.una; seq != s.high; seq++ {
		a.unfly(s.at(seq), true)
	}
	s.snd, s.recover = l.una, s.high
}

// onGap handles p, an acknowledgment that reports a gap in the packets of lane i.
func (a *Assoc) onGap(now time.Duration, i int, p *Packet) {
	s, l := &a.flight.send[i], &a.lane[i]
	if p.ack != l.una || l.una == s.high || !before(l.una, p.seq) || !before(p.seq, s.high) {
		return // the report is late, or about packets that were never sent
	}
	edge := s.at(l.una)
	// If the packet that caused the report was sent after the last transmission of una, that
	// transmission is also lost.
	again := p.flags&flagEcho != 0 && before(clock(edge.sent+a.reordering()), p.echo)
	switch {
	case before(l.una, s.recover) && !again: // repeated report of the same loss
	case !a.allInFlight(i): // already going back
	case int(p.seq-l.una) >= a.m.cfg.DupAcks:
		a.goBack(i)
	default: // few later packets have arrived, so una may only be reordered
		a.soon(now, s, edge)
	}
}

// soon makes the timer of s expire earlier, at the time at which the missing packet p counts as
// lost rather than reordered.
func (a *Assoc) soon(now time.Duration, s *sender, p *packet) {
	if at := max(now, p.sent+a.rtt()+a.reordering()); at < s.due && !s.early {
		s.due, s.early = at, true
	}
}

// reordering returns the time to wait, after a later packet has arrived, before a missing packet
// counts as lost.
func (a *Assoc) reordering() time.Duration { return max(a.rtt()/4, minReordering) }
