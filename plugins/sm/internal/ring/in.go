package ring

import "encoding/binary"

// SetPeerArea sets the area that the peer writes to b. Only the receiving goroutine may call
// SetPeerArea.
func (e *End) SetPeerArea(b []byte) error {
	if len(b) != AreaSize {
		return broken("area has %d bytes, want %d", len(b), AreaSize)
	}
	if e.areas.peer != nil {
		return broken("duplicate area")
	}
	e.areas.peer = b
	return nil
}

// A Taken is a message returned by Take.
type Taken struct {
	Message
	// Body is in the buffer passed to Take or in a slot. The peer may modify a body in a slot, and
	// reading such a body may fault (see package memfault).
	Body  []byte
	Slot  int  // slot that holds the body; -1 if it is not in a slot
	Block bool // whether the body is in the area's room for bodies; see PeerBlock
}

// Ref returns the offset and length, in the area's room for bodies, of the body to which t refers.
// ok is false if t does not contain such a reference.
func (t *Taken) Ref() (at uint64, n int, ok bool) {
	if !t.Block || t.Len != refSize {
		return 0, 0, false
	}
	le := binary.LittleEndian
	return uint64(le.Uint32(t.Body)), int(le.Uint32(t.Body[4:])), true
}

// Take reads the next message of ring r into t. ok reports whether there was one. Unless the body
// is in the area, Take copies it to buf, which must have room for the larger of an envelope and
// Inline bytes. needs reports whether Take took nothing because the message uses the peer's area,
// which is not set. Only the receiving goroutine may call Take.
func (e *End) Take(r int, t *Taken, buf []byte) (ok, needs bool, err error) {
	n := &e.in[r]
	if e.peer == nil {
		return false, false, nil
	}
	i := int(n.next % uint64(n.descs))
	d := e.peer.desc(n.base, i)
	w := d.load(descCommit)
	switch uint32(w >> 32) {
	case n.lastNumber():
		return false, false, nil
	case uint32(n.next + 1):
	default:
		return false, false, broken("message has number %d, want %d", uint32(w>>32), uint32(n.next+1))
	}
	step(Consume)
	le := binary.LittleEndian
	t.Message = Message{
		Kind: uint8(w >> 24), Flags: uint8(w>>17) & 0x7f, Len: int(w & (1<<17 - 1)),
		Op: le.Uint64(d[descOp:]), Tag: le.Uint64(d[descTag:]), Credit: le.Uint32(d[descCredit:]),
	}
	slot := int(d[descSlot])
	t.Slot, t.Block = -1, slot == inBlock
	switch {
	case t.Block && e.areas.peer == nil:
		return false, true, nil
	case t.Len <= Inline:
		t.Body = buf[:copy(buf, d[descBody:][:t.Len])]
	case slot < Slots:
		if t.Len > SlotSize {
			return false, false, broken("body of %d bytes exceeds the slot of %d", t.Len, SlotSize)
		}
		if e.areas.peer == nil {
			return false, true, nil
		}
		t.Slot, t.Body = slot, e.areas.peer.slot(slot, t.Len)
	case slot != inRing || r != Messages || t.Len > len(buf) || t.Len > e.peerBodies.size:
		return false, false, broken("invalid body of %d bytes at slot %d", t.Len, slot)
	default:
		t.Body = buf[:copy(buf, e.peer[e.peerBodies.place(t.Len):][:t.Len])]
	}
	n.next++
	e.unreported = true
	return true, false, nil
}

// Free frees the room of all messages taken from ring r so far. The caller must no longer use their
// bodies. Only the receiving goroutine may call Free.
func (e *End) Free(r int) {
	step(Release)
	e.own.store(offTaken, e.taken())
	e.unreported = true
}

// taken returns the word to store at offTaken, which contains the number of messages read from each
// ring.
func (e *End) taken() uint64 { return e.in[Messages].next&(1<<32-1) | e.in[Bulk].next<<32 }

// PeerBlock returns n bytes at offset at of the room for bodies in the peer's area, for a message
// whose Block is true. The peer may modify the bytes, and reading them may fault. Only the
// receiving goroutine may call PeerBlock.
func (e *End) PeerBlock(at uint64, n int) ([]byte, error) {
	if n < 0 || at > BodyRoom || n > BodyRoom-int(at) {
		return nil, broken("invalid body of %d bytes at offset %d of %d", n, at, BodyRoom)
	}
	return e.areas.peer.block(int(at), n), nil
}

// Report publishes the number of messages taken from each ring. wake reports whether the peer must
// be woken because it is sleeping while it waits for room. Only the receiving goroutine may call
// Report, and it must hold the send lock.
func (e *End) Report() (wake bool) {
	if !e.unreported {
		return false
	}
	e.unreported = false
	step(Release)
	e.own.store(offTaken, e.taken())
	step(Doorbell)
	return e.peer.load(offWaits) != 0 && e.bell()
}
