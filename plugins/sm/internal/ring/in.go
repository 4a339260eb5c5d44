package ring

import "encoding/binary"

// SetPeerArea adds the area that the peer writes. By the goroutine that receives.
func (e *End) SetPeerArea(b []byte) error {
	if len(b) != AreaSize {
		return broken("an area of %d bytes, want %d", len(b), AreaSize)
	}
	if e.areas.peer != nil {
		return broken("a second area")
	}
	e.areas.peer = b
	return nil
}

// A Taken is a message that was taken.
type Taken struct {
	Message
	Body  []byte // in buf, or in a slot: then it may change until Free, or not be readable at all (package memfault)
	Slot  int    // -1: none
	Block bool   // it is about a body in the area: PeerBlock
}

// Ref returns which bytes of the area a message with Block names as its body. ok is false for one that names none.
func (t *Taken) Ref() (at uint64, n int, ok bool) {
	if !t.Block || t.Len != refSize {
		return 0, 0, false
	}
	le := binary.LittleEndian
	return uint64(le.Uint32(t.Body)), int(le.Uint32(t.Body[4:])), true
}

// Take takes the next message of ring r, if there is one. buf has room for an envelope and Inline bytes: all but what is in a slot is
// copied there. If the message is in a slot and the peer's area is not there, needs is true, and nothing was taken. By the goroutine
// that receives.
func (e *End) Take(r int, t *Taken, buf []byte) (ok, needs bool, err error) {
	n := &e.in[r]
	if e.peer == nil {
		return false, false, nil
	}
	i := int(n.next % uint64(n.descs))
	d := e.peer.desc(n.base, i)
	w := d.load(descCommit)
	switch uint32(w >> 32) {
	case n.old():
		return false, false, nil
	case uint32(n.next + 1):
	default:
		return false, false, broken("message %d where %d is next", uint32(w>>32), uint32(n.next+1))
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
			return false, false, broken("a body of %d bytes in a slot of %d", t.Len, SlotSize)
		}
		if e.areas.peer == nil {
			return false, true, nil
		}
		t.Slot, t.Body = slot, e.areas.peer.slot(slot, t.Len)
	case slot != inRing || r != Messages || t.Len > len(buf) || t.Len > e.incoming.size:
		return false, false, broken("a body of %d bytes in place %d", t.Len, slot)
	default:
		t.Body = buf[:copy(buf, e.peer[e.incoming.place(t.Len):][:t.Len])]
	}
	n.next++
	e.stale = true
	return true, false, nil
}

// Free gives back what the messages of ring r stood in that were taken so far: they have been read. By the goroutine that receives.
func (e *End) Free(r int) {
	step(Release)
	e.own.store(offTaken, e.taken())
	e.stale = true
}

// taken is what the peer is told of what was taken.
func (e *End) taken() uint64 { return e.in[Messages].next&(1<<32-1) | e.in[Bulk].next<<32 }

// PeerBlock returns n bytes at an offset of the room for bodies in the peer's area, for a message with Block. They may change until Free,
// or not be readable at all. By the goroutine that receives.
func (e *End) PeerBlock(at uint64, n int) ([]byte, error) {
	if n < 0 || at > BodyRoom || n > BodyRoom-int(at) {
		return nil, broken("a body of %d bytes at %d of %d", n, at, BodyRoom)
	}
	return e.areas.peer.block(int(at), n), nil
}

// Report lets the peer know what was taken, and reports whether it has to be woken. By the goroutine that receives, under
// the lock.
func (e *End) Report() (wake bool) {
	if !e.stale {
		return false
	}
	e.stale = false
	step(Release)
	e.own.store(offTaken, e.taken())
	step(Doorbell)
	return e.peer.load(offWaits) != 0 && e.bell()
}
