package framing

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// fillUntil is when enough small frames are gathered for one write.
const fillUntil = 64 << 10

// zeroes fill the rest of a piece whose memory is gone.
var zeroes [64 << 10]byte

// Out puts the frames of a session onto a stream, the HELLO first. One goroutine at a time uses it.
//
//	for { lock ─► out.Fill ─► unlock ─► out.Gather ─► write ─► out.Wrote }
type Out struct {
	Session carrier.Session
	Lane    carrier.Lane
	Label   []byte // of the HELLO
	Large   bool   // a piece of carrier.BulkMin bytes or more has been taken
	Buffers *Buffers

	greeted bool // the HELLO has been taken
	buf     *[bufSize]byte
	b       []byte // of buf, not yet written
	bulk    bool   // view follows b
	view    carrier.View
	at      int // bytes of view that are written
	lent    bool
	staged  bool // b is what was taken before Fill
	filled  bool // the last Fill has found something to write
}

var _ carrier.Writer = (*Out)(nil)

// Fill pulls frames until there is enough for one write, and reports whether there is anything to write. Locked.
func (out *Out) Fill() bool {
	if out.bulk && out.view.Faulted() {
		out.Session.Faulted(out.view)
	}
	if out.bulk && out.at == out.view.Len() {
		out.bulk = false
		out.Session.Sent(out.view)
		out.view = nil
	}
	switch {
	case out.bulk:
	case len(out.b) == 0:
		out.fill()
	case out.staged:
		out.Session.Pull(out.Lane, out)
	}
	out.staged = false
	if len(out.b) == 0 && !out.bulk && out.buf != nil {
		out.Buffers.put(out.buf)
		out.buf, out.b = nil, nil
	}
	out.filled = len(out.b) > 0 || out.bulk
	return out.filled
}

// Stages reports whether out takes frames now, because everything before them has been written; they leave with what the next Fill
// pulls. Locked.
func (out *Out) Stages() bool {
	if out.filled || !out.greeted {
		return false
	}
	if len(out.b) == 0 && out.buf != nil {
		out.b = out.buf[:0]
	}
	out.staged = true
	return true
}

func (out *Out) fill() {
	if out.buf != nil {
		out.b = out.buf[:0]
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
	if out.bulk || len(out.b) >= fillUntil {
		return -1, 0
	}
	return min(frame.MaxWhole, bufSize-len(out.b)-frame.HeaderSize-frame.TailSize), carrier.PieceSize
}

// Frame implements carrier.Writer.
func (out *Out) Frame(h *frame.Header, payload []byte) { out.b = h.Append(out.room(), payload) }

// Piece implements carrier.Writer.
func (out *Out) Piece(h *frame.Header, v carrier.View) {
	out.b = h.AppendFront(out.room(), v.Len())
	out.view, out.bulk, out.at = v, true, 0
	out.Large = out.Large || v.Len() >= carrier.BulkMin
}

// room is the buffer, in use from now on.
func (out *Out) room() []byte {
	if out.buf == nil {
		out.buf = out.Buffers.get()
		out.b = out.buf[:0]
	}
	return out.b
}

// Last adds the last frame of the session, and reports whether that is possible without breaking a frame in the
// middle. Fill is not called after it. Locked.
func (out *Out) Last(b []byte) bool {
	if out.bulk {
		return false
	}
	out.b = append(out.b, b...)
	return true
}

// Close gives the buffer back. Nobody uses the stream any more.
func (out *Out) Close() {
	if out.buf != nil {
		out.Buffers.put(out.buf)
	}
	out.buf, out.b, out.bulk = nil, nil, false
	out.view = nil
}

// Front returns how many of the bytes that Gather will give belong to frames that a checksum covers; the rest is bulk
// data.
func (out *Out) Front() int { return len(out.b) }

// Pending reports whether bytes wait to be written.
func (out *Out) Pending() bool { return len(out.b) > 0 || out.bulk }

// MaxVectors is how many pieces of memory Gather and Scatter give at a time.
const MaxVectors = 64

// Gather appends to iov what to write next, MaxVectors pieces at most. Wrote must follow, whatever the write did. User memory
// is held between.
func (out *Out) Gather(iov [][]byte) [][]byte { return out.gather(iov, MaxVectors) }

func (out *Out) gather(iov [][]byte, most int) [][]byte {
	if len(out.b) > 0 {
		iov = append(iov, out.b)
	}
	if !out.bulk {
		return iov
	}
	if out.view.Borrow() {
		out.lent = true
		return carrier.Slices(iov, out.view, out.at, out.view.Len()-out.at, most)
	}
	for left := out.view.Len() - out.at; left > 0; {
		n := min(left, len(zeroes))
		iov = append(iov, zeroes[:n])
		left -= n
	}
	return iov
}

// Copy copies to b what to write next, and returns the number of bytes: for a write that may wait, which must not hold
// user memory. Wrote must not follow. Locked.
func (out *Out) Copy(b []byte) int {
	var room [8][]byte
	n, ok := memfault.Gather(b, out.gather(room[:0], math.MaxInt))
	if !ok && out.Fault() {
		out.Session.Faulted(out.view)
		return out.Copy(b)
	}
	out.Wrote(n)
	return n
}

// Fault hears, instead of Wrote, that the memory which Gather gave could not be read, and reports false if it gave
// none. Nothing was written; zeroes follow in its place, after the next Fill.
func (out *Out) Fault() bool {
	if !out.lent {
		return false
	}
	out.view.Fault()
	out.Wrote(0)
	return true
}

// Wrote hears that n bytes of what Gather gave were written.
func (out *Out) Wrote(n int) {
	if out.lent {
		out.lent = false
		out.view.Return()
	}
	small := min(n, len(out.b))
	out.b = out.b[small:]
	out.at += n - small
}
