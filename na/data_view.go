package na

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A view implements carrier.View: the memory that a frame's payload is read from or placed into.
// That is n bytes of mem at off, for an operation of this process (whose ticket guards the memory)
// or of a peer; or of a body; or of a stream; or of the buffer of a received message.
type view struct {
	t      ticket // the operation of this process; the zero ticket: it is a peer's
	mem    *Mem   // nil: the payload is discarded, unless bytes or msg is set
	bytes  []byte // the bytes of a body or of a stream, instead of mem
	off    int64
	n      int64
	source *outboundBulk  // the source that it is a piece of, if it is sent
	sink   *inboundBulk   // the sink that it is a piece of, if it is received
	msg    *placedMessage // the message, instead of mem
	chunk  *chunk         // the chunk of a stream that bytes belongs to
	stream *Stream        // the stream of chunk
	at     int64          // the position in stream
	out    bool           // held by the carrier
	code   Code           // ErrRevoked after a Borrow that reported false, ErrFault after Fault
}

var _ carrier.View = (*view)(nil)

// lendViewLocked returns a copy of v for the carrier, which returns it to endpoint.takeBackLocked.
func (e *endpoint) lendViewLocked(v view) *view {
	p := e.views.get()
	*p, p.out = v, true
	return p
}

// takeBackLocked ends the carrier's use of a view. ok is false if the carrier had returned it
// before.
func (e *endpoint) takeBackLocked(v *view) (was view, ok bool) {
	if !v.out {
		return view{}, false
	}
	was = *v
	e.views.put(v)
	return was, true
}

// Len returns the number of bytes.
func (v *view) Len() int { return int(v.n) }

// Discard reports whether the payload has no destination: the carrier reads and drops its bytes.
func (v *view) Discard() bool {
	return v.mem == nil && v.bytes == nil && (v.msg == nil || v.msg.env == nil)
}

// Borrow reports whether the memory may be used, until Return. The use must be short: one copy, or
// one nonblocking system call. After it has reported false the memory may never be used again: a
// byte stream in the middle of a piece sends zeros, any other sender sends nothing more of it, and
// a receiver drops the bytes.
func (v *view) Borrow() bool {
	if v.Discard() || v.code != OK {
		return false
	}
	if v.msg != nil {
		return true // the buffer belongs to the view until Placed
	}
	own := v.t.isValid()
	if v.bytes != nil { // received bytes belong to the view until Placed
		if own && !v.t.hold() {
			v.code = ErrRevoked
		}
		return v.code == OK
	}
	switch {
	case own && !v.mem.acquireLocal(), !own && !v.mem.Acquire():
		v.code = ErrRevoked
	case own && !v.t.hold():
		v.mem.Release()
		v.code = ErrRevoked
	}
	return v.code == OK
}

// Fault records that the memory could not be read or written, mostly because a mapped file was
// truncated. The view must not be used again, and its operation ends.
func (v *view) Fault() { v.code = ErrFault }

// Faulted reports whether Fault was called.
func (v *view) Faulted() bool { return v.code == ErrFault }

// Return ends a Borrow that reported true.
func (v *view) Return() {
	if v.msg != nil {
		return
	}
	if v.mem != nil {
		v.mem.Release()
	}
	if v.t.isValid() {
		v.t.release()
	}
}

// CopyIn copies b to the memory at offset from of the view, if Borrow allows it. If the memory
// cannot be written it calls Fault.
func (v *view) CopyIn(from int, b []byte) {
	if !v.Borrow() {
		return
	}
	var room [16][]byte
	if _, ok := memfault.Scatter(carrier.Slices(room[:0], v, from, len(b), math.MaxInt), b); !ok {
		v.Fault()
	}
	v.Return()
}

// CopyOut copies the memory to b. It reports false if Borrow does not allow it, or if the memory
// cannot be read: then it calls Fault.
func (v *view) CopyOut(b []byte) (ok bool) {
	if !v.Borrow() {
		return false
	}
	var room [16][]byte
	if _, ok = memfault.Gather(b, carrier.Slices(room[:0], v, 0, v.Len(), math.MaxInt)); !ok {
		v.Fault()
	}
	v.Return()
	return ok
}

// Shelved implements carrier.View.
func (v *view) Shelved() (at int64, ok bool) {
	if v.chunk == nil || v.chunk.shelf == nil {
		return 0, false
	}
	return v.chunk.at + v.off, true
}

// Slice implements carrier.View.
func (v *view) Slice(from, n int) []byte {
	switch {
	case v.msg != nil:
		return v.msg.env.Data[from : from+n]
	case v.bytes != nil:
		return v.bytes[v.off+int64(from):][:n]
	}
	return v.mem.slice(v.off+int64(from), int64(n))
}
