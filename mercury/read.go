package mercury

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

const (
	readSize   = 128 << 10
	smallRead  = 4 << 10  // at a time, while answers to reads are to come
	directRead = 16 << 10 // of a span that is missing, from which on it is read without a copy in buf
	maxMessage = 64 << 10 // of a peer that is set to longer messages than usual
)

// A reader is what the goroutine read knows.
type reader struct {
	c    *conn
	buf  []byte
	r, w int // what is in buf
	h    xnet.Header

	try    *try // nil if reading must wait
	misses int  // of polls, by which the next ones are skipped
	skip   int
}

// next returns the next n bytes, at most readSize, which are valid until the next call.
func (r *reader) next(n int) ([]byte, error) {
	for r.w-r.r < n {
		if err := r.more(); err != nil {
			return nil, err
		}
	}
	b := r.buf[r.r : r.r+n]
	r.r += n
	return b, nil
}

// more reads from the socket.
func (r *reader) more() error {
	answers := r.flush()
	if r.r > 0 {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	b := r.buf[r.w:]
	if answers { // their data need not pass through buf
		b = b[:min(len(b), smallRead)]
	}
	n, err := r.read(place{b: b})
	r.w += n
	return err
}

// flush sends what has been answered, before r waits. It reports whether answers to reads are to come.
func (r *reader) flush() (answers bool) {
	r.c.mu.Lock()
	answers = len(r.c.reads.q) > 0
	r.c.flushLocked(len(r.c.out) == 0 && len(r.c.jobs) == 0 && r.c.acks == 0)
	return answers
}

// read reads what there is to p, or waits for it: by polling for a moment, if what came last came that fast. It returns no bytes with
// an error, and at least one without.
func (r *reader) read(p place) (int, error) {
	if r.try == nil || r.skip > 0 || runtime.GOMAXPROCS(0) == 1 || !polling.CompareAndSwap(false, true) {
		r.skip--
		return r.wait(p)
	}
	begun := time.Now()
	for i := 0; i%8 != 7 || time.Since(begun) < pollFor; i++ {
		n, ready, err := r.try.move(p, false)
		if ready {
			polling.Store(false)
			if n > 0 {
				r.misses, r.skip = 0, 0
			}
			return n, orEOF(n, err)
		}
		runtime.Gosched()
	}
	r.misses = min(2*r.misses+1, 255)
	r.skip = r.misses
	polling.Store(false)
	return r.wait(p)
}

// wait is read without polling.
func (r *reader) wait(p place) (int, error) {
	if r.try == nil {
		n, err := r.c.nc.Read(p.b)
		return n, orEOF(n, err)
	}
	n, _, err := r.try.move(p, true)
	return n, orEOF(n, err)
}

// orEOF returns the error of a read that has returned n bytes and err.
func orEOF(n int, err error) error {
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.EOF
	}
	return err
}

// polling says that some connection of the process is polled: a second one would take a processor from the program.
var polling atomic.Bool

// pollFor is how long a connection is polled before its reader sleeps. To be woken takes about as long.
const pollFor = 50 * time.Microsecond

// span moves the next bytes into the memory of s, or nowhere if it has none. The error is errGone if the memory has been taken away; then s is
// what is missing.
func (r *reader) span(s *span) error {
	for s.n > 0 {
		n := uint64(0)
		switch {
		case r.r < r.w:
			n = min(s.n, uint64(r.w-r.r))
			if s.mem != nil && !s.mem.copyIn(r.buf[r.r:r.r+int(n)], s.off) {
				return errGone
			}
			r.r += int(n)
		case s.mem != nil && r.try != nil && s.n >= directRead:
			r.flush()
			got, err := r.read(place{mem: s.mem, off: s.off, n: min(s.n, directSize)})
			if err != nil {
				return err
			}
			n = uint64(got)
		default:
			if err := r.more(); err != nil {
				return err
			}
		}
		s.off += n
		s.n -= n
	}
	return nil
}

// read reads until the connection ends. An inline handler that ends the goroutine has it go on on another.
func (c *conn) read() {
	ended := false
	defer func() {
		if !ended && c.ctx.Err() == nil {
			go c.read()
		}
	}()
	defer c.rescue()
	err := c.in.run()
	ended = true
	c.in.buf = nil // handlers may outlive the connection
	if ne := net.Error(nil); errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || CodeOf(err) == ErrClosed {
		err = errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err)
	}
	c.fail(err)
}

func (r *reader) run() error {
	for {
		b, err := r.next(xnet.Base)
		if err != nil {
			return err
		}
		n, err := xnet.HeaderLen(b)
		if err != nil {
			return errorf(ErrProtocol, "%v", err)
		}
		r.r -= len(b)
		if b, err = r.next(n); err != nil {
			return err
		}
		if err = r.h.Parse(b); err != nil {
			return errorf(ErrProtocol, "%v", err)
		}
		if err = r.message(); err != nil {
			return err
		}
	}
}

// message deals with what is behind the header.
func (r *reader) message() error {
	c, h := r.c, &r.h
	switch h.Op {
	case xnet.ReadReq:
		return c.serveRead(h)
	case xnet.ReadResp:
		c.mu.Lock()
		o, ok := c.reads.pop()
		c.mu.Unlock()
		if !ok || h.Payload() != o.n {
			return errorf(ErrProtocol, "an answer of %d bytes to no read, or to another one", h.Payload())
		}
		return r.answer(o)
	case xnet.Write:
		return r.serveWrite()
	}
	if h.IsAck() {
		return c.acknowledged()
	}
	if h.Payload() > maxMessage {
		return errorf(ErrProtocol, "a message of %d bytes, want at most %d", h.Payload(), maxMessage)
	}
	b, err := r.next(int(h.Payload()))
	read(b)
	switch {
	case err != nil:
		return err
	case h.Unexpected():
		return c.request(uint32(h.Tag), b)
	case h.Op == xnet.Tagged:
		return c.expected(uint32(h.Tag), b)
	}
	return errorf(ErrProtocol, "a message without a tag")
}

// serveRead answers a peer's read of our memory.
func (c *conn) serveRead(h *xnet.Header) error {
	spans, err := c.spans(h, Read)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) >= maxJobs {
		return errorf(ErrOverflow, "the peer has %d reads under way", maxJobs)
	}
	c.jobs = append(c.jobs, &job{head: xnet.Header{Op: xnet.ReadResp}, spans: spans})
	return nil
}

// serveWrite takes a peer's write into our memory.
func (r *reader) serveWrite() error {
	c := r.c
	spans, err := c.spans(&r.h, Write)
	if err != nil {
		return err
	}
	if n := payload(spans); n != r.h.Payload() {
		return errorf(ErrProtocol, "a write of %d bytes to %d", r.h.Payload(), n)
	}
	deliver := r.h.Flags&(xnet.Deliver|xnet.Commit) != 0
	for i := range spans {
		if err := r.span(&spans[i]); err != nil {
			return err
		}
	}
	if !deliver {
		return nil
	}
	c.mu.Lock()
	c.acks++
	c.mu.Unlock()
	return nil
}

// spans returns the memory that a peer's operation is about.
func (c *conn) spans(h *xnet.Header, access Access) ([]span, error) {
	if _, err := h.Total(hgwire.MaxBulk); err != nil {
		return nil, errorf(ErrProtocol, "%v", err)
	}
	spans := make([]span, h.N)
	for i, v := range h.IOV[:h.N] {
		s := c.n.segment(c, v.Key, v.Addr, v.Len, access)
		if s == nil {
			return nil, c.refusal()
		}
		if s.region.only != nil {
			s.region.used.Store(time.Now().UnixNano())
		}
		spans[i] = span{&s.mem, v.Addr, v.Len}
	}
	return spans, nil
}
