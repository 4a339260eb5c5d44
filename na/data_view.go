package na

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A view implements carrier.View. It refers to the memory from which a frame's payload is read or
// into which it is placed. That memory is n bytes of mem at off, a message body, part of a stream,
// or the buffer of a received message. If mem is used by an operation of this process, the ticket
// t ensures that it is not accessed after the operation has completed.
type view struct {
	t      ticket // operation of this process; the zero ticket if the operation is the peer's
	mem    *Mem   // if nil, the payload is discarded unless bytes or msg is set
	bytes  []byte // bytes of a body or of a stream, instead of mem
	off    int64
	n      int64
	source *outboundBulk  // source of an outgoing piece
	sink   *inboundBulk   // sink of an incoming piece
	msg    *placedMessage // received message, instead of mem
	chunk  *chunk         // stream chunk that contains bytes
	stream *Stream        // stream of chunk
	at     int64          // position in stream
	out    bool           // held by the carrier
	code   Code           // ErrRevoked if Borrow has returned false, ErrFault after Fault
}

var _ carrier.View = (*view)(nil)

// lendViewLocked returns a copy of v that the carrier may hold until the copy is passed to
// takeBackLocked. e.mu must be held.
func (e *endpoint) lendViewLocked(v view) *view {
	p := e.views.get()
	*p, p.out = v, true
	return p
}

// takeBackLocked ends the carrier's use of v. It returns false if the carrier had already returned
// v. e.mu must be held.
func (e *endpoint) takeBackLocked(v *view) (was view, ok bool) {
	if !v.out {
		return view{}, false
	}
	was = *v
	e.views.put(v)
	return was, true
}

// Len returns the payload length in bytes.
func (v *view) Len() int { return int(v.n) }

// Discard reports whether the payload has no destination, in which case the carrier reads and drops
// its bytes.
func (v *view) Discard() bool {
	return v.mem == nil && v.bytes == nil && (v.msg == nil || v.msg.env == nil)
}

// Borrow reports whether the memory may be used until Return is called. The use must be short: a
// single copy or a single nonblocking system call. Once Borrow has returned false, the memory must
// never be used again. A byte stream in the middle of a piece then sends zeros, any other sender
// stops sending the piece, and a receiver drops the bytes.
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

// Fault records that the memory could not be read or written, usually because a mapped file was
// truncated. The view must not be used afterward, and its operation fails.
func (v *view) Fault() { v.code = ErrFault }

// Faulted reports whether Fault has been called.
func (v *view) Faulted() bool { return v.code == ErrFault }

// Return ends a Borrow that returned true.
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

// CopyIn copies b into the view's memory starting at offset from. It does nothing if Borrow returns
// false, and calls Fault if the memory cannot be written.
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

// CopyOut copies the view's memory to b and reports whether it succeeded. It returns false if
// Borrow does, or if the memory cannot be read, in which case it calls Fault.
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
