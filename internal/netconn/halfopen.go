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

// A halfOpenConn is an accepted connection whose HELLO has not arrived. It is read by its own
// goroutine.
type halfOpenConn struct {
	server     *Server
	raw        net.Conn // the accepted connection
	conn       net.Conn // the connection returned by Begin, or raw if Begin is nil
	in         *framing.In
	acceptedAt time.Time
	// evicted is set if the connection was closed to make room, but its goroutine has not returned.
	// It is guarded by pendingList.mu.
	evicted      bool
	adopted      bool         // a context has adopted the connection
	lockedCore   carrier.Core // the context locked by handleHello; nil before that
	serveAdopted func()       // the function returned by Adopt
}

const (
	// evictAfter is the minimum age at which the oldest half-open connection may be closed to admit
	// another one.
	evictAfter = 100 * time.Millisecond
	// maxDrain is the maximum number of bytes from the peer that are read and discarded after a
	// refusal.
	maxDrain = 64 << 10
)

// A pendingList holds at most MaxHalfOpen half-open connections. While it is full, the next
// connection waits until one is removed or the oldest one can be evicted.
type pendingList struct {
	mu    sync.Mutex      // guards conns; no other lock is taken while it is held
	conns []*halfOpenConn // in the order in which they were added
}

// add adds h and returns 0. If the list is full, it returns how long to wait before calling add
// again.
func (p *pendingList) add(h *halfOpenConn) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) < h.server.MaxHalfOpen {
		p.conns = append(p.conns, h)
		return 0
	}
	i := slices.IndexFunc(p.conns, func(other *halfOpenConn) bool { return !other.evicted })
	if i < 0 {
		return evictAfter
	}
	oldest := p.conns[i]
	if wait = evictAfter - time.Since(oldest.acceptedAt); wait > 0 {
		return wait
	}
	oldest.evicted = true
	_ = oldest.raw.Close()
	return evictAfter
}

// remove removes h and reports whether it had not been evicted. It may be called more than once.
func (p *pendingList) remove(h *halfOpenConn) bool {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(other *halfOpenConn) bool { return other == h })
	evicted := h.evicted
	p.mu.Unlock()
	select {
	case h.server.slotFreed <- struct{}{}:
	default:
	}
	return !evicted
}

// closeAll closes every half-open connection in the list.
func (p *pendingList) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.conns {
		_ = h.raw.Close()
	}
}

// addHalfOpen waits until the list has room for an accepted connection and then starts its
// goroutine. It closes the connection if the listener is closed meanwhile, or if the list stays
// full because functions of the program hold evicted connections.
func (s *Server) addHalfOpen(nc net.Conn, done chan struct{}) {
	h := &halfOpenConn{server: s, raw: nc, conn: nc, in: &framing.In{}, acceptedAt: time.Now()}
	h.in.Greet = h.handleHello
	for wait := s.pending.add(h); wait > 0; wait = s.pending.add(h) {
		if time.Since(h.acceptedAt) > 3*evictAfter || !s.waitForSlot(wait, done) {
			_ = nc.Close()
			return
		}
	}
	h.acceptedAt = time.Now()
	go h.serve()
}

// waitForSlot waits until a half-open connection is removed, or for d. It returns false if done is
// closed first.
func (s *Server) waitForSlot(d time.Duration, done chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-s.slotFreed:
	case <-timer.C:
	}
	return true
}

// serve runs Begin and reads the HELLO, within HandshakeTimeout, and then serves the adopted
// connection.
func (h *halfOpenConn) serve() {
	defer func() { // deferred because a function of the program may call runtime.Goexit
		h.server.pending.remove(h)
		if !h.adopted {
			_ = h.raw.Close()
		}
	}()
	defer h.server.Class.Rescue(func(error) { _ = h.raw.Close() })
	due := time.Now().Add(h.server.HandshakeTimeout)
	_ = h.raw.SetDeadline(due)
	if begin := h.server.Begin; begin != nil {
		conn, err := begin(h.raw, due)
		if err != nil {
			return
		}
		h.conn = conn
	}
	if err := h.readHello(); err != nil {
		h.sendRefusal(err)
		return
	}
	h.serveAdopted()
}

// readHello reads until the connection is adopted. An error with a codes.Code is the reason for
// rejecting the peer. Any other error is from a read.
func (h *halfOpenConn) readHello() error {
	late := false
	for !h.adopted {
		b := h.in.Wait()
		n, err := h.conn.Read(b)
		h.in.Got(n)
		failpoint.Read(b[:n])
		if err := h.parseInput(); err != nil {
			return err
		}
		switch {
		case err == nil || h.adopted:
		// This process may have been suspended, so read bytes that have arrived.
		case errors.Is(err, os.ErrDeadlineExceeded) && !late:
			late = true
			_ = h.raw.SetDeadline(time.Now().Add(closeTimeout))
		default:
			return err
		}
	}
	return nil
}

// parseInput parses the bytes that were read. When the HELLO is parsed, the context that it names
// is locked. parseInput releases that lock before it returns.
func (h *halfOpenConn) parseInput() (err error) {
	defer func() {
		if h.lockedCore != nil {
			h.lockedCore.UnlockAfter(recover())
		}
	}()
	if err = h.in.Parse(); h.adopted && err != nil {
		h.in.Session.Fail(err)
		err = nil
	}
	return err
}

// handleHello passes the connection to the context that the HELLO names, and leaves the context
// locked for parseInput.
func (h *halfOpenConn) handleHello(hello *frame.Greeting) (err error) {
	h.server.chooseContext(hello)
	to, err := h.server.adopterOf(int(hello.Target))
	if err != nil {
		return err
	}
	if !h.server.pending.remove(h) { // it has just been evicted
		return net.ErrClosed
	}
	_ = h.raw.SetDeadline(time.Time{})
	verified := h.server.Verify != nil && hello.Listen != "" && h.server.Verify(h.conn, hello.Listen)
	h.lockedCore = to.Core()
	h.lockedCore.Lock()
	h.serveAdopted, err = to.Adopt(h.conn, h.in, hello, verified)
	if err == nil {
		h.adopted = true
		h.in.Greet = nil // so that the connection does not keep h reachable
	}
	return err
}

// sendRefusal sends err to the peer if it resulted from parsing the peer's bytes rather than from a
// read.
func (h *halfOpenConn) sendRefusal(err error) {
	if _, ours := errors.AsType[codes.Code](err); ours {
		Refuse(h.conn, err)
	}
}

// Refuse sends err as the last frame on nc and waits until the peer has closed its side, so that
// the peer can read the frame. It blocks for at most 0.1 s. The caller must close nc.
func Refuse(nc net.Conn, err error) {
	_ = nc.SetDeadline(time.Now().Add(closeTimeout))
	_, _ = nc.Write(frame.ByeOf(err).Frame())
	Drain(nc)
}

// Drain closes the writing side of nc, which must have a deadline set, and reads and discards up to
// 64 KiB from the peer. Closing a TCP connection with unread bytes resets it, and the peer might
// lose the last frame.
func Drain(nc net.Conn) {
	c, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = c.CloseWrite()
	if s, ok := nc.(interface{ NetConn() net.Conn }); ok { // read below TLS, because there is no need to decrypt
		nc = s.NetConn()
	}
	_, _ = io.CopyN(io.Discard, nc, maxDrain)
}
