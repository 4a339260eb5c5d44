package framing

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const (
	// bulkReadSize is the maximum number of bytes that a read on the Bulk lane stores in the
	// buffer, in addition to the bytes for user memory.
	bulkReadSize = 4 << 10
	// waitReadSize is the size of the buffer used for a read that may block.
	waitReadSize = 1 << 10
	// minDirect is the payload size in bytes at which a message that has not arrived completely is
	// read directly into its own memory.
	minDirect = 8 << 10
)

// In parses the frames of a stream. It is not safe for concurrent use. Some methods, as documented,
// require the caller to hold the context's lock.
//
// For each read, the caller calls Scatter, reads into the buffers that it returns, calls Got, and
// then calls Parse with the lock held.
type In struct {
	Session carrier.Session // nil until Greet has admitted a peer that connected
	Lane    carrier.Lane
	// Greet, if not nil, is called with the peer's HELLO instead of Session.Greet, with the
	// context's lock held. It sets Session if that is nil, or returns the error with which to
	// reject the peer.
	Greet   func(g *frame.Greeting) error
	Large   bool     // a piece of at least carrier.BulkMin bytes has arrived
	Buffers *Buffers // must be set before calling Space, Scatter or Parse; Wait works without it

	big     *[bufSize]byte // a buffer from Buffers; nil while few bytes are buffered
	small   []byte         // buffer for reads that may block, or nil
	buf     []byte         // big, small, or a buffer exactly as long as its contents
	r, w    int            // buf[r:w] has been read but not parsed
	greeted bool           // the peer's HELLO has arrived
	// inPayload is set if the next bytes are the payload of a piece or of a long message, to be
	// stored in view.
	inPayload    bool
	isMessage    bool // the payload belongs to a message, and sum is its checksum
	sum          frame.Sum
	head         frame.Header // header of the frame being parsed
	view         carrier.View
	viewPos      int  // number of payload bytes copied to view or discarded
	viewBorrowed bool // set between Scatter and Got if Scatter returned view's memory
	ended        bool // whether End was called
}

// End makes the current and later calls of Parse stop. It is called when the session continues
// without this stream or has ended. The caller must hold the context's lock.
func (in *In) End() { in.ended = true }

// Close releases the buffer. The stream must not be used afterward.
func (in *In) Close() {
	in.r, in.w = 0, 0
	in.Idle()
}

// Scatter appends to iov the buffers for the next read. The first are the destination memory of a
// bulk data piece or a long message, if at least 4 KiB of it remain and it may be accessed. The
// last is in's own buffer. Scatter returns at most MaxVectors buffers. After the read the caller
// must call Got or Fault, even if the read failed.
func (in *In) Scatter(iov [][]byte) [][]byte {
	if in.inPayload && in.r == in.w && in.view.Len()-in.viewPos >= 4<<10 && in.view.Borrow() {
		in.viewBorrowed = true
		iov = carrier.Slices(iov, in.view, in.viewPos, in.view.Len()-in.viewPos, MaxVectors)
		if len(iov) == MaxVectors {
			return iov
		}
	}
	space := in.Space()
	// Leave room only for headers, so that the payload after them can be read directly into user
	// memory.
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

// Wait is like Space, but for a read that may block. It returns a small buffer, because many
// streams may hold one for a long time.
func (in *In) Wait() []byte {
	if in.big != nil || len(in.buf)-in.w < waitReadSize/2 {
		in.shrink(waitReadSize / 2)
	}
	return in.buf[in.w:]
}

// shrink moves the buffered bytes to a buffer that is not from the pool and has space for room more
// bytes, and returns the pooled buffer.
func (in *In) shrink(room int) {
	big := in.big
	in.big = nil
	if room == 0 { // reads of this stream do not block, so an idle stream keeps no buffer
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

// moveTo moves the buffered bytes to the beginning of to, which becomes the current buffer.
func (in *In) moveTo(to []byte) {
	in.w = copy(to, in.buf[in.r:in.w])
	in.buf, in.r = to, 0
}

// Got must be called after each read, with the number of bytes read into the buffers returned by
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

// Fault must be called instead of Got if the read failed with EFAULT and read nothing. If Scatter
// returned user memory, Fault returns true, and the rest of the payload for that memory is
// discarded. Otherwise it returns false.
func (in *In) Fault() bool {
	if !in.viewBorrowed {
		return false
	}
	in.view.Fault()
	in.Got(0)
	return true
}

// Idle releases the buffer until the next read. Any remaining bytes, less than a frame, are moved
// to a buffer of exactly their size.
func (in *In) Idle() {
	if in.big != nil || in.r == in.w {
		in.shrink(0)
	}
}

// Bulk reports whether the next bytes are bulk data. The caller must hold the context's lock.
func (in *In) Bulk() bool { return in.inPayload && !in.isMessage }

// Parse handles all bytes read so far. If it returns an error, the caller must end the session with
// it, or reject the peer if there is no session. The caller must hold the context's lock.
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

// buffered returns the bytes that have not been parsed.
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

// beginPayload consumes the header h, and prepares to store its payload in the View that the
// session returns for it.
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

// placePayload copies the buffered payload bytes to the View and reports whether the payload is
// complete.
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
