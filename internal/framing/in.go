package framing

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const (
	// bulkReadSize limits the bytes of lane Bulk that a read stores in the buffer, besides
	// those for user memory.
	bulkReadSize = 4 << 10
	// waitReadSize is the size of the buffer for a read that may block.
	waitReadSize = 1 << 10
	// minDirect is the payload size in bytes from which on a message that has not arrived
	// completely is read directly into its own memory.
	minDirect = 8 << 10
)

// In parses the frames of a stream. One goroutine at a time uses it. Methods that say so need the
// context's lock.
//
//	for { in.Scatter ─► read ─► in.Got ─► lock ─► in.Parse ─► unlock }
type In struct {
	Session carrier.Session // nil until Greet has admitted a peer that has connected
	Lane    carrier.Lane
	// Greet, if not nil, is called with the peer's HELLO instead of Session.Greet, with the lock
	// held. It sets Session if that is nil, or returns the error with which the peer is refused.
	Greet   func(g *frame.Greeting) error
	Large   bool     // a piece of carrier.BulkMin bytes or more has arrived
	Buffers *Buffers // must be set before Space, Scatter or Parse is called; Wait works without

	big     *[bufSize]byte // one of Buffers; nil while few bytes are buffered
	small   []byte         // of reads that may block; nil if there is none
	buf     []byte         // big, small, or a buffer of the size of its contents
	r, w    int            // buf[r:w] was read and is not parsed
	greeted bool           // the peer's HELLO has arrived
	// the next bytes are the payload of a piece or of a long message, and go to view
	inPayload    bool
	isMessage    bool // that payload is of a message, and sum is its checksum
	sum          frame.Sum
	head         frame.Header // of the frame that is parsed
	view         carrier.View
	viewPos      int  // payload bytes that were copied to view or dropped
	viewBorrowed bool // between Scatter and Got, if Scatter returned memory of view
	ended        bool // End was called
}

// End stops Parse, now and later: the session continues without this stream, or has ended. The lock
// is held.
func (in *In) End() { in.ended = true }

// Close releases the buffer. The stream must not be used any more.
func (in *In) Close() {
	in.r, in.w = 0, 0
	in.Idle()
}

// Scatter appends to iov the buffers for the next read: first the memory for which a piece of bulk
// data or a long message is meant, if at least 4 KiB are left and it may be accessed, then the
// buffer of in; at most MaxVectors buffers. The caller must call Got or Fault after the read,
// whatever its result.
func (in *In) Scatter(iov [][]byte) [][]byte {
	if in.inPayload && in.r == in.w && in.view.Len()-in.viewPos >= 4<<10 && in.view.Borrow() {
		in.viewBorrowed = true
		iov = carrier.Slices(iov, in.view, in.viewPos, in.view.Len()-in.viewPos, MaxVectors)
		if len(iov) == MaxVectors {
			return iov
		}
	}
	space := in.Space()
	// Only room for headers: the payload behind them can then be read directly into user memory.
	if in.Lane == carrier.Bulk {
		space = space[:min(len(space), bulkReadSize)]
	}
	return append(iov, space)
}

// Space returns the buffer for a read that does not use user memory. The caller must call Got after
// the read.
func (in *In) Space() []byte {
	if in.big == nil {
		in.big = in.Buffers.get()
		in.moveTo(in.big[:])
	}
	if in.r > 0 && len(in.buf)-in.w < frame.HeaderSize+frame.TailSize+frame.MaxWhole {
		in.moveTo(in.buf)
	}
	return in.buf[in.w:]
}

// Wait is Space for a read that may block: the buffer is small, because many streams may hold one
// for a long time.
func (in *In) Wait() []byte {
	if in.big != nil || len(in.buf)-in.w < waitReadSize/2 {
		in.shrink(waitReadSize / 2)
	}
	return in.buf[in.w:]
}

// shrink moves the buffered bytes to a buffer of their size plus room bytes.
func (in *In) shrink(room int) {
	big := in.big
	in.big = nil
	if room == 0 { // reads of this stream do not block: keep no buffer while it is idle
		in.small = nil
	}
	switch n := in.w - in.r + room; {
	case n == 0:
		in.buf, in.r, in.w = nil, 0, 0
	case n <= len(in.small):
		in.moveTo(in.small)
	default:
		to := make([]byte, n)
		if room > 0 && n <= waitReadSize {
			to = make([]byte, waitReadSize)
			in.small = to
		}
		in.moveTo(to)
	}
	if big != nil {
		in.Buffers.put(big)
	}
}

// moveTo moves the buffered bytes to the beginning of to, which becomes the buffer.
func (in *In) moveTo(to []byte) {
	in.w = copy(to, in.buf[in.r:in.w])
	in.buf, in.r = to, 0
}

// Got is called after each read, with the number of bytes that were read into the buffers of
// Scatter, Space or Wait.
func (in *In) Got(n int) {
	if in.viewBorrowed {
		in.viewBorrowed = false
		direct := min(n, in.view.Len()-in.viewPos)
		if in.isMessage {
			var room [1][]byte
			for _, b := range carrier.Slices(room[:0], in.view, in.viewPos, direct, 1) {
				in.sum.Add(b)
			}
		}
		in.viewPos += direct
		n -= direct
		in.view.Return()
	}
	in.w += n
}

// Fault is called instead of Got if the read failed with EFAULT and nothing was read. If Scatter
// returned user memory, its payload is dropped from now on; otherwise Fault returns false.
func (in *In) Fault() bool {
	if !in.viewBorrowed {
		return false
	}
	in.view.Fault()
	in.Got(0)
	return true
}

// Idle releases the buffer until the next read. The rest in it, less than a frame, is moved to a
// buffer of its size.
func (in *In) Idle() {
	if in.big != nil || in.r == in.w {
		in.shrink(0)
	}
}

// Bulk reports whether the next bytes are bulk data. The lock is held.
func (in *In) Bulk() bool { return in.inPayload && !in.isMessage }

// Parse handles all bytes that were read. After an error the caller ends the session with it, or
// refuses the peer if there is no session. The lock is held.
func (in *In) Parse() error {
	for {
		if in.ended || in.Session != nil && in.Session.Down() {
			in.r = in.w
			return nil
		}
		if in.inPayload {
			if whole, err := in.placePayload(); !whole || err != nil {
				return err
			}
			continue
		}
		b := in.buffered()
		if len(b) < frame.HeaderSize {
			return nil
		}
		if kind := frame.Kind(b[4]); !in.greeted && kind != frame.Hello && (kind != frame.Goaway || in.Session == nil) {
			return codes.WithText(codes.ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", kind))
		}
		if len(b) < frame.Need(b) {
			return nil
		}
		var err error
		if in.head, err = frame.Parse(b); err != nil {
			return err
		}
		h := &in.head
		if h.Kind == frame.Hello && h.Payload() > frame.MaxHello {
			return codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO of %d bytes, the limit is %d", h.Payload(), frame.MaxHello))
		}
		if h.Kind.Bulk() {
			if h.Flags&frame.FlagPayload != 0 {
				return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame with a checksum of its payload", h.Kind))
			}
			if err := in.beginPayload(h); err != nil {
				return err
			}
			continue
		}
		if h.Payload() > frame.MaxWhole {
			return codes.WithText(codes.ErrProtocol,
				fmt.Sprintf("%v frame with %d bytes, the limit is %d", h.Kind, h.Payload(), frame.MaxWhole))
		}
		total := h.Size() + h.Payload()
		if len(b) < total {
			if !in.greeted || h.Payload() < minDirect || h.Kind != frame.Unexpected && h.Kind != frame.Expected {
				return nil
			}
			in.isMessage, in.sum = true, h.SumOf(b)
			if err := in.beginPayload(h); err != nil {
				return err
			}
			continue
		}
		if h.Flags&frame.FlagPayload != 0 {
			if err := h.Verify(b[:total]); err != nil {
				return err
			}
		}
		in.r += total
		if err := in.deliverFrame(h, b[h.Size():total]); err != nil {
			return err
		}
	}
}

// buffered returns the bytes that are not parsed.
func (in *In) buffered() []byte { return in.buf[in.r:in.w] }

// deliverFrame passes a complete frame to the session, or to Greet if it is the HELLO.
func (in *In) deliverFrame(h *frame.Header, payload []byte) error {
	switch {
	case h.Kind == frame.Goaway && in.Session != nil:
		bye := h.Bye(payload)
		if in.Lane != carrier.Messages {
			return codes.WithText(bye.Code, "the peer closed the bulk connection: "+bye.Text)
		}
		in.Session.Refused(bye)
		return nil
	case in.greeted:
		return in.Session.Deliver(h, payload)
	}
	g, err := frame.ParseHello(h, payload)
	if err != nil {
		return err
	}
	in.greeted = true
	if in.Greet != nil {
		return in.Greet(&g)
	}
	return in.Session.Greet(&g)
}

// beginPayload skips the header h, whose payload goes to the View that the session returns for it.
func (in *In) beginPayload(h *frame.Header) error {
	v, err := in.Session.Place(h)
	if err != nil {
		return err
	}
	in.r += h.Size()
	in.inPayload, in.view, in.viewPos = true, v, 0
	in.Large = in.Large || h.Kind.Bulk() && v.Len() >= carrier.BulkMin
	return nil
}

// placePayload copies the buffered bytes of a payload to its View, and reports whether the payload
// is complete.
func (in *In) placePayload() (whole bool, err error) {
	n := min(in.view.Len()-in.viewPos, in.w-in.r)
	if n > 0 {
		b := in.buf[in.r : in.r+n]
		if in.isMessage {
			in.sum.Add(b)
		}
		in.view.CopyIn(in.viewPos, b)
		in.r += n
		in.viewPos += n
	}
	if in.viewPos < in.view.Len() {
		return false, nil
	}
	if in.isMessage && !in.sum.Check() {
		return true, codes.WithText(codes.ErrChecksum, fmt.Sprintf("message of %d bytes: checksum mismatch", in.view.Len()))
	}
	in.inPayload, in.isMessage = false, false
	err = in.Session.Placed(in.view)
	in.view = nil
	return true, err
}
