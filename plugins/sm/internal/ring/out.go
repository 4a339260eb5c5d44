package ring

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
)

// spare is the number of descriptors in the ring Messages that are not reserved for messages with
// an envelope and for their withdrawals. Bulk data may use only these.
const spare = 40

// Room returns the length of the longest message body that fits in ring r, or -1 if not even a
// message without a body fits. bulk reports whether bulk data fits. The results are as of the last
// call to Update. less reports whether another call to Update may free more room. The caller must
// hold the send lock.
func (e *End) Room(r int) (longest int, bulk, less bool) {
	o := &e.out[r]
	free := o.descs - int(o.head-o.taken)
	bulk = e.free&bulkSlots != 0 && (r == Bulk || o.head-o.taken < spare)
	less = !bulk || free == 0 || r == Messages && e.bodies.room() < e.eager ||
		e.free != ^uint64(0) && o.head == o.published // prefer recently freed slots, which are in the CPU caches
	if free == 0 {
		return -1, false, less
	}
	longest = Inline
	if r == Messages {
		longest = max(longest, min(e.bodies.room(), e.eager))
	}
	// Do not create an area merely because a ring is full.
	if e.free != 0 && (e.areas.own != nil || longest >= e.eager || r == Bulk) {
		longest = SlotSize
	}
	return longest, bulk, less
}

// Update frees the room used by messages that the peer has taken. It returns an error if the count
// in the peer's memory is invalid. The caller must hold the send lock.
func (e *End) Update() error {
	if e.peer == nil {
		return nil
	}
	for r, word := 0, e.peer.load(offTaken); r < rings; r, word = r+1, word>>32 {
		o := &e.out[r]
		taken := o.taken + uint64(uint32(word)-uint32(o.taken))
		switch {
		case taken-o.taken > o.published-o.taken:
			return broken("invalid count of read messages: %d of %d written, %d before", taken, o.published, o.taken)
		case taken != o.taken && r == Messages:
			e.bodies.free = o.ends[(taken-1)%uint64(o.descs)]
		}
		for ; o.taken != taken; o.taken++ {
			switch at := o.places[o.taken%uint64(o.descs)]; {
			case at < Slots:
				e.free |= 1 << at
			case at == inBlock:
				e.Drop(e.placed[0])
				e.placed = slices.Delete(e.placed, 0, 1)
			case at == shown:
				o.shown++
			}
		}
	}
	return nil
}

// NeedsArea reports whether SetArea must be called before a message with a body of n bytes can be
// written to ring r. That is the case if such a body needs a slot and no area is set. The caller
// must hold the send lock.
func (e *End) NeedsArea(r, n int) bool { return e.areas.own == nil && e.needsSlot(r, n) }

// needsSlot reports whether a body of n bytes in ring r is stored in a slot.
func (e *End) needsSlot(r, n int) bool {
	return n > Inline && (r == Bulk || n > e.eager || n > e.bodies.room())
}

// HasArea reports whether an area has been set. The caller must hold the send lock.
func (e *End) HasArea() bool { return e.areas.own != nil }

// SetArea sets the area that this side writes to b, which must be AreaSize bytes long and zeroed.
// The caller must hold the send lock.
func (e *End) SetArea(b []byte) { e.areas.own, e.blocks = b, make([]bool, BodyRoom/blockSize) }

// A Block is a range of the area's room for bodies. At is its offset and Len its length, both in
// bytes.
type Block struct{ At, Len int }

// span returns the range of indexes in End.blocks that b occupies.
func (b Block) span() (from, to int) {
	return b.At / blockSize, (b.At + b.Len + blockSize - 1) / blockSize
}

// Reserve reserves a Block for a body of n bytes. It uses the first free range that is large
// enough, which is the most likely to be in the CPU caches. ok is false if there is no room or no
// area. The caller must write the body to the memory returned by Body and then call Drop, PutBlock
// or ShowBlock. The caller must hold the send lock.
func (e *End) Reserve(n int) (b Block, ok bool) {
	need := (n + blockSize - 1) / blockSize
	for i, at := 0, 0; i < len(e.blocks); i++ {
		if e.blocks[i] {
			at = i + 1
		} else if i+1-at == need {
			b = Block{at * blockSize, n}
			e.mark(b, true)
			return b, true
		}
	}
	return b, false
}

// Drop frees a Block to which no message refers. The caller must hold the send lock.
func (e *End) Drop(b Block) { e.mark(b, false) }

func (e *End) mark(b Block, used bool) {
	for i, to := b.span(); i < to; i++ {
		e.blocks[i] = used
	}
}

// Body returns the memory of b in the area that this side writes.
func (e *End) Body(b Block) []byte { return e.areas.own.block(b.At, b.Len) }

// PutBlock writes a message whose body is in b and whose fields give the location of the body. Room
// must have reported room for the message. A later Update frees b when the peer has taken the
// message. The caller must hold the send lock.
func (e *End) PutBlock(m *Message, b Block) {
	e.next(Messages, m, inBlock)
	e.placed = append(e.placed, b)
}

// ShowBlock writes a message to ring r that contains a reference to its body, b, in the area. Room
// must have reported room for the message. The body may be larger than a slot. The caller must not
// modify the body until Shown has counted the message. The caller must hold the send lock.
func (e *End) ShowBlock(r int, m *Message, b Block) {
	m.Len = refSize
	d := e.next(r, m, inBlock)
	le := binary.LittleEndian
	le.PutUint32(d.b[descBody:], uint32(b.At))
	le.PutUint32(d.b[descBody+4:], uint32(b.Len))
	d.n += refSize
	o := &e.out[r]
	o.places[(o.head-1)%uint64(o.descs)] = shown
}

// Shown returns the number of messages written by ShowBlock to ring r that the peer has taken, as
// of the last call to Update, and that no earlier call to Shown has counted. The counted messages
// are the oldest ones. The caller must hold the send lock.
func (e *End) Shown(r int) (n int) {
	o := &e.out[r]
	n, o.shown = o.shown, 0
	return n
}

// Put writes a message to ring r. Room must have reported room for the message. The message becomes
// visible to the peer when Publish is called. The caller must hold the send lock.
func (e *End) Put(r int, m *Message, body []byte) {
	m.Len = len(body)
	at := e.place(r, m.Len)
	d := e.next(r, m, at)
	switch {
	case m.Len <= Inline:
		d.n += copy(d.b[descBody:], body)
	case at == inRing:
		copy(e.own[e.bodies.place(m.Len):], body)
		o := &e.out[r]
		o.ends[(o.head-1)%uint64(o.descs)] = e.bodies.tail
	default:
		copy(e.areas.own.slot(int(at), m.Len), body)
	}
}

// Values used in place of a slot number.
const (
	inRing = Slots // the body is in the ring of bodies or in the descriptor
	// inBlock means that the body is a Block, identified by the message's fields or by a reference
	// of refSize bytes.
	inBlock = Slots + 1
	shown   = Slots + 2 // in out.places only: a ShowBlock message
)

// place chooses the location of a body of n bytes in ring r: a slot number or inRing. The ring
// Messages does not use the slots for bulk data while others are free.
func (e *End) place(r, n int) uint8 {
	if !e.needsSlot(r, n) {
		return inRing
	}
	free := e.free & bulkSlots
	if others := e.free &^ bulkSlots; r == Messages && others != 0 {
		free = others
	}
	return uint8(bits.TrailingZeros64(free))
}

// A Spot identifies a message that PutLater has written, and the memory reserved for the body of
// the message.
type Spot struct {
	Body []byte
	ring int
	pos  uint64
	slot uint8
}

// PutLater writes a bulk data message whose body is written later. The caller must write the body
// of m.Len bytes to Body of the returned Spot before calling Publish. The caller must hold the send
// lock while calling PutLater, but need not while writing the body.
func (e *End) PutLater(r int, m *Message) Spot {
	at := uint8(inRing)
	if m.Len > Inline {
		at = e.place(Bulk, m.Len)
	}
	o := &e.out[r]
	s := Spot{ring: r, pos: o.head, slot: at}
	e.next(r, m, at)
	if at == inRing {
		s.Body = e.own.desc(o.base, int(s.pos%uint64(o.descs)))[descBody:][:m.Len]
	} else {
		s.Body = e.areas.own.slot(int(at), m.Len)
	}
	return s
}

// Void replaces the unpublished message of s with one of kind Void. The caller must hold the send
// lock.
func (e *End) Void(s Spot) {
	o := &e.out[s.ring]
	o.words[s.pos%uint64(o.descs)] = commit(s.pos, &Message{Kind: Void})
	if s.slot < Slots {
		o.places[s.pos%uint64(o.descs)] = inRing
		e.free |= 1 << s.slot
	}
}

// A draft holds the first n bytes of an unpublished descriptor, without its commit word. Messages
// are first written to private memory because the peer polls the descriptor in the ring, so each
// write there would move its cache line between the cores.
type draft struct {
	b [descSize]byte
	n int
}

// next starts a draft of the next descriptor of ring r, for a message whose body is at location at.
// The draft is valid until the next call to next.
func (e *End) next(r int, m *Message, at uint8) *draft {
	step(Reserve)
	o := &e.out[r]
	i := int(o.head % uint64(o.descs))
	used := int(o.head - o.published)
	if used == len(o.drafts) {
		o.drafts = append(o.drafts, draft{})
	}
	d := &o.drafts[used]
	le := binary.LittleEndian
	le.PutUint64(d.b[descOp:], m.Op)
	le.PutUint64(d.b[descTag:], m.Tag)
	le.PutUint32(d.b[descCredit:], m.Credit)
	d.b[descSlot], o.places[i] = at, at
	d.n = descBody
	if at < Slots {
		e.free &^= 1 << at
	}
	o.words[i] = commit(o.head, m)
	o.ends[i] = e.bodies.tail
	o.head++
	step(Write)
	return d
}

// commit returns the commit word that publishes m as message number pos of a ring.
func commit(pos uint64, m *Message) uint64 {
	return uint64(uint32(pos+1))<<32 | uint64(m.Kind)<<24 | uint64(m.Flags&0x7f)<<17 | uint64(m.Len)&(1<<17-1)
}

// Written returns the total number of messages written to both rings. The caller must hold the send
// lock.
func (e *End) Written() uint64 { return e.out[Messages].head + e.out[Bulk].head }

// Publish makes the written messages visible to the peer. wake reports whether the peer is sleeping
// and must be woken. The caller must hold the send lock.
//
// The peer reads messages in order. Therefore the commit word of the first message is stored last.
// That store is atomic and orders all others before it, so the others need not be atomic.
func (e *End) Publish() (wake bool) {
	some := false
	for r := range e.out {
		o := &e.out[r]
		if o.published == o.head {
			continue
		}
		for pos := o.head - 1; pos > o.published; pos-- {
			step(Publish)
			*e.write(o, pos) = o.words[pos%uint64(o.descs)]
		}
		step(Publish)
		atomic.StoreUint64(e.write(o, o.published), o.words[o.published%uint64(o.descs)])
		o.published = o.head
		some = true
	}
	if !some {
		return false
	}
	step(Doorbell)
	return e.bell()
}

// write copies the draft of message number pos to the descriptor in ring o. It does not write the
// commit word, but returns a pointer to it.
func (e *End) write(o *out, pos uint64) (commit *uint64) {
	d, to := &o.drafts[pos-o.published], e.own.desc(o.base, int(pos%uint64(o.descs)))
	copy(to[descOp:], d.b[descOp:d.n])
	return to.word(descCommit)
}
