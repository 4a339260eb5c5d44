package engine

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A Carrier moves frames between one Endpoint and its peers. "Locked" methods are called with the endpoint locked and
// do not wait; the others are called without the lock.
type Carrier interface {
	// Check tells whether name could be dialled. Locked.
	Check(name string) error
	// Resolve turns the text of an address into a canonical name, and calls done once, from any goroutine, unless the
	// returned cancel was called before. It may call done before it returns. cancel may be nil.
	Resolve(text string, done func(name string, err error)) (cancel func())
	// Dial begins to connect l, whose Name says where. The carrier then pulls l's HELLO with Next and hands the peer's
	// frames to Deliver, or calls l.Fail, later or at once. Locked.
	Dial(l *Link)
	// Flush sends what l has, as far as that goes without waiting; the rest follows when there is room.
	Flush(l *Link)
	// Cut drops the connection of l, after trying to send last if it is not empty. Nothing is delivered for l afterwards.
	// l may be in any state, without a connection too. Locked.
	Cut(l *Link, last []byte)
	// Poll does what is due. Called by the goroutine that leads Progress.
	Poll(now time.Duration)
	// NextTimer is when Poll has something to do; 0 when never. Locked.
	NextTimer() time.Duration
	// Shut stops accepting peers. Locked.
	Shut()
	// Release frees what is left. The goroutine that leads calls it.
	Release()
}

// A Laner is a Carrier that can make a second connection for a link, for its bulk data, so that messages do not wait
// behind that. What Carrier says of the connection holds for both: Flush and Cut are about both.
type Laner interface {
	// DialLane begins to make it. The carrier pulls from it with NextLane and hands what arrives to DeliverLane and Place,
	// or calls LaneFailed, later or at once. Locked.
	DialLane(l *Link)
}

// A View is a piece of memory that a frame's payload is read from or placed into: n bytes of mem at Off, on behalf of
// an operation of this process (its ticket guards the memory) or of a peer.
type View struct {
	t     na.Ticket // of an operation of this process
	mem   *na.Mem   // nil: discard
	off   int64
	n     int64
	move  *move   // sending: what it is a piece of
	input *input  // receiving: the peer's put that it is a piece of
	code  na.Code // why it is gone: ErrRevoked after a Borrow that reported false, ErrFault after Fault
}

// Len returns the number of bytes.
func (v *View) Len() int { return int(v.n) }

// Discard tells that the payload has no destination: its bytes are read and dropped.
func (v *View) Discard() bool { return v.mem == nil }

// Borrow reports whether the memory may be touched, until Return. It is short: one copy, or one system call that does
// not wait. Once it has reported false the View is gone for good: a sender fills with zeroes, a receiver drops.
func (v *View) Borrow() bool {
	if v.mem == nil || v.code != na.OK {
		return false
	}
	own := v.t.Valid()
	switch {
	case own && !v.mem.Join(), !own && !v.mem.Acquire():
		v.code = na.ErrRevoked
	case own && !v.t.Hold():
		v.mem.Release()
		v.code = na.ErrRevoked
	}
	return v.code == na.OK
}

// Fault says that the memory could not be read or written: a mapped file was truncated, most likely. The View is gone
// for good, and so is the operation that it is a piece of.
func (v *View) Fault() { v.code = na.ErrFault }

// Faulted tells whether Fault was called.
func (v *View) Faulted() bool { return v.code == na.ErrFault }

// Return ends a Borrow that reported true.
func (v *View) Return() {
	v.mem.Release()
	if v.t.Valid() {
		v.t.Release()
	}
}

// Slices appends to dst the memory of the n bytes at from within the view. Only between Borrow and Return.
func (v *View) Slices(dst [][]byte, from, n int) [][]byte {
	return v.mem.Slices(dst, v.off+int64(from), int64(n))
}

// A Chunk is what Next yields beside the bytes that it appended: the payload of a piece of bulk data, which follows
// them on the wire.
type Chunk struct {
	View
}

// ChunkSize is the payload of one piece of bulk data in bytes.
const ChunkSize = 256 << 10

// maxFront is the room that Next needs for a frame that is not a message.
const maxFront = frame.HeaderSize + frame.TailSize
