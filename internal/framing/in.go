package framing

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const (
	// bulkSpace is how much of FlowBulk is read into the buffer at a time, beside what goes to user memory.
	bulkSpace = 4 << 10
	// waitSpace is how much a read that may wait takes at a time.
	waitSpace = 1 << 10
	// placeFrom is the payload from which a message that is not there whole goes straight to its own buffer.
	placeFrom = 8 << 10
)

// In takes frames off a stream. One goroutine at a time uses it.
//
//	for { in.Scatter ─► read ─► in.Got ─► lock ─► in.Parse ─► unlock }
type In struct {
	Session carrier.Session // nil until Greet has admitted a peer that connected to us
	Lane    carrier.Lane
	// Greet, if not nil, takes the peer's HELLO instead of Session.Greet. It sets Session if that is nil, or returns why the peer is
	// turned away. Locked.
	Greet   func(g *frame.Greeting) error
	Large   bool     // a piece of carrier.BulkMin bytes or more has come
	Buffers *Buffers // set before Space, Scatter or Parse is called; Wait does without

	big     *[bufSize]byte // one of Buffers; nil while little is buffered
	small   []byte         // of reads that wait; nil without
	buf     []byte         // big, small, or one of the size of what is in it
	r, w    int
	greeted bool // the peer's HELLO has come
	bulk    bool // inside the payload of a piece, or of a long message, which goes to view
	message bool // it is of a message, and sum covers it
	sum     frame.Sum
	head    frame.Header // of the frame that is handled
	view    carrier.View
	at      int // payload bytes of it that are placed or dropped
	lent    bool
	end     bool // nothing is delivered any more
}

// End stops Parse, now and later: the session goes on without this stream, or not at all. Locked.
func (in *In) End() { in.end = true }

// Close gives the buffer back. Nobody uses the stream any more.
func (in *In) Close() {
	in.r, in.w = 0, 0
	in.Idle()
}

// Scatter appends to iov where the next bytes of the stream go: first the memory that a piece of bulk data or a message is
// meant for, if it is large and may be touched, then the in buffer, in MaxVectors pieces at most. Got must follow, whatever the
// read gave.
func (in *In) Scatter(iov [][]byte) [][]byte {
	if in.bulk && in.r == in.w && in.view.Len()-in.at >= 4<<10 && in.view.Borrow() {
		in.lent = true
		iov = carrier.Slices(iov, in.view, in.at, in.view.Len()-in.at, MaxVectors)
		if len(iov) == MaxVectors {
			return iov
		}
	}
	space := in.Space()
	if in.Lane == carrier.Bulk { // headers are all that is wanted: what follows them is to go straight to user memory
		space = space[:min(len(space), bulkSpace)]
	}
	return append(iov, space)
}

// Space is where the next bytes of the stream go when they do not go to user memory.
func (in *In) Space() []byte {
	if in.big == nil {
		in.big = in.Buffers.get()
		in.move(in.big[:])
	}
	if in.r > 0 && len(in.buf)-in.w < frame.HeaderSize+frame.TailSize+frame.MaxWhole {
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
	if room == 0 { // nobody waits in a read of this stream: idle ones are many
		in.small = nil
	}
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
		in.Buffers.put(big)
	}
}

// move moves what is buffered to the beginning of to, which is the buffer from now on.
func (in *In) move(to []byte) {
	in.w = copy(to, in.buf[in.r:in.w])
	in.buf, in.r = to, 0
}

// Got is called when n bytes were read into what Scatter or Space gave.
func (in *In) Got(n int) {
	if in.lent {
		in.lent = false
		direct := min(n, in.view.Len()-in.at)
		if in.message {
			var room [1][]byte
			for _, b := range carrier.Slices(room[:0], in.view, in.at, direct, 1) {
				in.sum.Add(b)
			}
		}
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

// Bulk reports whether what comes next is bulk data. Locked.
func (in *In) Bulk() bool { return in.bulk && !in.message }

// Parse handles everything that has been read. An error ends the session: the caller fails the session with it, or turns
// the peer away if there is no session. Locked.
func (in *In) Parse() error {
	for {
		if in.end || in.Session != nil && in.Session.Down() {
			in.r = in.w
			return nil
		}
		if in.bulk {
			if whole, err := in.place(); !whole || err != nil {
				return err
			}
			continue
		}
		b := in.bytes()
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
			if err := in.begin(h); err != nil {
				return err
			}
			continue
		}
		if h.Payload() > frame.MaxWhole {
			return codes.WithText(codes.ErrProtocol, fmt.Sprintf("%v frame with %d bytes, the limit is %d", h.Kind, h.Payload(), frame.MaxWhole))
		}
		total := h.Size() + h.Payload()
		if len(b) < total {
			if !in.greeted || h.Payload() < placeFrom || h.Kind != frame.Unexpected && h.Kind != frame.Expected {
				return nil
			}
			in.message, in.sum = true, h.SumOf(b)
			if err := in.begin(h); err != nil {
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
		if err := in.deliver(h, b[h.Size():total]); err != nil {
			return err
		}
	}
}

func (in *In) bytes() []byte { return in.buf[in.r:in.w] }

func (in *In) deliver(h *frame.Header, payload []byte) error {
	switch {
	case h.Kind == frame.Goaway && in.Session != nil:
		bye := h.Bye(payload)
		if in.Lane != carrier.Messages {
			return codes.WithText(bye.Code, "the peer ended the connection for bulk data: "+bye.Text)
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

// begin begins with a payload that goes to a View.
func (in *In) begin(h *frame.Header) error {
	v, err := in.Session.Place(h)
	if err != nil {
		return err
	}
	in.r += h.Size()
	in.bulk, in.view, in.at = true, v, 0
	in.Large = in.Large || h.Kind.Bulk() && v.Len() >= carrier.BulkMin
	return nil
}

// place moves what is buffered of a payload to its memory, and reports whether it is complete.
func (in *In) place() (whole bool, err error) {
	n := min(in.view.Len()-in.at, in.w-in.r)
	if n > 0 {
		b := in.buf[in.r : in.r+n]
		if in.message {
			in.sum.Add(b)
		}
		in.view.CopyIn(in.at, b)
		in.r += n
		in.at += n
	}
	if in.at < in.view.Len() {
		return false, nil
	}
	if in.message && !in.sum.Check() {
		return true, codes.WithText(codes.ErrChecksum, fmt.Sprintf("message of %d bytes: checksum does not match", in.view.Len()))
	}
	in.bulk, in.message = false, false
	err = in.Session.Placed(in.view)
	in.view = nil
	return true, err
}
