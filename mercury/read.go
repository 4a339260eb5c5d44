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
	readSize   = 128 << 10 // size of the read buffer
	smallRead  = 4 << 10   // largest read into the buffer while responses to reads are pending
	directRead = 16 << 10  // a span with at least this many bytes left is read into its memory without a copy
	maxMessage = 64 << 10  // largest message accepted from a peer, which may be configured for longer messages than the default
)

// A connReader holds the state of readLoop.
type connReader struct {
	conn   *conn
	buf    []byte
	r, w   int // buf[r:w] has been read but not yet handled
	header xnet.Header

	poller    *nonblockingIO // nil if the connection does not support it
	misses    int            // grows with each unsuccessful poll; determines skipPolls
	skipPolls int            // number of following reads that block without polling
}

// next returns the next n bytes, where n is at most readSize. They are valid until next is called again.
func (r *connReader) next(n int) ([]byte, error) {
	for r.w-r.r < n {
		if err := r.readMore(); err != nil {
			return nil, err
		}
	}
	b := r.buf[r.r : r.r+n]
	r.r += n
	return b, nil
}

// readMore reads at least one byte into the free part of buf. It sends queued output first.
func (r *connReader) readMore() error {
	answers := r.flush()
	if r.r > 0 {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	b := r.buf[r.w:]
	if answers { // leave their data in the socket, to be read directly into memory
		b = b[:min(len(b), smallRead)]
	}
	n, err := r.read(buffer{b: b})
	r.w += n
	return err
}

// flush sends queued output, because the next read may block. It reports whether responses to reads are pending.
func (r *connReader) flush() (answers bool) {
	r.conn.mu.Lock()
	answers = len(r.conn.pendingReads.q) > 0
	r.conn.flushLocked(len(r.conn.out) == 0 && len(r.conn.jobs) == 0 && r.conn.acksToSend == 0)
	return answers
}

// read reads at least one byte into p or returns an error. It polls for pollTime before blocking, unless recent polls
// were unsuccessful.
func (r *connReader) read(p buffer) (int, error) {
	if r.poller == nil || r.skipPolls > 0 || runtime.GOMAXPROCS(0) == 1 || !polling.CompareAndSwap(false, true) {
		r.skipPolls--
		return r.readBlocking(p)
	}
	begun := time.Now()
	for i := 0; i%8 != 7 || time.Since(begun) < pollTime; i++ {
		n, ready, err := r.poller.transfer(p, false)
		if ready {
			polling.Store(false)
			if n > 0 {
				r.misses, r.skipPolls = 0, 0
			}
			return n, readError(n, err)
		}
		runtime.Gosched()
	}
	r.misses = min(2*r.misses+1, 255)
	r.skipPolls = r.misses
	polling.Store(false)
	return r.readBlocking(p)
}

// readBlocking is like read but does not poll first.
func (r *connReader) readBlocking(p buffer) (int, error) {
	if r.poller == nil {
		n, err := r.conn.nc.Read(p.b)
		return n, readError(n, err)
	}
	n, _, err := r.poller.transfer(p, true)
	return n, readError(n, err)
}

// readError returns the error to report for a read that returned n and err. It is nil if n is positive, and io.EOF if n
// is 0 and err is nil.
func readError(n int, err error) error {
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.EOF
	}
	return err
}

// polling is true while a connection of the process is being polled. Only one is polled at a time, because polling a
// second one would take a processor away from the program.
var polling atomic.Bool

// pollTime is the time for which a connection is polled before its reader sleeps. It is about the time needed to wake
// the reader.
const pollTime = 50 * time.Microsecond

// readSpan reads the next bytes into the memory of s, or discards them if s has none. On return, s is the part that has
// not been read. The error is errRevoked if the memory has been revoked.
func (r *connReader) readSpan(s *span) error {
	for s.n > 0 {
		n := uint64(0)
		switch {
		case r.r < r.w:
			n = min(s.n, uint64(r.w-r.r))
			if s.mem != nil && !s.mem.copyIn(r.buf[r.r:r.r+int(n)], s.off) {
				return errRevoked
			}
			r.r += int(n)
		case s.mem != nil && r.poller != nil && s.n >= directRead:
			r.flush()
			got, err := r.read(buffer{mem: s.mem, off: s.off, n: min(s.n, directSize)})
			if err != nil {
				return err
			}
			n = uint64(got)
		default:
			if err := r.readMore(); err != nil {
				return err
			}
		}
		s.off += n
		s.n -= n
	}
	return nil
}

// readLoop reads until the connection is closed. If an inline handler calls runtime.Goexit, readLoop continues in
// another goroutine.
func (c *conn) readLoop() {
	ended := false
	defer func() {
		if !ended && c.ctx.Err() == nil {
			go c.readLoop()
		}
	}()
	defer c.rescue()
	err := c.reader.loop()
	ended = true
	c.reader.buf = nil // handlers may keep the connection alive
	if ne := net.Error(nil); errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || CodeOf(err) == ErrClosed {
		err = errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err)
	}
	c.fail(err)
}

// loop reads and handles messages until an error occurs.
func (r *connReader) loop() error {
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
		if err = r.header.Parse(b); err != nil {
			return errorf(ErrProtocol, "%v", err)
		}
		if err = r.handleMessage(); err != nil {
			return err
		}
	}
}

// handleMessage handles the message whose header is in r.header. After an error, the connection must be closed.
func (r *connReader) handleMessage() error {
	c, h := r.conn, &r.header
	switch h.Op {
	case xnet.ReadReq:
		return c.serveRead(h)
	case xnet.ReadResp:
		c.mu.Lock()
		o, ok := c.pendingReads.pop()
		c.mu.Unlock()
		if !ok || h.Payload() != o.n {
			return errorf(ErrProtocol, "unexpected read response of %d bytes", h.Payload())
		}
		return r.handleReadResponse(o)
	case xnet.Write:
		return r.serveWrite()
	}
	if h.IsAck() {
		return c.handleAck()
	}
	if h.Payload() > maxMessage {
		return errorf(ErrProtocol, "message of %d bytes, limit %d", h.Payload(), maxMessage)
	}
	b, err := r.next(int(h.Payload()))
	callFailpoint(b)
	switch {
	case err != nil:
		return err
	case h.Unexpected():
		return c.handleRequest(uint32(h.Tag), b)
	case h.Op == xnet.Tagged:
		return c.handleExpected(uint32(h.Tag), b)
	}
	return errorf(ErrProtocol, "untagged message")
}

// serveRead queues the response to a read by the peer. It fails if the peer may not access the memory, or if maxJobs
// messages are already queued.
func (c *conn) serveRead(h *xnet.Header) error {
	spans, err := c.spans(h, Read)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) >= maxJobs {
		return errorf(ErrOverflow, "peer exceeded %d reads in flight", maxJobs)
	}
	c.jobs = append(c.jobs, &dataMessage{head: xnet.Header{Op: xnet.ReadResp}, spans: spans})
	return nil
}

// serveWrite reads the data of a write by the peer into the target memory and queues the acknowledgement.
func (r *connReader) serveWrite() error {
	c := r.conn
	spans, err := c.spans(&r.header, Write)
	if err != nil {
		return err
	}
	if n := payloadLen(spans); n != r.header.Payload() {
		return errorf(ErrProtocol, "write of %d bytes to memory of %d", r.header.Payload(), n)
	}
	deliver := r.header.Flags&(xnet.Deliver|xnet.Commit) != 0
	for i := range spans {
		if err := r.readSpan(&spans[i]); err != nil {
			return err
		}
	}
	if !deliver {
		return nil
	}
	c.mu.Lock()
	c.acksToSend++
	c.mu.Unlock()
	return nil
}

// spans returns the memory that a read or write by the peer refers to. It fails if the peer may not access it.
func (c *conn) spans(h *xnet.Header, access Access) ([]span, error) {
	if _, err := h.Total(hgwire.MaxBulk); err != nil {
		return nil, errorf(ErrProtocol, "%v", err)
	}
	spans := make([]span, h.N)
	for i, v := range h.IOV[:h.N] {
		s := c.node.findSegment(c, v.Key, v.Addr, v.Len, access)
		if s == nil {
			return nil, c.accessError()
		}
		if s.region.only != nil {
			s.region.lastUsed.Store(time.Now().UnixNano())
		}
		spans[i] = span{&s.mem, v.Addr, v.Len}
	}
	return spans, nil
}
