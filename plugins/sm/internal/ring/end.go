package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Messages and Bulk are the two rings of each direction.
const (
	Messages = 0
	Bulk     = 1
	rings    = 2
)

// A Message is one frame without its body.
type Message struct {
	Kind, Flags uint8 // Flags has seven bits
	Op, Tag     uint64
	Credit      uint32
	Len         int // the length of the body in bytes
}

// Void is the kind of an empty message: the data for it was withdrawn while it was being written.
const Void = 0

// An End is one process's side of a pair of segments. Two goroutines may use it at once: the
// methods that send are called under one lock, those that receive by one goroutine, under that lock
// too if their comment says so.
type End struct {
	own, peer memory
	areas     struct{ own, peer memory } // nil until they are needed

	// Sending. The fields hold the result of the last Update.
	out    [rings]out
	bodies bodies  // the ring of bodies of Messages
	free   uint64  // the set of free slots
	blocks []bool  // the used blocks of the room for bodies; nil: there is no area
	placed []Block // the blocks of messages that the peer has not taken, oldest first
	rung   uint64  // the last sleep of the peer for which the bell was rung
	eager  int

	// Receiving.
	in         [rings]in
	peerBodies bodies // the peer's ring of bodies of Messages
	arms       uint64 // the number of sleeps of this side
	unreported bool   // messages were taken since the last Report

	waits atomic.Bool   // this side waits for room
	seen  atomic.Uint64 // the peer's progress when the wait began
}

// out is a ring that this side writes.
type out struct {
	base      int
	descs     int
	head      uint64   // the number of messages written
	published uint64   // the number of messages published
	taken     uint64   // the number of messages that the peer has taken, by the last Update
	drafts    []draft  // the messages that are not published
	words     []uint64 // the commit words, by descriptor
	ends      []uint64 // Messages: the tail of bodies behind each message, by descriptor
	places    []uint8  // where each body is, by descriptor: a slot, inRing, inBlock or shown
	shown     int      // messages of ShowBlock that the peer has taken and that Shown has not returned yet
}

// in is a ring that this side reads.
type in struct {
	base  int
	descs int
	next  uint64 // the number of the next message to take
}

// bodies is the position in a ring of bodies. Both sides compute it from the lengths of the
// messages.
type bodies struct {
	base, size int
	tail, free uint64 // the bytes used so far; the bytes freed so far
}

// place allocates a body of n bytes and returns its offset. A body does not wrap: it skips the rest
// of the ring if it does not fit there.
func (b *bodies) place(n int) (off int) {
	at := int(b.tail % uint64(b.size))
	if at+n > b.size {
		b.tail += uint64(b.size - at)
		at = 0
	}
	b.tail += uint64(roundUp(n, align))
	return b.base + at
}

// room returns the length of the longest body that fits now.
func (b *bodies) room() int {
	free := b.size - int(b.tail-b.free)
	toEnd := b.size - int(b.tail%uint64(b.size))
	if free <= toEnd {
		return free
	}
	return max(toEnd, free-toEnd)
}

// ErrBroken is matched by the errors about impossible contents of the peer's memory.
var ErrBroken = errors.New("invalid data from the peer in shared memory")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// New returns an End that writes own, which is zeroed memory of the geometry out. Join adds the
// segment of the peer.
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

// Join adds the segment of the peer, of geometry g. It returns an error if the segment has another
// layout.
func (e *End) Join(peer []byte, g Geometry) error {
	if len(peer) != g.Size() {
		return broken("segment has %d bytes, want %d", len(peer), g.Size())
	}
	if m := memory(peer).load(offMagic); m != magic {
		return broken("segment begins with %#x, want %#x", m, uint64(magic))
	}
	if form, n := memory(peer).load(offForm), memory(peer).load(offLength); form != g.form() || n != uint64(g.Size()) {
		return broken("segment has layout %d, descriptors of %d bytes and size %d, want layout %d, %d and %d",
			uint32(form), form>>32, n, g.Version, descSize, g.Size())
	}
	e.in = g.rings()
	e.peerBodies = bodies{base: offMessages + g.descs()*descSize, size: g.bodies()}
	e.peer = peer
	return nil
}

// Probe writes to the pages that the first messages need, so that a lack of memory shows now, as a
// fault.
func (e *End) Probe() {
	for _, off := range []int{offWaits, offBulk + descOp, offMessages + descOp} {
		e.own.store(off, 0)
	}
}

// bell reports whether the caller has to wake the peer: it sleeps, and has not been woken from that
// sleep. Under the lock.
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

// Arm announces that this side sleeps from now on, and has to be woken for a message or freed room.
// It reports whether there is one already. By the receiver.
func (e *End) Arm() bool {
	e.arms++
	e.own.store(offBell, e.arms)
	step(Arm)
	return e.Look()
}

// Disarm announces that this side polls. By the receiver.
func (e *End) Disarm() { e.own.store(offBell, 0) }

// Look reports whether there is a message to read, or freed room for which this side waits. It
// costs two or three loads. By the receiver.
func (e *End) Look() bool {
	if e.peer == nil {
		return false
	}
	for r := range e.in {
		n := &e.in[r]
		i := int(n.next % uint64(n.descs))
		if w := e.peer.load(n.base + i*descSize); uint32(w>>32) != n.lastNumber() {
			return true
		}
	}
	return e.waits.Load() && e.peer.load(offTaken) != e.seen.Load()
}

// lastNumber returns the message number that the next descriptor has before its next message is
// published: that of the message one round earlier.
func (n *in) lastNumber() uint32 {
	if n.next < uint64(n.descs) {
		return 0
	}
	return uint32(n.next + 1 - uint64(n.descs))
}

// Progress returns a counter of the messages that the peer has read. The caller holds the lock.
func (e *End) Progress() uint64 {
	if e.peer == nil {
		return 0
	}
	return e.peer.load(offTaken)
}

// Wait announces that this side waits for room: Look then reports true when the peer has taken a
// message. It is called when Room has found none, and Room has to be called once more after it,
// because the peer may have freed room in between. Under the lock.
func (e *End) Wait() {
	step(Wait)
	e.seen.Store(e.Progress())
	e.waits.Store(true)
	e.own.store(offWaits, 1)
	step(Wait)
}

// Waits reports whether this side waits for room. It needs no lock.
func (e *End) Waits() bool { return e.waits.Load() }

// Go ends the wait that Wait has announced. Under the lock.
func (e *End) Go() {
	if e.waits.Load() {
		e.waits.Store(false)
		e.own.store(offWaits, 0)
	}
}
