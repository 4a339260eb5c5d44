package arq

import "time"

// choose returns which packet of lane i is to be sent now.
func (a *Assoc) choose(now time.Duration, i int) (uint32, bool) {
	f := a.flight
	s, l := &f.send[i], &a.lane[i]
	if i == 0 && int(l.nxt-l.una) < a.window(0) {
		a.close0()
	}
	if s.probe && l.una != s.high {
		return l.una, true
	}
	if s.lost > 0 {
		for seq := l.una; seq != s.high; seq++ {
			if s.at(seq).flags&pktLost != 0 {
				return seq, a.cleared(now)
			}
		}
	}
	switch {
	case s.snd == l.nxt:
		return 0, false
	case s.snd == s.high && l.una != s.high && !before(s.snd, l.edge):
		return 0, false // the peer has no room; one packet may always be under way, to learn when it has
	case int(s.snd-l.una) >= a.window(i) && (i == 0 || s.snd == s.high):
		return 0, false
	case i == 0 && s.snd == l.una:
		return s.snd, true // bulk data under way may wait for it, and is not acknowledged before
	}
	return s.snd, a.cleared(now)
}

// transmit makes the packet that choose has chosen.
func (a *Assoc) transmit(now time.Duration, i int, seq uint32, head []byte, o *Out) {
	f, m := a.flight, a.m
	s := &f.send[i]
	q := s.at(seq)
	p := Packet{kind: kindData, flags: uint8(i), seq: seq}
	if q.flags&pktFin != 0 {
		p.flags |= flagFin | flagAckNow
	}
	again := q.flags&pktSent != 0
	missing := q.flags&pktLost != 0
	if missing {
		s.lost--
	}
	switch {
	case s.probe:
		p.flags |= flagAckNow
		m.stats.Probes++
		s.probe, s.probing, s.probed = false, true, now
	case missing:
		p.flags |= flagAckNow
	default:
		s.snd++
		if before(s.high, s.snd) {
			s.high = s.snd
		} else if a.through(i) {
			p.flags |= flagAckNow // the last that is sent again
		}
	}
	if m.cfg.Profile == Modern && !again && a.closing(i, seq) {
		p.flags |= flagAckNow
	}
	if again {
		m.stats.Resent++
		q.flags |= pktResent
	} else {
		m.stats.Sent++
	}
	q.flags = q.flags&^pktLost | pktSent
	q.sent = now
	if s.due == 0 {
		s.due, s.early = now+a.timeout(s), false
	}
	a.carry(now, i, &p)
	if r := &f.recv[i]; !r.gap && !r.dup {
		r.settled(true)
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
	o.Fragment = o.Size() > a.size()
	if q.size == 0 {
		q.size = int32(o.Size())
		f.flying += o.Size()
	}
	f.cc.pace(a, now, o.Size())
}

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

// closing reports whether nothing follows packet seq before an acknowledgment comes, or so much that one is wanted.
func (a *Assoc) closing(i int, seq uint32) bool {
	s, l := &a.flight.send[i], &a.lane[i]
	under := int(s.snd - l.una)
	if i == 1 && (s.snd == l.nxt || seq%64 == 63) {
		return true
	}
	return s.snd == l.edge || under == a.window(i)
}
