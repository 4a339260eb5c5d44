package arq

import "time"

// choose returns the number of the packet of lane i to send now, and reports whether there is one.
// Probes are sent first, then packets known to be lost, then new ones. A lane has four marks, with
// una <= snd <= high <= nxt. Packets before una are acknowledged. Packet snd is sent next, and is a
// retransmission if it is before high. Packets starting at high have never been sent, and packets
// starting at nxt do not exist.
func (a *Assoc) choose(now time.Duration, i int) (uint32, bool) {
	f := a.flight
	s, l := &f.send[i], &a.lane[i]
	if i == 0 && f.open != nil && int(l.nxt-l.una) < a.m.cfg.Window {
		// Frames are added to the last packet until it may be sent, so that frames waiting for the
		// window fill packets.
		a.close0()
	}
	if s.probe && l.una != s.high {
		return l.una, true // probes ignore all windows (RFC 9002, Section 7.5), because only a probe detects the loss
	}
	if s.tail && l.una != s.high {
		if last := s.high - 1; s.at(last).flags&(pktAcked|pktLost) == 0 {
			return last, true
		}
		return l.una, true
	}
	if s.lost > 0 {
		// Lost packets are sent before new ones (RFC 9000, Section 13.3). Without them una cannot
		// advance, nor can later packets be freed.
		for seq := l.una; seq != s.high; seq++ {
			if s.at(seq).flags&pktLost != 0 {
				return seq, i == 0 && seq == l.una || a.maySend(now)
			}
		}
	}
	switch {
	case s.snd == l.nxt:
		return 0, false
	case s.snd == s.high && l.una != s.high && !a.hasRoomFor(i, s.snd):
		return 0, false // the peer has no space; one packet may always be in flight, so that its acknowledgment reports new space
	case s.snd == s.high && int(s.snd-l.una) >= a.m.cfg.Window:
		return 0, false
	case i == 0 && s.snd == l.una:
		// The congestion window may be full of bulk data that waits for this packet and cannot be
		// acknowledged earlier.
		return s.snd, true
	}
	return s.snd, a.maySend(now)
}

// transmit stores packet seq of lane i in o and records its transmission.
func (a *Assoc) transmit(now time.Duration, i int, seq uint32, head []byte, o *Out) {
	f, m := a.flight, a.m
	s := &f.send[i]
	q := s.at(seq)
	s.order++
	p := Packet{kind: kindData, flags: uint8(i), seq: seq}
	if q.flags&pktFin != 0 {
		p.flags |= flagFin | flagAckNow
	}
	again := q.flags&pktSent != 0
	missing := q.flags&pktLost != 0
	if missing {
		s.lost--
	}
	// The peer must acknowledge immediately if this side cannot continue without the
	// acknowledgment. This is the case for a probe, a retransmission, and the last packet that the
	// windows permit. Other acknowledgments may be delayed and sent with data.
	switch {
	case s.probe || s.tail:
		p.flags |= flagAckNow
		m.stats.Probes++
		if a.isInquiring(i) {
			a.inquire(now, &p, head, o)
			return
		}
		s.noteProbe(now)
	case missing:
		p.flags |= flagAckNow
	default:
		s.snd++
		if before(s.high, s.snd) {
			s.high = s.snd
		} else if a.allInFlight(i) {
			p.flags |= flagAckNow // last packet of the go-back-n
		}
	}
	if i == 0 && q.units == 0 {
		q.units = uint8(numbersFor(headSize + len(q.body)))
		s.cost += int(q.units)
	}
	if m.cfg.Profile == Modern && !again && a.wantsAck(i, seq) {
		p.flags |= flagAckNow
	}
	if again {
		m.stats.Resent++
		q.flags |= pktResent
	} else {
		m.stats.Sent++
	}
	// Karn's rule (ignore the round-trip time of retransmitted packets) is unnecessary, because
	// round-trip times are measured with echoed timestamps (RFC 7323).
	q.flags, q.sent, q.order = q.flags&^pktLost|pktSent, now, s.order
	switch {
	case a.selective:
		if again {
			s.recover = s.high
		}
		if s.due == 0 || seq == a.lane[i].una {
			a.arm(now, i)
		}
	case s.due == 0:
		s.due, s.early = now+a.timeout(s), false
	}
	a.fillHeader(now, i, &p)
	if r := &f.recv[i]; !r.gap && !r.dup { // data carries no acknowledgment if there is a gap or duplicate, which only a separate ACK can report
		r.noteAckSent(true)
	}

	*o = Out{}
	if i == 0 {
		head = p.append(head)
		seal(head, q.body)
		o.Body = q.body
	} else {
		a.transmitBulk(q, &p, &head, o)
	}
	o.Head, o.Again = head, again
	o.Fragment = o.Size() > a.maxDatagram()
	if q.size == 0 { // otherwise already counted as in flight
		q.size = int32(o.Size())
		f.flying += o.Size()
	}
	if i == 0 {
		a.sentAt = now
	}
	f.cc.pace(a, now, o.Size())
}

// noteProbe records that the latest transmission of s is a probe, which is the first or the second
// after a timeout.
func (s *sender) noteProbe(now time.Duration) {
	s.probe, s.tail = false, s.probe && s.tail
	s.probing, s.probed, s.asked = true, now, s.order
}

// isInquiring reports whether the next probe of lane i is an inquiry: an already acknowledged
// packet without its body, instead of the oldest unacknowledged packet. Inquiries are used starting
// with the second consecutive timeout, if the oldest unacknowledged packet is large or random loss
// is unlikely. The peer's answer determines whether that packet is retransmitted.
func (a *Assoc) isInquiring(i int) bool {
	s := &a.flight.send[0]
	return i == 0 && a.m.cfg.Profile == Modern && s.tries > 1 && (a.local || numbersFor(headSize+len(s.at(a.lane[0].una).body)) > 1)
}

// inquire stores in o a probe that repeats the packet before una, which the peer has already
// received, without its body. Such a probe needs little space in the receive buffer of a peer that
// has stopped reading.
func (a *Assoc) inquire(now time.Duration, p *Packet, head []byte, o *Out) {
	s := &a.flight.send[0]
	s.noteProbe(now)
	p.seq = a.lane[0].una - 1
	a.fillHeader(now, 0, p)
	head = p.append(head)
	seal(head)
	*o = Out{Head: head}
}

// transmitBulk stores a packet of lane 1 in o. The user of the Machine copies the payload. A void
// packet is sent without payload, because its number must be acknowledged.
func (a *Assoc) transmitBulk(q *packet, p *Packet, head *[]byte, o *Out) {
	pc := q.piece
	if pc.barred && !before(pc.after, a.lane[0].una) {
		p.flags |= flagAfter
	}
	if pc.void {
		p.flags |= flagVoid
	} else {
		o.Ref, o.At, o.N = pc.ref, int(q.at), int(q.n)
	}
	o.packet = q
	*head = q.appendBulk(p.append(*head))
	if pc.void {
		seal(*head)
	}
}

// wantsAck reports whether packet seq of lane i must request an immediate acknowledgment. It must
// if it is the last packet that the windows permit. A bulk data packet must also if no other packet
// is queued after it, or if it is one of every 64 packets.
func (a *Assoc) wantsAck(i int, seq uint32) bool {
	s, l := &a.flight.send[i], &a.lane[i]
	under := int(s.snd - l.una)
	// An acknowledgment of every 64th packet releases the pieces of long bulk data along the way.
	if i == 1 && (s.snd == l.nxt || seq%64 == 63) {
		return true
	}
	if i == 0 && a.m.cfg.Profile == Modern {
		left := a.allowance()
		return left < 1 || s.snd != l.nxt && left < numbersFor(headSize+len(s.at(s.snd).body)) || under == a.m.cfg.Window
	}
	return s.snd == l.edge || under == a.m.cfg.Window
}

// hasRoomFor reports whether the peer has space for packet seq of lane i, which has never been
// sent.
func (a *Assoc) hasRoomFor(i int, seq uint32) bool {
	if i == 0 && a.m.cfg.Profile == Modern {
		return a.allowance() >= numbersFor(headSize+len(a.flight.send[0].at(seq).body))
	}
	return before(seq, a.lane[i].edge)
}
