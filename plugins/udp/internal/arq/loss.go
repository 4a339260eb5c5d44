package arq

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// This file detects losses for a peer that acknowledges selectively. Bit i in the body of an ACK
// stands for packet ack+i. The method follows RFC 9002, Section 6, in which each transmission has
// its own packet number. Here each transmission has packet.order, which is not on the wire, and the
// echoed timestamp shows which of several transmissions of a packet may have arrived.

// handleSelective handles the bitmap of selectively acknowledged packets in p, and reports whether
// the bitmap acknowledges any packet for the first time.
func (a *Assoc) handleSelective(p *Packet) (news bool) {
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

// recover detects losses on lane i after an acknowledgment. news reports whether the acknowledgment
// covers any packet for the first time. answered reports whether it shows that the peer has
// received a probe.
func (a *Assoc) recover(now time.Duration, i int, news, answered bool) {
	s := &a.flight.send[i]
	if answered {
		s.noteArrived(s.asked)
	}
	if news {
		s.tries, s.probe, s.tail, s.moved = 0, false, false, now
	}
	if news || answered {
		a.detect(now, i)
		a.arm(now, i)
	}
}

// noteArrived records that the transmission with the given order has arrived at the peer.
func (s *sender) noteArrived(order uint32) {
	if before(s.newest, order) {
		s.newest = order
	}
}

// detect marks the lost packets of lane i. A packet is lost if a transmission has arrived that is
// at least DupAcks transmissions later. It is also lost if any later transmission has arrived and
// lossDelay has passed since the packet was sent. If other packets were sent before a transmission
// that has arrived, detect sets late to the time at which the first of them counts as lost.
func (a *Assoc) detect(now time.Duration, i int) {
	s, l := &a.flight.send[i], &a.lane[i]
	s.late = 0
	if l.una == s.high || s.sacked == 0 && !before(l.una, s.recover) && before(s.newest, s.at(l.una).order) {
		return // everything that has arrived was sent before everything that has not
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

// lossDelay returns how long after its transmission an overtaken packet counts as lost. This is the
// time threshold of RFC 9002, Section 6.1.2.
func (a *Assoc) lossDelay() time.Duration {
	rtt := max(a.rtt(), a.flight.latest)
	return rtt + max(rtt/8, minReordering)
}

// arm sets the timer of lane i. If a packet has been overtaken, the timer expires when the next
// such packet counts as lost. Otherwise it expires after the probe timeout, which runs from the
// last transmission of the oldest unacknowledged packet. An acknowledgment of packets already
// acknowledged does not postpone the timer.
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
