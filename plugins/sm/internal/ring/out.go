package ring

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
)

// spare descriptors of Messages are for bulk data, too; the others are left to messages with an envelope and to what withdraws them.
const spare = 40

// Room returns the length of the longest body of a message that fits into ring r, -1 when not even a message without one does, and
// whether bulk data does. It is what is known already: less is false if the peer cannot have made more. Under the lock.
func (e *End) Room(r int) (longest int, bulk, less bool) {
	o := &e.out[r]
	free := o.descs - int(o.head-o.taken)
	bulk = e.free&bulkSlots != 0 && (r == Bulk || o.head-o.taken < spare)
	less = !bulk || free == 0 || r == Messages && e.bodies.room() < e.eager ||
		e.free != ^uint64(0) && o.head == o.published // what was free last is in the caches
	if free == 0 {
		return -1, false, less
	}
	longest = Inline
	if r == Messages {
		longest = max(longest, min(e.bodies.room(), e.eager))
	}
	if e.free != 0 && (e.areas.own != nil || longest >= e.eager || r == Bulk) { // an area is not made because the ring is full
		longest = SlotSize
	}
	return longest, bulk, less
}

// Update takes in what the peer has taken. Under the lock.
func (e *End) Update() error {
	if e.peer == nil {
		return nil
	}
	for r, word := 0, e.peer.load(offTaken); r < rings; r, word = r+1, word>>32 {
		o := &e.out[r]
		taken := o.taken + uint64(uint32(word)-uint32(o.taken))
		switch {
		case taken-o.taken > o.published-o.taken:
			return broken("%d messages taken of %d, after %d", taken, o.published, o.taken)
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

// NeedsArea reports whether a body of n bytes needs a slot, and there is no area yet: SetArea comes first. Under the lock.
func (e *End) NeedsArea(r, n int) bool { return e.areas.own == nil && e.slotted(r, n) }

// slotted reports whether a body of n bytes in ring r stands in a slot.
func (e *End) slotted(r, n int) bool {
	return n > Inline && (r == Bulk || n > e.eager || n > e.bodies.room())
}

// HasArea reports whether there is an area. Under the lock.
func (e *End) HasArea() bool { return e.areas.own != nil }

// SetArea adds the area that this side writes: AreaSize bytes, zero. Under the lock.
func (e *End) SetArea(b []byte) { e.areas.own, e.blocks = b, make([]bool, BodyRoom/blockSize) }

// A Block is room for a body in the area.
type Block struct{ At, Len int }

// span is which of the blocks b uses.
func (b Block) span() (from, to int) {
	return b.At / blockSize, (b.At + b.Len + blockSize - 1) / blockSize
}

// Reserve finds room for a body of n bytes, the first: what was used last is in the caches. The caller writes it to what Body returns;
// Drop or PutBlock follows. It reports false when there is none, or no area. Under the lock.
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

// Drop gives room back that nobody reads. Under the lock.
func (e *End) Drop(b Block) { e.mark(b, false) }

func (e *End) mark(b Block, used bool) {
	for i, to := b.span(); i < to; i++ {
		e.blocks[i] = used
	}
}

// Body returns the memory of a Block.
func (e *End) Body(b Block) []byte { return e.areas.own.block(b.At, b.Len) }

// PutBlock writes a message without a body of its own, for which there is room. When the peer has taken it b is free. Under the lock.
func (e *End) PutBlock(m *Message, b Block) {
	e.next(Messages, m, inBlock)
	e.placed = append(e.placed, b)
}

// ShowBlock writes a message, for which there is room, into ring r: its body of m.Len bytes, which may be more than a slot has, is what b has of
// the area. The peer reads it there: it stays as it is until Shown has counted the message. Under the lock.
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

// Shown returns how many messages of ShowBlock in ring r the peer has taken since it was called last, as far as is known: the oldest. Under the
// lock.
func (e *End) Shown(r int) (n int) {
	o := &e.out[r]
	n, o.shown = o.shown, 0
	return n
}

// Put writes a message, for which there is room, into ring r. Nobody sees it before Publish. Under the lock.
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

// What stands in place of the number of a slot.
const (
	inRing  = Slots     // the body is in the ring of bodies, or in the descriptor
	inBlock = Slots + 1 // the message is about a Block: it says which, or, with a body of refSize, that does
	shown   = Slots + 2 // this side's word for the latter
)

// place chooses where the body of a message goes. Messages leave the slots of bulk data alone while there are others.
func (e *End) place(r, n int) uint8 {
	if !e.slotted(r, n) {
		return inRing
	}
	free := e.free & bulkSlots
	if others := e.free &^ bulkSlots; r == Messages && others != 0 {
		free = others
	}
	return uint8(bits.TrailingZeros64(free))
}

// A Spot is where the body of a message is written after the message was.
type Spot struct {
	Body []byte
	ring int
	pos  uint64
	slot uint8
}

// PutLater writes a message whose body of m.Len bytes, bulk data, the caller writes to Spot.Body before Publish. Under the lock; the
// body may be written without.
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

// Void has a message that is not published be nothing. Under the lock.
func (e *End) Void(s Spot) {
	o := &e.out[s.ring]
	o.words[s.pos%uint64(o.descs)] = commit(s.pos, &Message{Kind: Void})
	if s.slot < Slots {
		o.places[s.pos%uint64(o.descs)] = inRing
		e.free |= 1 << s.slot
	}
}

// A draft is a descriptor that is not published: the first n bytes of it, and nothing where the commit word goes. It is written here first
// because the peer looks at the place where it goes all the time, and would have that line of the cache taken to and fro.
type draft struct {
	b [descSize]byte
	n int
}

// next begins the next descriptor of a ring, of a message whose body is at a place. It is valid until the next one.
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

// commit is the word that publishes message number pos of a ring.
func commit(pos uint64, m *Message) uint64 {
	return uint64(uint32(pos+1))<<32 | uint64(m.Kind)<<24 | uint64(m.Flags&0x7f)<<17 | uint64(m.Len)&(1<<17-1)
}

// Written counts the messages that were ever written. Under the lock.
func (e *End) Written() uint64 { return e.out[Messages].head + e.out[Bulk].head }

// Publish lets the peer see what was written, and reports whether it has to be woken. Under the lock.
//
// The peer does not look at a message before it has seen those before it. So the first of them is stored last: that store carries the
// others, and only it has to wait for the memory.
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

// write writes a descriptor where the peer finds it, but for its commit word, which it returns.
func (e *End) write(o *out, pos uint64) (commit *uint64) {
	d, to := &o.drafts[pos-o.published], e.own.desc(o.base, int(pos%uint64(o.descs)))
	copy(to[descOp:], d.b[descOp:d.n])
	return to.word(descCommit)
}
