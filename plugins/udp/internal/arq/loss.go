package arq

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// A peer that takes packets out of order says which have come: bit i of the body of an ACK is packet ack+i. What it has is not sent again.
// Losses are found as in RFC 9002, section 6. There each transmission has a packet number of its own; here it has packet.order, which does
// not cross the wire, and the clock that the peer echoes tells by which of several transmissions a packet may have come.

// selected takes the selective part of an acknowledgment, and reports whether it says anything new.
func (a *Assoc) selected(p *Packet) (news bool) {
	i := p.lane()
	s, l := &a.flight.send[i], &a.lane[i]
	for w := 0; w < len(p.body); w += 8 {
		for word := binary.LittleEndian.Uint64(p.body[w:]); word != 0; word &= word - 1 {
			seq := p.ack + uint32(8*w+bits.TrailingZeros64(word))
			if before(seq, l.una) || s.at(seq).flags&pktAcked != 0 {
				continue
			}
			q := s.at(seq)
			a.ackOne(s, q, p)
			q.flags |= pktAcked
			s.sacked++
			news = true
			if a.release(i, seq); a.state == dead {
				return news
			}
		}
	}
	return news
}

// recover finds out what is lost, after an acknowledgment. news: it has acknowledged something. answered: a probe has arrived.
func (a *Assoc) recover(now time.Duration, i int, news, answered bool) {
	s := &a.flight.send[i]
	if answered {
		s.arrived(s.asked)
	}
	if news {
		s.tries, s.probe, s.tail, s.moved = 0, false, false, now
	}
	if news || answered {
		a.detect(now, i)
		a.arm(now, i)
	}
}

// arrived notes that the transmission with that order has come.
func (s *sender) arrived(order uint32) {
	if before(s.newest, order) {
		s.newest = order
	}
}

// detect finds the packets of lane i that are lost: those that were sent before a transmission that has come, three of them, or for longer
// than packets are overtaken. For the others of them it notes when that will be.
func (a *Assoc) detect(now time.Duration, i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	s.late = 0
	if l.una == s.high || s.sacked == 0 && !before(l.una, s.recover) && before(s.newest, s.at(l.una).order) {
		return // all that has come was sent before all that has not
	}
	delay := a.lossDelay()
	for seq := l.una; seq != s.high; seq++ {
		q := s.at(seq)
		switch {
		case q.flags&(pktAcked|pktLost) != 0 || !before(q.order, s.newest):
		case int(s.newest-q.order) >= a.m.cfg.DupAcks, q.sent+delay <= now:
			a.unfly(q, true)
			q.flags |= pktLost
			s.lost++
			s.since = now
		case s.late == 0 || q.sent+delay < s.late:
			s.late = q.sent + delay
		}
	}
}

// lossDelay is how long a packet may take that others have overtaken.
func (a *Assoc) lossDelay() time.Duration {
	rtt := max(a.rtt(), a.flight.latest)
	return rtt + max(rtt/8, leastReordering)
}

// arm sets the timer of lane i: to when the next packet is lost, else to the probe timeout, which runs from the last transmission of the left
// edge. No acknowledgment of what was known before puts it off.
func (a *Assoc) arm(now time.Duration, i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	s.early = s.late != 0
	switch {
	case l.una == s.high:
		s.due = 0
	case s.early:
		s.due = s.late
	default:
		s.due = max(max(s.at(l.una).sent, s.since)+a.timeout(s), s.moved+granularity)
	}
}
