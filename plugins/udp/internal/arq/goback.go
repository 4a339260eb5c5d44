package arq

import "time"

// What follows is for lanes on which the peer drops what comes out of order: those of Seed.

// isAcked reports whether everything is under way on lane i that was sent before.
func (a *Assoc) isAcked(i int) bool {
	s := &a.flight.send[i]
	return s.snd == s.high
}

// goBackAfter finds out what is lost, after an acknowledgment of a peer that drops what comes out of order. An expired timer ends here, when the peer has received a
// packet that was sent when it expired: what was sent before that, and is not acknowledged, is lost.
func (a *Assoc) goBackAfter(now time.Duration, p *Packet, advanced, answered bool) {
	i := p.lane()
	s, l := &a.flight.send[i], &a.lane[i]
	// Only then: a peer that answers without getting on is not to keep the timer from running out.
	if advanced {
		s.due, s.tries, s.early, s.probe = 0, 0, false, false
		if l.una != s.high {
			s.due = now + a.timeout(s)
		}
	}
	if p.kind == kindAck && p.flags&flagGap != 0 {
		a.onGap(now, i, p)
	}
	if answered && l.una != s.high && s.at(l.una).sent < s.probed && (a.isAcked(i) || a.isInquiring(i)) {
		a.goBack(i)
	}
}

// goBack sends everything that is under way on lane i once more, from the left edge: go-back-n, as in U-Net (von Eicken and others, 1995).
// The receiver has dropped what came behind the gap. Until recover is acknowledged, reports of gaps are about what was sent before.
func (a *Assoc) goBack(i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	a.m.stats.GoneBack++
	for seq := l.una; seq != s.high; seq++ {
		a.unfly(s.at(seq), true)
	}
	s.snd, s.recover = l.una, s.high
}

// onGap handles the peer's word that packets are missing.
func (a *Assoc) onGap(now time.Duration, i int, p *Packet) {
	s, l := &a.flight.send[i], &a.lane[i]
	if p.ack != l.una || l.una == s.high || !before(l.una, p.seq) || !before(p.seq, s.high) {
		return // late, or about what was never sent
	}
	edge := s.at(l.una)
	// The packet that made the peer report was sent after the last repetition of the left edge: that is lost, too.
	again := p.flags&flagEcho != 0 && before(clock(edge.sent+a.reordering()), p.echo)
	switch {
	case before(l.una, s.recover) && !again: // a repeated report of the same loss
	case !a.isAcked(i): // going back already
	case int(p.seq-l.una) >= a.m.cfg.DupAcks:
		a.goBack(i)
	default: // few have come behind it: it may only have been overtaken
		a.soon(now, s, edge)
	}
}

// soon makes the timer look soon at packet p, which is missing or late.
func (a *Assoc) soon(now time.Duration, s *sender, p *packet) {
	if at := max(now, p.sent+a.rtt()+a.reordering()); at < s.due && !s.early {
		s.due, s.early = at, true
	}
}

// reordering is how much later packets arrive that others have overtaken.
func (a *Assoc) reordering() time.Duration { return max(a.rtt()/4, leastReordering) }
