package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// The two rings of each direction.
const (
	Messages = 0
	Bulk     = 1
	rings    = 2
)

// A Message is one frame, with its body apart.
type Message struct {
	Kind, Flags uint8 // flags: the lower seven bits
	Op, Tag     uint64
	Credit      uint32
	Len         int // of the body in bytes
}

// Void is the kind of a message that is nothing: what it was for went away while it was being written.
const Void = 0

// An End is one process's side of a pair. The methods of its two halves may be called by two goroutines at once: those that send
// under one lock, and those that receive by one goroutine, under that lock too where they say so.
type End struct {
	own, peer memory
	areas     struct{ own, peer memory } // nil until they are needed

	out    [rings]out
	bodies bodies  // of Messages
	free   uint64  // the slots that are, as far as is known
	blocks []bool  // of the room for bodies: which are used; nil before there is an area
	placed []Block // that were put and that the peer has not taken, as far as is known, the oldest first
	rung   uint64  // the last sleep of the peer for which the bell was rung
	eager  int

	in       [rings]in
	incoming bodies // of Messages
	arms     uint64
	stale    bool // something was taken, and the peer has not been told

	waits atomic.Bool   // for room
	seen  atomic.Uint64 // the peer's progress when it began to wait
}

// out is a ring that this side writes.
type out struct {
	base      int
	descs     int
	head      uint64   // messages written
	published uint64   // of these
	taken     uint64   // by the peer, as far as is known
	drafts    []draft  // of what is not published
	words     []uint64 // their commit words, by descriptor
	ends      []uint64 // of Messages: how far the bodies go with each message
	places    []uint8  // where the body of each message is
	shown     int      // messages of ShowBlock that the peer has taken, of which Shown has not told
}

// in is a ring that this side reads.
type in struct {
	base  int
	descs int
	next  uint64 // message to take
}

// bodies is the place of bodies in their ring, as both sides count it.
type bodies struct {
	base, size int
	tail, free uint64 // bytes ever used, and ever given back
}

// place returns where a body of n bytes begins, and uses it. A body does not wrap: what is left at the end of the ring is skipped.
func (b *bodies) place(n int) (off int) {
	at := int(b.tail % uint64(b.size))
	if at+n > b.size {
		b.tail += uint64(b.size - at)
		at = 0
	}
	b.tail += uint64(roundUp(n, align))
	return b.base + at
}

// room is the length of the longest body that fits now.
func (b *bodies) room() int {
	free := b.size - int(b.tail-b.free)
	toEnd := b.size - int(b.tail%uint64(b.size))
	if free <= toEnd {
		return free
	}
	return max(toEnd, free-toEnd)
}

// ErrBroken is what the errors match that say that the peer has written what cannot be.
var ErrBroken = errors.New("the peer broke the rules of the shared memory")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// New makes the end of a pair that writes own, which is fresh and zero, with the geometry out, and reads peer. The peer's segment may
// come later (Join).
func New(own []byte, out Geometry) *End {
	e := &End{own: own, eager: out.Eager, free: ^uint64(0)}
	e.bodies = bodies{base: offMessages + out.descs()*descSize, size: out.bodies()}
	for r, ring := range out.rings() {
		o := &e.out[r]
		o.base, o.descs = ring.base, ring.descs
		o.words, o.ends, o.places = make([]uint64, o.descs), make([]uint64, o.descs), make([]uint8, o.descs)
	}
	e.own.store(offForm, out.form())
	e.own.store(offLength, uint64(out.Size()))
	e.own.store(offMagic, magic)
	return e
}

func (g Geometry) rings() [rings]in {
	return [rings]in{{base: offMessages, descs: g.descs()}, {base: offBulk, descs: bulkDescs}}
}

// Join adds the segment of the peer, which has its geometry.
func (e *End) Join(peer []byte, g Geometry) error {
	if len(peer) != g.Size() {
		return broken("a segment of %d bytes, want %d", len(peer), g.Size())
	}
	if m := memory(peer).load(offMagic); m != magic {
		return broken("a segment begins with %#x, want %#x", m, uint64(magic))
	}
	if form, n := memory(peer).load(offForm), memory(peer).load(offLength); form != g.form() || n != uint64(g.Size()) {
		return broken("a segment of layout %d with descriptors of %d bytes, which says that it has %d, want layout %d with %d and %d",
			uint32(form), form>>32, n, g.Version, descSize, g.Size())
	}
	e.in = g.rings()
	e.incoming = bodies{base: offMessages + g.descs()*descSize, size: g.bodies()}
	e.peer = peer
	return nil
}

// Probe writes to what the first messages need, so that memory which cannot be had is missed now.
func (e *End) Probe() {
	for _, off := range []int{offWaits, offBulk + descOp, offMessages + descOp} {
		e.own.store(off, 0)
	}
}

// bell reports whether the peer sleeps and has not been woken from that sleep: then the caller wakes it. Under the lock.
func (e *End) bell() bool {
	if e.peer == nil {
		return false
	}
	n := e.peer.load(offBell)
	if n == 0 || n == e.rung {
		return false
	}
	e.rung = n
	return true
}

// Arm says that this side sleeps from now on, and is to be woken when there is something for it. It reports whether there is
// something already. By the goroutine that receives.
func (e *End) Arm() bool {
	e.arms++
	e.own.store(offBell, e.arms)
	step(Arm)
	return e.Look()
}

// Disarm says that this side looks by itself. By the goroutine that receives.
func (e *End) Disarm() { e.own.store(offBell, 0) }

// Look reports whether there is something to take, or room again for a side that waits for it. Two or three loads. By the goroutine
// that receives.
func (e *End) Look() bool {
	if e.peer == nil {
		return false
	}
	for r := range e.in {
		n := &e.in[r]
		i := int(n.next % uint64(n.descs))
		if w := e.peer.load(n.base + i*descSize); uint32(w>>32) != n.old() {
			return true
		}
	}
	return e.waits.Load() && e.peer.load(offTaken) != e.seen.Load()
}

// old is the number in the commit word of a descriptor whose next message has not come.
func (n *in) old() uint32 {
	if n.next < uint64(n.descs) {
		return 0
	}
	return uint32(n.next + 1 - uint64(n.descs))
}

// Progress is a number that changes whenever the peer has taken something. Under the lock.
func (e *End) Progress() uint64 {
	if e.peer == nil {
		return 0
	}
	return e.peer.load(offTaken)
}

// Wait says that this side waits for room: Look reports true when the peer has taken something since. It is called after Room has found
// none; Room follows once more, for what was taken between the two. Under the lock.
func (e *End) Wait() {
	step(Wait)
	e.seen.Store(e.Progress())
	e.waits.Store(true)
	e.own.store(offWaits, 1)
	step(Wait)
}

// Waits reports whether this side waits for room. From anywhere.
func (e *End) Waits() bool { return e.waits.Load() }

// Go ends a Wait. Under the lock.
func (e *End) Go() {
	if e.waits.Load() {
		e.waits.Store(false)
		e.own.store(offWaits, 0)
	}
}
