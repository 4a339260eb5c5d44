package engine

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A View is a piece of memory that a frame's payload is read from or placed into: n bytes of mem at off, on behalf of
// an operation of this process (its ticket guards the memory) or of a peer; or of a body; or the buffer of a message that arrives.
type View struct {
	t      na.Ticket // of an operation of this process
	mem    *na.Mem   // nil: discard, unless there are bytes
	bytes  []byte    // of a body, instead of mem
	off    int64
	n      int64
	source *source   // what it is a piece of, sending
	sink   *sink     // and receiving
	msg    *arriving // instead of mem: a message
	code   na.Code   // why it is gone: ErrRevoked after a Borrow that reported false, ErrFault after Fault
}

// Len returns the number of bytes.
func (v *View) Len() int { return int(v.n) }

// Discard reports that the payload has no destination: its bytes are read and dropped.
func (v *View) Discard() bool {
	return v.mem == nil && v.bytes == nil && (v.msg == nil || v.msg.env == nil)
}

// Borrow reports whether the memory may be touched, until Return. It is short: one copy, or one system call that does
// not wait. Once it has reported false the View is gone for good: a stream in the middle of a piece sends zeroes, any other
// sender nothing more of it, and a receiver drops the bytes.
func (v *View) Borrow() bool {
	if v.Discard() || v.code != na.OK {
		return false
	}
	if v.msg != nil {
		return true // the buffer is the View's until Placed
	}
	own := v.t.Valid()
	if v.bytes != nil { // one that arrives is the View's until Placed
		if own && !v.t.Hold() {
			v.code = na.ErrRevoked
		}
		return v.code == na.OK
	}
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

// Faulted reports whether Fault was called.
func (v *View) Faulted() bool { return v.code == na.ErrFault }

// Return ends a Borrow that reported true.
func (v *View) Return() {
	if v.msg != nil {
		return
	}
	if v.mem != nil {
		v.mem.Release()
	}
	if v.t.Valid() {
		v.t.Release()
	}
}

// CopyIn copies b to the memory at from within the view, if that may be touched. Memory that cannot be written is a Fault.
func (v *View) CopyIn(from int, b []byte) {
	if !v.Borrow() {
		return
	}
	var room [16][]byte
	if _, ok := memfault.Scatter(v.Slices(room[:0], from, len(b)), b); !ok {
		v.Fault()
	}
	v.Return()
}

// CopyOut copies all of the memory to b, and reports false if it may not be touched, or cannot be read, which is a Fault.
func (v *View) CopyOut(b []byte) (ok bool) {
	if !v.Borrow() {
		return false
	}
	var room [16][]byte
	if _, ok = memfault.Gather(b, v.Slices(room[:0], 0, v.Len())); !ok {
		v.Fault()
	}
	v.Return()
	return ok
}

// Slices appends to dst the memory of the n bytes at from within the view. Only between Borrow and Return.
func (v *View) Slices(dst [][]byte, from, n int) [][]byte {
	return v.SlicesUpTo(dst, from, n, math.MaxInt)
}

// SlicesUpTo is Slices, but stops when dst has most pieces.
func (v *View) SlicesUpTo(dst [][]byte, from, n, most int) [][]byte {
	if v.msg != nil {
		return append(dst, v.msg.env.Data[from:from+n])
	}
	if v.bytes != nil {
		return append(dst, v.bytes[v.off+int64(from):][:n])
	}
	return v.mem.SlicesUpTo(dst, v.off+int64(from), int64(n), most)
}
