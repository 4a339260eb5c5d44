package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Messages and Bulk identify the two rings in each direction.
const (
	Messages = 0
	Bulk     = 1
	rings    = 2
)

// A Message is a frame without its body.
type Message struct {
	Kind, Flags uint8 // Flags has seven bits
	Op, Tag     uint64
	Credit      uint32
	Len         int // length of the body in bytes
}

// Void is the kind of an empty message. It replaces a message whose data was revoked while it was
// being written.
const Void = 0

// An End is one process's side of a pair of segments. Two goroutines may use it concurrently: one
// that sends and one that receives. The sending goroutine must hold a lock provided by the caller,
// the send lock. The receiving goroutine must hold it only where a method's documentation says so.
type End struct {
	own, peer memory
	areas     struct{ own, peer memory } // nil until needed

	// Fields for sending. They reflect the last Update.
	out    [rings]out
	bodies bodies  // ring of bodies for Messages
	free   uint64  // set of free slots
	blocks []bool  // whether each block of the area's room for bodies is in use; nil if there is no area
	placed []Block // blocks of messages that the peer has not taken, oldest first
	rung   uint64  // number of the peer's last sleep for which the bell was rung
	eager  int

	// Fields for receiving.
	in         [rings]in
	peerBodies bodies // the peer's ring of bodies for Messages
	arms       uint64 // number of times that this side has armed itself to sleep
	unreported bool   // whether messages have been taken since the last Report

	waits atomic.Bool   // whether this side is waiting for room
	seen  atomic.Uint64 // the peer's progress when the wait began
}

// An out is a ring that this side writes.
type out struct {
	base      int
	descs     int
	head      uint64   // number of messages written
	published uint64   // number of messages published
	taken     uint64   // number of messages that the peer has taken, as of the last Update
	drafts    []draft  // messages that are not yet published
	words     []uint64 // commit words, by descriptor
	ends      []uint64 // for Messages: tail of bodies after each message, by descriptor
	places    []uint8  // location of each body, by descriptor: a slot, inRing, inBlock or shown
	shown     int      // number of messages written by ShowBlock that the peer has taken and Shown has not counted yet
}

// An in is a ring that this side reads.
type in struct {
	base  int
	descs int
	next  uint64 // number of the next message to take
}

// bodies holds the write and read positions in a ring of bodies. Each side computes them from the
// lengths of the messages.
type bodies struct {
	base, size int
	tail, free uint64 // total number of bytes used and freed
}

// place allocates n bytes in the ring for a body and returns their offset. Bodies do not wrap
// around. If the body does not fit before the end of the ring, place skips the rest of the ring.
func (b *bodies) place(n int) (off int) {
	at := int(b.tail % uint64(b.size))
	if at+n > b.size {
		b.tail += uint64(b.size - at)
		at = 0
	}
	b.tail += uint64(roundUp(n, align))
	return b.base + at
}

// room returns the length in bytes of the longest body that currently fits.
func (b *bodies) room() int {
	free := b.size - int(b.tail-b.free)
	toEnd := b.size - int(b.tail%uint64(b.size))
	if free <= toEnd {
		return free
	}
	return max(toEnd, free-toEnd)
}

// ErrBroken is matched by errors that report invalid contents of the peer's memory.
var ErrBroken = errors.New("invalid data from the peer in shared memory")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// New returns an End that writes the segment own, which must be zeroed and out.Size bytes long.
// Join adds the peer's segment.
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

// Join adds the peer's segment, whose geometry is g. It returns an error if the segment has a
// different layout.
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

// Probe writes to the pages that the first messages need. If the system lacks memory for them, the
// fault occurs in Probe rather than later.
func (e *End) Probe() {
	for _, off := range []int{offWaits, offBulk + descOp, offMessages + descOp} {
		e.own.store(off, 0)
	}
}

// bell reports whether the caller must wake the peer. That is the case if the peer is sleeping and
// bell has not already returned true for that sleep. The caller must hold the send lock.
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

// Arm announces that this side is about to sleep and must be woken for a message or freed room. It
// reports whether there is already a message to read or freed room. Only the receiving goroutine
// may call Arm.
func (e *End) Arm() bool {
	e.arms++
	e.own.store(offBell, e.arms)
	step(Arm)
	return e.Look()
}

// Disarm announces that this side is polling and need not be woken. Only the receiving goroutine
// may call Disarm.
func (e *End) Disarm() { e.own.store(offBell, 0) }

// Look reports whether there is a message to read, or freed room for which this side is waiting. It
// performs two or three loads. Only the receiving goroutine may call Look.
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

// lastNumber returns the message number that the next descriptor to be read contains while its next
// message is not yet published: that of the message one round of the ring earlier.
func (n *in) lastNumber() uint32 {
	if n.next < uint64(n.descs) {
		return 0
	}
	return uint32(n.next + 1 - uint64(n.descs))
}

// Progress returns a value that changes whenever the peer reports that it has taken messages. The
// caller must hold the send lock.
func (e *End) Progress() uint64 {
	if e.peer == nil {
		return 0
	}
	return e.peer.load(offTaken)
}

// Wait announces that this side is waiting for room, so that Look returns true when the peer has
// taken a message. A caller that calls Wait because Room found no room must then call Room once
// more, because the peer may have freed room in between. The caller must hold the send lock.
func (e *End) Wait() {
	step(Wait)
	e.seen.Store(e.Progress())
	e.waits.Store(true)
	e.own.store(offWaits, 1)
	step(Wait)
}

// Waits reports whether this side is waiting for room. It may be called without the send lock.
func (e *End) Waits() bool { return e.waits.Load() }

// Go ends the wait announced by Wait. The caller must hold the send lock.
func (e *End) Go() {
	if e.waits.Load() {
		e.waits.Store(false)
		e.own.store(offWaits, 0)
	}
}
