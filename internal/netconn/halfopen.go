package netconn

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A halfOpen is an accepted connection whose HELLO has not come. It has a goroutine, which reads it.
type halfOpen struct {
	s       *Server
	raw     net.Conn // that was accepted
	conn    net.Conn // that Begin has returned
	in      *framing.In
	since   time.Time
	evicted bool // closed to make room, and its goroutine has not ended; guarded by pendingList.mu
	taken   bool
	locked  carrier.Core // that of the context which it asks for
	then    func()       // what its goroutine does once the connection is the context's
}

const (
	// silence is how long a half-open connection is kept where others wait: then the oldest makes room.
	silence = 100 * time.Millisecond
	// maxDrain is how many bytes are read and dropped behind a refusal.
	maxDrain = 64 << 10
)

// A pendingList has the half-open connections, at most MaxHalfOpen. When it is full the next waits until one has ended, or until
// the oldest is old enough to be evicted.
type pendingList struct {
	mu   sync.Mutex  // guards list; the last lock
	list []*halfOpen // in the order in which they came
}

// add adds h, or returns how long to wait before it is called again.
func (p *pendingList) add(h *halfOpen) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) < h.s.MaxHalfOpen {
		p.list = append(p.list, h)
		return 0
	}
	i := slices.IndexFunc(p.list, func(other *halfOpen) bool { return !other.evicted })
	if i < 0 {
		return silence
	}
	oldest := p.list[i]
	if wait = silence - time.Since(oldest.since); wait > 0 {
		return wait
	}
	oldest.evicted = true
	_ = oldest.raw.Close()
	return silence
}

// remove removes h, and reports false when it has been evicted. It may be called again.
func (p *pendingList) remove(h *halfOpen) bool {
	p.mu.Lock()
	p.list = slices.DeleteFunc(p.list, func(other *halfOpen) bool { return other == h })
	evicted := h.evicted
	p.mu.Unlock()
	select {
	case h.s.left <- struct{}{}:
	default:
	}
	return !evicted
}

// clear ends every half-open connection.
func (p *pendingList) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.list {
		_ = h.raw.Close()
	}
}

// take begins with an accepted connection, once the list has room for it; it is closed when functions of the program keep those that
// were evicted, or when the listener is closed.
func (s *Server) take(nc net.Conn, done chan struct{}) {
	h := &halfOpen{s: s, raw: nc, conn: nc, in: &framing.In{}, since: time.Now()}
	h.in.Greet = h.greet
	for wait := s.pending.add(h); wait > 0; wait = s.pending.add(h) {
		if time.Since(h.since) > 3*silence || !s.await(wait, done) {
			_ = nc.Close()
			return
		}
	}
	h.since = time.Now()
	go h.serve()
}

// await waits until a half-open connection has ended, or for d, and reports false when done was closed meanwhile.
func (s *Server) await(d time.Duration, done chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-s.left:
	case <-timer.C:
	}
	return true
}

// serve reads the HELLO, after what Begin does, within HandshakeTimeout.
func (h *halfOpen) serve() {
	defer func() { // also when a function of the program ends the goroutine
		h.s.pending.remove(h)
		if !h.taken {
			_ = h.raw.Close()
		}
	}()
	defer h.s.Class.Rescue(func(error) { _ = h.raw.Close() })
	due := time.Now().Add(h.s.HandshakeTimeout)
	_ = h.raw.SetDeadline(due)
	if begin := h.s.Begin; begin != nil {
		conn, err := begin(h.raw, due)
		if err != nil {
			return
		}
		h.conn = conn
	}
	if err := h.readHello(); err != nil {
		h.refuse(err)
		return
	}
	h.then()
}

// readHello reads until the HELLO is complete. An error that is a codes.Code says what is wrong with it, others are those of reading.
func (h *halfOpen) readHello() error {
	late := false
	for !h.taken {
		b := h.in.Wait()
		n, err := h.conn.Read(b)
		h.in.Got(n)
		failpoint.Read(b[:n])
		if err := h.parse(); err != nil {
			return err
		}
		switch {
		case err == nil || h.taken:
		case errors.Is(err, os.ErrDeadlineExceeded) && !late: // this process may have been frozen: what has come is read first
			late = true
			_ = h.raw.SetDeadline(time.Now().Add(lastGrace))
		default:
			return err
		}
	}
	return nil
}

// parse handles what has been read, with the context locked from the HELLO on.
func (h *halfOpen) parse() (err error) {
	defer func() {
		if h.locked != nil {
			h.locked.UnlockAfter(recover())
		}
	}()
	if err = h.in.Parse(); h.taken && err != nil {
		h.in.Session.Fail(err)
		err = nil
	}
	return err
}

// greet gives the connection to the context that the HELLO names.
func (h *halfOpen) greet(hello *frame.Greeting) (err error) {
	h.s.spread(hello)
	to, err := h.s.adopterOf(int(hello.Target))
	if err != nil {
		return err
	}
	if !h.s.pending.remove(h) { // just before
		return net.ErrClosed
	}
	_ = h.raw.SetDeadline(time.Time{})
	verified := h.s.Verify != nil && hello.Listen != "" && h.s.Verify(h.conn, hello.Listen)
	h.locked = to.Core()
	h.locked.Lock()
	h.then, err = to.Adopt(h.conn, h.in, hello, verified)
	if h.taken = err == nil; h.taken {
		h.in.Greet = nil // or else the connection would keep h
	}
	return err
}

// refuse tells the peer why it is turned away, if it has sent something that was read.
func (h *halfOpen) refuse(err error) {
	if _, ours := errors.AsType[codes.Code](err); ours {
		Refuse(h.conn, err)
	}
}

// Refuse sends err as the last frame of nc, and gives the peer a moment to read it. It blocks for 0.1 s at most. The caller closes nc.
func Refuse(nc net.Conn, err error) {
	_ = nc.SetDeadline(time.Now().Add(lastGrace))
	_, _ = nc.Write(frame.ByeOf(err).Frame())
	Drain(nc)
}

// Drain ends what is written to nc, which has a deadline, and drops what the peer still sends: closing with bytes unread would reset a
// connection, and the peer might not read what was sent last.
func Drain(nc net.Conn) {
	c, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = c.CloseWrite()
	if s, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS: below it, what comes is not decrypted any more
		nc = s.NetConn()
	}
	_, _ = io.CopyN(io.Discard, nc, maxDrain)
}
