package na

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A view is a piece of memory that a frame's payload is read from or placed into: n bytes of mem at off, on behalf of
// an operation of this process (its ticket guards the memory) or of a peer; or of a body; or the buffer of a message that arrives.
type view struct {
	t      ticket // of an operation of this process
	mem    *Mem   // nil: discard, unless there are bytes
	bytes  []byte // of a body, instead of mem
	off    int64
	n      int64
	source *outboundBulk  // what it is a piece of, sending
	sink   *inboundBulk   // and receiving
	msg    *placedMessage // instead of mem: a message
	chunk  *chunk         // bytes are of it, of a stream
	stream *Stream        // that it is of,
	at     int64          // and where it is placed
	out    bool           // it is with the carrier
	code   Code           // why it is gone: ErrRevoked after a Borrow that reported false, ErrFault after Fault
}

var _ carrier.View = (*view)(nil)

// lendView returns a View for the carrier, like v. It comes back with endpoint.takeBack. Locked.
func (e *endpoint) lendView(v view) *view {
	p := e.views.get()
	*p, p.out = v, true
	return p
}

// takeBack ends the use of a View by the carrier, and reports false if that has ended before. Locked.
func (e *endpoint) takeBack(v *view) (was view, ok bool) {
	if !v.out {
		return view{}, false
	}
	was = *v
	e.views.put(v)
	return was, true
}

// Len returns the number of bytes.
func (v *view) Len() int { return int(v.n) }

// Discard reports that the payload has no destination: its bytes are read and dropped.
func (v *view) Discard() bool {
	return v.mem == nil && v.bytes == nil && (v.msg == nil || v.msg.env == nil)
}

// Borrow reports whether the memory may be touched, until Return. It is short: one copy, or one system call that does
// not wait. Once it has reported false the view is gone for good: a stream in the middle of a piece sends zeroes, any other
// sender nothing more of it, and a receiver drops the bytes.
func (v *view) Borrow() bool {
	if v.Discard() || v.code != OK {
		return false
	}
	if v.msg != nil {
		return true // the buffer is the view's until Placed
	}
	own := v.t.isValid()
	if v.bytes != nil { // one that arrives is the view's until Placed
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

// Fault says that the memory could not be read or written: a mapped file was truncated, most likely. The view is gone
// for good, and so is the operation that it is a piece of.
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

// CopyIn copies b to the memory at from within the view, if that may be touched. Memory that cannot be written is a Fault.
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

// CopyOut copies all of the memory to b, and reports false if it may not be touched, or cannot be read, which is a Fault.
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
