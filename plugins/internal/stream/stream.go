package stream

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/fault"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

const (
	bufSize = 128 << 10
	// fillUntil is when enough small frames are gathered for one write.
	fillUntil = 64 << 10
	// laneSpace is how much of a lane is read into the buffer at a time, beside what goes to user memory.
	laneSpace = 4 << 10
	// waitSpace is how much a read that may wait takes at a time.
	waitSpace = 1 << 10
	// maxWhole bounds the payload of a frame that is handed over whole.
	maxWhole = 48 << 10
)

// zeroes fill the rest of a piece whose memory is gone.
var zeroes [64 << 10]byte

// An Admit takes in a peer that connected: it returns the link that the stream belongs to from now on, or why the peer
// is turned away. Locked.
type Admit func(g frame.Greeting) (*engine.Link, error)

// In takes frames off a stream. One goroutine at a time uses it.
//
//	for { in.Scatter ─► read ─► in.Got ─► lock ─► in.Parse ─► unlock }
type In struct {
	Link  *engine.Link // nil until the HELLO of a peer that connected to us
	Admit Admit
	Lane  bool // the stream is the link's lane for bulk data

	big   *[bufSize]byte // one of the spares; nil while little is buffered
	small []byte         // of reads that wait; nil without
	buf   []byte         // big, small, or one of the size of what is in it
	r, w  int
	bulk  bool // inside the payload of h, which goes to view
	h     frame.Header
	view  engine.View
	at    int // payload bytes of it that are placed or dropped
	lent  bool
	end   bool // nothing is delivered any more
}

// End stops Parse, now and later: the link goes on without this stream, or not at all. Locked.
func (in *In) End() { in.end = true }

// Close gives the buffer back. Nobody uses the stream any more.
func (in *In) Close() {
	in.r, in.w = 0, 0
	in.Idle()
}

// Scatter appends to iov where the next bytes of the stream go: first the memory that a piece of bulk data is meant
// for, if it is large and may be touched, then the in buffer. Got must follow, whatever the read gave.
func (in *In) Scatter(iov [][]byte) [][]byte {
	if in.bulk && in.r == in.w && in.view.Len()-in.at >= 4<<10 && in.view.Borrow() {
		in.lent = true
		iov = in.view.Slices(iov, in.at, in.view.Len()-in.at)
	}
	space := in.Space()
	if in.Lane { // headers are all that is wanted here: what follows them is to go straight to user memory
		space = space[:min(len(space), laneSpace)]
	}
	return append(iov, space)
}

// Space is where the next bytes of the stream go when they do not go to user memory.
func (in *In) Space() []byte {
	if in.big == nil {
		in.big = spare.get()
		in.move(in.big[:])
	}
	if in.r > 0 && len(in.buf)-in.w < frame.HeaderSize+frame.TailSize+maxWhole {
		in.move(in.buf)
	}
	return in.buf[in.w:]
}

// Wait is Space for a read that may wait: small, because it is held for as long, and there may be many.
func (in *In) Wait() []byte {
	if in.big != nil || len(in.buf)-in.w < waitSpace/2 {
		in.shrink(waitSpace / 2)
	}
	return in.buf[in.w:]
}

// shrink moves what is buffered to a buffer of its size and room bytes more.
func (in *In) shrink(room int) {
	big := in.big
	in.big = nil
	switch n := in.w - in.r + room; {
	case n == 0:
		in.buf, in.r, in.w = nil, 0, 0
	case n <= len(in.small):
		in.move(in.small)
	default:
		to := make([]byte, n)
		if room > 0 && n <= waitSpace {
			to = make([]byte, waitSpace)
			in.small = to
		}
		in.move(to)
	}
	if big != nil {
		spare.put(big)
	}
}

// move moves what is buffered to the beginning of to, which is the buffer from now on.
func (in *In) move(to []byte) {
	in.w = copy(to, in.buf[in.r:in.w])
	in.buf, in.r = to, 0
}

// Got hears that n bytes were read into what Scatter or Space gave.
func (in *In) Got(n int) {
	if in.lent {
		in.lent = false
		direct := min(n, in.view.Len()-in.at)
		in.at += direct
		n -= direct
		in.view.Return()
	}
	in.w += n
}

// Fault hears, instead of Got, that the memory which Scatter gave could not be written, and reports false if it gave
// none. Nothing was read; what comes for that memory will be dropped.
func (in *In) Fault() bool {
	if !in.lent {
		return false
	}
	in.view.Fault()
	in.Got(0)
	return true
}

// Idle gives the buffer back; what is left in it, less than a frame, goes to one of its own size.
func (in *In) Idle() {
	if in.big != nil || in.r == in.w {
		in.shrink(0)
	}
}

// Bulk tells whether what comes next is bulk data. Locked.
func (in *In) Bulk() bool { return in.bulk }

// Parse handles everything that has been read. An error ends the session: the caller fails the link with it, or turns
// the peer away if there is no link. Locked.
func (in *In) Parse() error {
	for {
		if in.end || in.Link != nil && in.Link.Down() {
			in.r = in.w
			return nil
		}
		if in.bulk {
			if !in.place() {
				return nil
			}
			continue
		}
		b := in.bytes()
		if len(b) < frame.HeaderSize {
			return nil
		}
		if kind := frame.Kind(b[4]); in.Link == nil && kind != frame.Hello {
			return na.WithText(na.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", kind))
		}
		if len(b) < frame.Need(b) {
			return nil
		}
		h, err := frame.Parse(b)
		if err != nil {
			return err
		}
		if in.Link == nil && h.Payload() > frame.MaxHello {
			return na.WithText(na.ErrProtocol, fmt.Sprintf("HELLO of %d bytes, the limit is %d", h.Payload(), frame.MaxHello))
		}
		if h.Kind.Bulk() {
			if err := in.beginBulk(h); err != nil {
				return err
			}
			continue
		}
		if h.Payload() > maxWhole {
			return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame with %d bytes, the limit is %d", h.Kind, h.Payload(), maxWhole))
		}
		total := h.Size() + h.Payload()
		if len(b) < total {
			return nil
		}
		if h.Flags&frame.FlagPayload != 0 {
			if err := h.Verify(b[:total]); err != nil {
				return err
			}
		}
		in.r += total
		if err := in.deliver(&h, b[h.Size():total]); err != nil {
			return err
		}
	}
}

func (in *In) bytes() []byte { return in.buf[in.r:in.w] }

func (in *In) deliver(h *frame.Header, payload []byte) error {
	switch {
	case in.Lane:
		return in.Link.DeliverLane(h, payload)
	case in.Link != nil:
		return in.Link.Deliver(h, payload)
	}
	g, err := engine.ParseHello(h, payload)
	if err != nil {
		return err
	}
	in.Link, err = in.Admit(g)
	return err
}

func (in *In) beginBulk(h frame.Header) error {
	if h.Flags&frame.FlagPayload != 0 {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("%v frame with a checksum of its payload", h.Kind))
	}
	v, err := in.Link.Place(&h)
	if err != nil {
		return err
	}
	in.r += h.Size()
	in.bulk, in.h, in.view, in.at = true, h, v, 0
	return nil
}

// place moves what is buffered of a piece to its memory, and reports whether the piece is complete.
func (in *In) place() bool {
	n := min(in.view.Len()-in.at, in.w-in.r)
	if n > 0 {
		if in.view.Borrow() {
			from := in.buf[in.r : in.r+n]
			var room [8][]byte
			for _, to := range in.view.Slices(room[:0], in.at, n) {
				k, ok := fault.Copy(to, from)
				if !ok {
					in.view.Fault()
					break
				}
				from = from[k:]
			}
			in.view.Return()
		}
		in.r += n
		in.at += n
	}
	if in.at < in.view.Len() {
		return false
	}
	in.bulk = false
	in.Link.Placed(&in.h, &in.view)
	in.view = engine.View{}
	return true
}

// Out puts the frames of a link onto a stream. One goroutine at a time uses it.
//
//	for { lock ─► out.Fill ─► unlock ─► out.Gather ─► write ─► out.Wrote }
type Out struct {
	Link *engine.Link
	Lane bool // the stream is the link's lane for bulk data

	buf   *[bufSize]byte
	b     []byte // of buf, not yet written
	bulk  bool   // chunk follows b
	chunk engine.Chunk
	at    int // bytes of chunk that are written
	lent  bool
}

// Fill pulls frames until there is enough for one write, and reports whether there is anything to write. Locked.
func (out *Out) Fill() bool {
	if out.bulk && out.chunk.Faulted() {
		out.Link.Faulted(&out.chunk)
	}
	if out.bulk && out.at == out.chunk.Len() {
		out.bulk = false
		out.Link.Sent(&out.chunk)
		out.chunk = engine.Chunk{}
	}
	if len(out.b) == 0 && !out.bulk {
		out.fill()
	}
	if len(out.b) == 0 && !out.bulk && out.buf != nil {
		spare.put(out.buf)
		out.buf, out.b = nil, nil
	}
	return len(out.b) > 0 || out.bulk
}

func (out *Out) fill() {
	if out.buf == nil {
		if !out.more() {
			return
		}
		out.buf = spare.get()
	}
	b := out.buf[:0]
	for len(b) < fillUntil {
		next, c, ok := out.next(b)
		if !ok {
			break
		}
		b = next
		if c.Len() > 0 {
			out.chunk, out.bulk, out.at = c, true, 0
			break
		}
	}
	out.b = b
}

func (out *Out) more() bool {
	if out.Lane {
		return out.Link.MoreLane()
	}
	return out.Link.More()
}

func (out *Out) next(b []byte) ([]byte, engine.Chunk, bool) {
	if out.Lane {
		return out.Link.NextLane(b)
	}
	return out.Link.Next(b, true)
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
		spare.put(out.buf)
	}
	out.buf, out.b, out.bulk = nil, nil, false
	out.chunk = engine.Chunk{}
}

// Front returns how many of the bytes that Gather will give belong to frames that a checksum covers; the rest is bulk
// data.
func (out *Out) Front() int { return len(out.b) }

// Pending tells whether bytes wait to be written.
func (out *Out) Pending() bool { return len(out.b) > 0 || out.bulk }

// Gather appends to iov what to write next. Wrote must follow, whatever the write did. User memory is held between.
func (out *Out) Gather(iov [][]byte) [][]byte {
	if len(out.b) > 0 {
		iov = append(iov, out.b)
	}
	if !out.bulk {
		return iov
	}
	if out.chunk.Borrow() {
		out.lent = true
		return out.chunk.Slices(iov, out.at, out.chunk.Len()-out.at)
	}
	for left := out.chunk.Len() - out.at; left > 0; {
		n := min(left, len(zeroes))
		iov = append(iov, zeroes[:n])
		left -= n
	}
	return iov
}

// Copy copies to b what to write next, and returns the number of bytes: for a write that may wait, which must not hold
// user memory. Wrote must not follow. Locked.
func (out *Out) Copy(b []byte) int {
	n := 0
	var room [8][]byte
	for _, s := range out.Gather(room[:0]) {
		k, ok := fault.Copy(b[n:], s)
		if !ok && out.Fault() {
			out.Link.Faulted(&out.chunk)
			return out.Copy(b)
		}
		n += k
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
	out.chunk.Fault()
	out.Wrote(0)
	return true
}

// Wrote hears that n bytes of what Gather gave were written.
func (out *Out) Wrote(n int) {
	if out.lent {
		out.lent = false
		out.chunk.Return()
	}
	small := min(n, len(out.b))
	out.b = out.b[small:]
	out.at += n - small
}
