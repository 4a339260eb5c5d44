package arq

import (
	"encoding/binary"
	"time"
)

// A piece is what the packets of one call of Piece have in common.
type piece struct {
	front        [FrontSize]byte
	ref          any
	after        uint32 // of lane 0, if barred
	left         int    // packets that are not acknowledged
	barred, void bool
}

// Piece sends n bytes of what ref stands for on lane 1, in packets of equal size but for the last. front goes with each. The
// bytes are gathered by who calls Next, again for each transmission, until Upper.Sent. ref is not nil. Only as Room allows.
func (a *Assoc) Piece(front *[FrontSize]byte, ref any, n int) {
	m, f := a.m, a.fly()
	m.wake(a)
	var pc *piece
	if k := len(m.pieces); k > 0 {
		pc, m.pieces = m.pieces[k-1], m.pieces[:k-1]
	} else {
		pc = &piece{}
	}
	*pc = piece{front: *front, ref: ref}
	if f.barred && !before(f.barrier, a.lane[0].una) {
		pc.after, pc.barred = f.barrier, true
	}
	most := a.size() - headSize - bulkSize
	for at := 0; at < n; at += most {
		*f.send[1].push(&a.lane[1]) = packet{piece: pc, at: int32(at), n: int32(min(most, n-at))}
		pc.left++
	}
}

// release ends what is kept of a packet, whose contents the peer has.
func (a *Assoc) release(i int, seq uint32) {
	p, m := a.flight.send[i].at(seq), a.m
	a.unfly(p, false)
	m.free0(p.body)
	pc := p.piece
	*p = packet{sent: p.sent, flags: p.flags}
	if pc == nil {
		return
	}
	if pc.left--; pc.left == 0 {
		ref := pc.ref
		*pc = piece{}
		if len(m.pieces) < 1024 {
			m.pieces = append(m.pieces, pc)
		}
		if ref != nil {
			m.up.Sent(a, ref)
		}
	}
}

// selected takes a selective acknowledgment: which packets have come, and so which have not.
func (a *Assoc) selected(now time.Duration, p *Packet) {
	l := &a.lane[1]
	seen := uint32(0) // beyond p.ack
	for w := 0; w < len(p.body); w += 8 {
		word := binary.LittleEndian.Uint64(p.body[w:])
		for bit := uint32(0); word>>bit != 0 && bit < 64; bit++ {
			if word&(1<<bit) == 0 {
				continue
			}
			seen = uint32(8*w) + bit
			seq := p.ack + seen
			if before(seq, l.una) {
				continue
			}
			s := &a.flight.send[1]
			if q := s.at(seq); q.flags&pktAcked == 0 {
				a.ackOne(q)
				q.flags |= pktAcked
				if a.release(1, seq); a.state == dead {
					return
				}
			}
		}
	}
	// What is not in the bitmap is missing as of the highest number in it. Behind that nothing is known.
	if seen > 0 && before(l.una, p.ack+seen) {
		a.flight.send[1].seen = p.ack + seen
		a.judge(now, false)
	}
}

// judge finds the packets that are lost: three packets that were given later have come, or one that was sent later by more
// than packets are reordered; or, when there was time enough, one that was sent later at all.
func (a *Assoc) judge(now time.Duration, waited bool) {
	s, l := &a.flight.send[1], &a.lane[1]
	var late *packet
	for seq := l.una; before(seq, s.seen); seq++ {
		p := s.at(seq)
		if p.flags&(pktAcked|pktLost) != 0 {
			continue
		}
		// By number only if it was sent once: the number of a repetition says nothing of when it was sent. By time as in RFC 9002 6.1.2.
		if p.flags&pktResent == 0 && int(s.seen-seq) >= a.m.cfg.DupAcks || p.sent+a.reordering() < s.newest ||
			waited && p.sent <= s.newest && p.sent+a.rtt() <= now {
			a.lose(s, p)
		} else if p.sent <= s.newest && (late == nil || p.sent < late.sent) {
			late = p
		}
	}
	if late != nil && !waited {
		a.soon(now, s, late)
	}
}

// lose gives up a packet of lane 1. choose sends it again.
func (a *Assoc) lose(s *sender, p *packet) {
	if p.flags&(pktAcked|pktLost) == 0 {
		a.unfly(p, true)
		p.flags |= pktLost
		s.lost++
	}
}

// loseBefore gives up the packets of lane 1 that were sent before t.
func (a *Assoc) loseBefore(t time.Duration) {
	s := &a.flight.send[1]
	for seq := a.lane[1].una; seq != s.high; seq++ {
		if p := s.at(seq); p.sent < t {
			a.lose(s, p)
		}
	}
}

// take1 takes a packet of lane 1: in any order, each number once, unless this side goes back n.
func (a *Assoc) take1(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[1], &a.lane[1]
	ahead := p.seq - l.rcv
	if before(p.seq, l.rcv) || r.bits != nil && ahead < maxAhead && r.bits.has(ahead) {
		m.stats.Duplicates++
		r.now, r.dup = true, true
		return
	}
	le := binary.LittleEndian
	if p.flags&flagAfter != 0 && !before(le.Uint32(p.body), a.lane[0].rcv) {
		m.stats.Early++ // as if it had not come
		return
	}
	if ahead >= maxAhead || ahead > 0 && m.cfg.Profile == Seed {
		m.stats.OutOfOrder++
		if !r.gap || before(r.high, p.seq) {
			r.high = p.seq
		}
		r.now, r.gap = true, true
		return
	}
	if ahead > 0 || r.bits != nil {
		a.mark(r, ahead)
	}
	switch {
	case r.bits == nil:
		l.rcv++
	case ahead == 0: // it closes the first gap, and all that has come behind it counts
		n := r.bits.ones()
		r.bits.shift(n)
		l.rcv += n
		if r.bits.last() == 0 {
			m.bitmaps = append(m.bitmaps, r.bits)
			r.bits, r.gap = nil, false
		}
	}
	if r.bits != nil {
		r.now, r.gap = true, true
	}
	m.stats.Delivered++
	a.owe(now, 1, p)
	if p.flags&flagVoid == 0 && a.User != nil {
		front := (*[FrontSize]byte)(p.body[8:])
		m.up.Place(a, front, int(le.Uint32(p.body[4:])), p.body[bulkSize:])
	}
}

// mark notes a packet that has come out of order. Only an association with a gap has a bitmap.
func (a *Assoc) mark(r *receiver, ahead uint32) {
	m := a.m
	if r.bits == nil {
		if n := len(m.bitmaps); n > 0 {
			r.bits, m.bitmaps = m.bitmaps[n-1], m.bitmaps[:n-1]
		} else {
			r.bits = &bitmap{}
		}
	}
	r.bits.set(ahead)
}

// appendBulk encodes what a packet of lane 1 has between its head and its payload.
func (p *packet) appendBulk(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.piece.after)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.at))
	return append(b, p.piece.front[:]...)
}
