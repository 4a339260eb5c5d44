package arq

import "time"

// choose returns which packet of lane i is to be sent now. The order is that of what is most urgent: the question of an expired timer,
// what is known to be lost, what is new. A lane has four marks, una <= snd <= high <= nxt: acknowledged up to una; snd is sent next,
// again if it is before high; nothing from high on was ever sent; nothing from nxt on exists.
func (a *Assoc) choose(now time.Duration, i int) (uint32, bool) {
	f := a.flight
	s, l := &f.send[i], &a.lane[i]
	if i == 0 && f.open != nil && int(l.nxt-l.una) < a.m.cfg.Window {
		// Frames are added to the last packet until it may leave: what waits for the window leaves in full packets.
		a.close0()
	}
	if s.probe && l.una != s.high {
		return l.una, true // whatever the windows say (RFC 9002 7.5): nothing else tells what was lost
	}
	if s.tail && l.una != s.high {
		if last := s.high - 1; s.at(last).flags&(pktAcked|pktLost) == 0 {
			return last, true
		}
		return l.una, true
	}
	if s.lost > 0 {
		// What is lost goes before what is new (RFC 9000 13.3): it holds up the left edge, and with it the memory of all behind it.
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
		return 0, false // the peer has no room; one packet may always be under way, to learn when it has
	case s.snd == s.high && int(s.snd-l.una) >= a.m.cfg.Window:
		return 0, false
	case i == 0 && s.snd == l.una:
		return s.snd, true // bulk data under way may wait for it, and is not acknowledged before
	}
	return s.snd, a.maySend(now)
}

// transmit makes the packet that choose has chosen.
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
	// The peer is to acknowledge at once where this side can do nothing before: after a question, after a repetition, and at the end of
	// what may be under way. Anywhere else it may wait for a packet of its own to go with.
	switch {
	case s.probe || s.tail:
		p.flags |= flagAckNow
		m.stats.Probes++
		if a.isInquiring(i) {
			a.inquire(now, &p, head, o)
			return
		}
		s.noteQuestion(now)
	case missing:
		p.flags |= flagAckNow
	default:
		s.snd++
		if before(s.high, s.snd) {
			s.high = s.snd
		} else if a.isAcked(i) {
			p.flags |= flagAckNow // the last that is sent again
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
	// The times of both transmissions would be mixed up by their acknowledgment, but round trips are measured by clocks that come back
	// and not by numbers (RFC 7323), so nothing has to be left out as Karn's rule would.
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
	if r := &f.recv[i]; !r.gap && !r.dup { // those reports need a packet of their own
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
	if q.size == 0 { // else it is counted as under way already
		q.size = int32(o.Size())
		f.flying += o.Size()
	}
	if i == 0 {
		a.sentAt = now
	}
	f.cc.pace(a, now, o.Size())
}

// noteQuestion notes that the latest transmission is the question of the timer, or the second one.
func (s *sender) noteQuestion(now time.Duration) {
	s.probe, s.tail = false, s.probe && s.tail
	s.probing, s.probed, s.asked = true, now, s.order
}

// isInquiring reports whether the timer of lane i has expired again, and asks without sending the left edge: where that is large, or nothing is
// lost at random. Then the answer alone has it sent again, also in the middle of going back.
func (a *Assoc) isInquiring(i int) bool {
	s := &a.flight.send[0]
	return i == 0 && a.m.cfg.Profile == Modern && s.tries > 1 && (a.local || numbersFor(headSize+len(s.at(a.lane[0].una).body)) > 1)
}

// inquire makes the question of a timer that has expired again: a packet of lane 0 that the peer has, without its body. A peer that is
// stopped finds it in its buffer beside all that is under way.
func (a *Assoc) inquire(now time.Duration, p *Packet, head []byte, o *Out) {
	s := &a.flight.send[0]
	s.noteQuestion(now)
	p.seq = a.lane[0].una - 1
	a.fillHeader(now, 0, p)
	head = p.append(head)
	seal(head)
	*o = Out{Head: head}
}

// transmitBulk makes a packet of lane 1, whose payload the caller gathers. A void one goes as well: its number has to be acknowledged.
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

// wantsAck reports whether nothing follows packet seq before an acknowledgment comes, or so much that one is wanted.
func (a *Assoc) wantsAck(i int, seq uint32) bool {
	s, l := &a.flight.send[i], &a.lane[i]
	under := int(s.snd - l.una)
	if i == 1 && (s.snd == l.nxt || seq%64 == 63) { // every 64: the memory of a long train is given back while it goes
		return true
	}
	if i == 0 && a.m.cfg.Profile == Modern {
		left := a.allowance()
		return left < 1 || s.snd != l.nxt && left < numbersFor(headSize+len(s.at(s.snd).body)) || under == a.m.cfg.Window
	}
	return s.snd == l.edge || under == a.m.cfg.Window
}

// hasRoomFor reports whether the peer has room for packet seq, which was never sent.
func (a *Assoc) hasRoomFor(i int, seq uint32) bool {
	if i == 0 && a.m.cfg.Profile == Modern {
		return a.allowance() >= numbersFor(headSize+len(a.flight.send[0].at(seq).body))
	}
	return before(seq, a.lane[i].edge)
}
