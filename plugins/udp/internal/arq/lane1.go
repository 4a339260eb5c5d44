package arq

import (
	"encoding/binary"
	"time"
)

// A piece holds the state shared by the packets that one call to Piece creates.
type piece struct {
	front        [FrontSize]byte
	ref          any
	after        uint32 // number of the lane 0 packet that the piece must not overtake; valid if barred
	left         int    // number of unacknowledged packets
	barred, void bool   // void: the memory must no longer be read
}

// Piece sends n bytes of the memory represented by ref on lane 1, in packets that are of equal size
// except for the last one. Each packet carries front. The caller of Next copies the bytes, once for
// each transmission, until Upper.Sent is called. ref must not be nil, and n must not exceed what
// Room permits.
func (a *Assoc) Piece(front *[FrontSize]byte, ref any, n int) {
	m, f := a.m, a.takeFlight()
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
	most := a.maxDatagram() - headSize - bulkSize
	for at := 0; at < n; at += most {
		*f.send[1].push(&a.lane[1]) = packet{piece: pc, at: int32(at), n: int32(min(most, n-at))}
		pc.left++
	}
}

// release frees packet seq of lane i, which has been acknowledged. If no other packet of its piece
// is unacknowledged, release calls Upper.Sent.
func (a *Assoc) release(i int, seq uint32) {
	p, m := a.flight.send[i].at(seq), a.m
	a.unfly(p, false)
	m.free0(p.body)
	pc := p.piece
	p.body, p.piece = nil, nil
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

// take1 handles a received packet of lane 1. With profile Modern it places packets in any order,
// and each packet number once. With profile Seed it drops packets that arrive out of order.
func (a *Assoc) take1(now time.Duration, p *Packet) {
	m, r, l := a.m, &a.flight.recv[1], &a.lane[1]
	ahead := p.seq - l.rcv
	if before(p.seq, l.rcv) || r.hasPacket(ahead) {
		m.stats.Duplicates++
		r.now, r.dup = true, true
		return
	}
	le := binary.LittleEndian
	if p.flags&flagAfter != 0 && !before(le.Uint32(p.body), a.lane[0].rcv) {
		m.stats.Early++ // the packet has overtaken its barrier, so drop it as if it were lost
		return
	}
	if ahead >= maxAhead || ahead > 0 && m.cfg.Profile == Seed {
		a.noteGap(r, p)
		return
	}
	l.rcv += a.advance(r, ahead)
	m.stats.Delivered++
	a.noteTaken(now, 1, p)
	if p.flags&flagVoid == 0 && a.User != nil {
		front := (*[FrontSize]byte)(p.body[8:])
		m.up.Place(a, front, int(le.Uint32(p.body[4:])), p.body[bulkSize:])
	}
}

// appendBulk appends to b the part of a lane 1 packet between the header and the payload.
func (p *packet) appendBulk(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.piece.after)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.at))
	return append(b, p.piece.front[:]...)
}
