package framing

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// fillTarget is the number of buffered bytes at which no more frames are pulled for one write.
const fillTarget = 64 << 10

// zeroes replaces the rest of a piece whose memory is no longer accessible.
var zeroes [64 << 10]byte

// Out writes a session's frames to a stream, starting with the HELLO. It is not safe for concurrent
// use. Some methods, as documented, require the caller to hold the context's lock.
//
// For each write, the caller calls Fill with the lock held, and then, without the lock, calls
// Gather, writes the buffers that it returns, and calls Wrote.
type Out struct {
	Session carrier.Session
	Lane    carrier.Lane
	Label   []byte // sent in the HELLO
	Large   bool   // a piece of at least carrier.BulkMin bytes has been pulled
	Buffers *Buffers

	greeted      bool           // the HELLO has been added to the stream
	buf          *[bufSize]byte // nil while there is nothing to write
	unwritten    []byte         // part of buf that remains to be written
	inPayload    bool           // the rest of view is to be written after unwritten
	view         carrier.View
	viewPos      int  // number of bytes of view written
	viewBorrowed bool // set between Gather and Wrote if Gather returned view's memory
	staged       bool // frames were added since the last Fill; see Stages
	hasOutput    bool // result of the last Fill
}

var _ carrier.Writer = (*Out)(nil)

// Fill pulls frames from the session until there are enough for one write, and reports whether
// there is anything to write. The caller must hold the context's lock.
func (out *Out) Fill() bool {
	if out.inPayload && out.view.Faulted() {
		out.Session.Faulted(out.view)
	}
	if out.inPayload && out.viewPos == out.view.Len() {
		out.inPayload = false
		out.Session.Sent(out.view)
		out.view = nil
	}
	switch {
	case out.inPayload:
	case len(out.unwritten) == 0:
		out.pullFrames()
	case out.staged:
		out.Session.Pull(out.Lane, out)
	}
	out.staged = false
	if len(out.unwritten) == 0 && !out.inPayload && out.buf != nil {
		out.Buffers.put(out.buf)
		out.buf, out.unwritten = nil, nil
	}
	out.hasOutput = len(out.unwritten) > 0 || out.inPayload
	return out.hasOutput
}

// Stages reports whether frames may be added now. They may be added only if everything pulled
// earlier has been written, and are written together with the frames pulled by the next Fill. The
// caller must hold the context's lock.
func (out *Out) Stages() bool {
	if out.hasOutput || !out.greeted {
		return false
	}
	if len(out.unwritten) == 0 && out.buf != nil {
		out.unwritten = out.buf[:0]
	}
	out.staged = true
	return true
}

// pullFrames pulls frames into an empty buffer, adding the HELLO first if it has not been sent.
func (out *Out) pullFrames() {
	if out.buf != nil {
		out.unwritten = out.buf[:0]
	}
	if !out.greeted {
		out.greeted = true
		h := frame.Header{Kind: frame.Hello, Tag: frame.Magic}
		out.Frame(&h, out.Session.Hello(out.Lane, nil, out.Label))
	}
	out.Session.Pull(out.Lane, out)
}

// Room implements carrier.Writer.
func (out *Out) Room() (whole, piece int) {
	if out.inPayload || len(out.unwritten) >= fillTarget {
		return -1, 0
	}
	return min(frame.MaxWhole, bufSize-len(out.unwritten)-frame.HeaderSize-frame.TailSize), carrier.PieceSize
}

// Frame implements carrier.Writer.
func (out *Out) Frame(h *frame.Header, payload []byte) {
	out.unwritten = h.Append(out.ensureBuf(), payload)
}

// Piece implements carrier.Writer.
func (out *Out) Piece(h *frame.Header, v carrier.View) {
	out.unwritten = h.AppendFront(out.ensureBuf(), v.Len())
	out.view, out.inPayload, out.viewPos = v, true, 0
	out.Large = out.Large || v.Len() >= carrier.BulkMin
}

// ensureBuf allocates a buffer if there is none, and returns the slice to which to append frames.
func (out *Out) ensureBuf() []byte {
	if out.buf == nil {
		out.buf = out.Buffers.get()
		out.unwritten = out.buf[:0]
	}
	return out.unwritten
}

// Last adds the session's last frame. It returns false, and adds nothing, if the stream is in the
// middle of a frame. Fill must not be called afterward. The caller must hold the context's lock.
func (out *Out) Last(b []byte) bool {
	if out.inPayload {
		return false
	}
	out.unwritten = append(out.unwritten, b...)
	return true
}

// Close releases the buffer. The stream must not be used afterward.
func (out *Out) Close() {
	if out.buf != nil {
		out.Buffers.put(out.buf)
	}
	out.buf, out.unwritten, out.inPayload = nil, nil, false
	out.view = nil
}

// Front returns the number of pending bytes in out's buffer, which hold frames with a checksum. The
// bytes after them are bulk data.
func (out *Out) Front() int { return len(out.unwritten) }

// Pending reports whether there are bytes to write.
func (out *Out) Pending() bool { return len(out.unwritten) > 0 || out.inPayload }

// MaxVectors is the largest number of buffers that Gather and Scatter return.
const MaxVectors = 64

// Gather appends to iov the buffers to write next, at most MaxVectors of them. After the write the
// caller must call Wrote or Fault, even if the write failed. User memory remains borrowed between
// these calls.
func (out *Out) Gather(iov [][]byte) [][]byte { return out.gatherUpTo(iov, MaxVectors) }

// gatherUpTo is like Gather, but with the given maximum number of buffers.
func (out *Out) gatherUpTo(iov [][]byte, most int) [][]byte {
	if len(out.unwritten) > 0 {
		iov = append(iov, out.unwritten)
		most--
	}
	if !out.inPayload {
		return iov
	}
	if out.view.Borrow() {
		out.viewBorrowed = true
		return carrier.Slices(iov, out.view, out.viewPos, out.view.Len()-out.viewPos, most)
	}
	for left := out.view.Len() - out.viewPos; left > 0 && most > 0; most-- {
		n := min(left, len(zeroes))
		iov = append(iov, zeroes[:n])
		left -= n
	}
	return iov
}

// Copy copies the next bytes to write into b and returns their number. It is for writes that may
// block and therefore must not borrow user memory. Wrote must not be called after it. The caller
// must hold the context's lock.
func (out *Out) Copy(b []byte) int {
	var room [8][]byte
	n, ok := memfault.Gather(b, out.gatherUpTo(room[:0], math.MaxInt))
	if !ok && out.Fault() {
		out.Session.Faulted(out.view)
		return out.Copy(b)
	}
	out.Wrote(n)
	return n
}

// Fault must be called instead of Wrote if the write failed with EFAULT and wrote nothing. If
// Gather returned user memory, Fault returns true, and zeros are sent in place of that memory after
// the next Fill. Otherwise it returns false.
func (out *Out) Fault() bool {
	if !out.viewBorrowed {
		return false
	}
	out.view.Fault()
	out.Wrote(0)
	return true
}

// Wrote must be called after each write, with the number of bytes written from the buffers returned
// by Gather.
func (out *Out) Wrote(n int) {
	if out.viewBorrowed {
		out.viewBorrowed = false
		out.view.Return()
	}
	small := min(n, len(out.unwritten))
	out.unwritten = out.unwritten[small:]
	out.viewPos += n - small
}
