package netconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

const (
	// closeTimeout is the maximum time for writing the last frame of a session.
	closeTimeout = 100 * time.Millisecond
	// largeBufTimeout is the maximum time that a read may hold a large buffer.
	largeBufTimeout = 100 * time.Millisecond
	// maxWrite is the maximum size of a single write, in bytes. The peer's progress is measured in
	// completed writes, so the peer must accept this much to count as making progress.
	maxWrite = 20 << 10
	// copySize is the size in bytes of the buffers into which frames are copied for writing.
	copySize = 64 << 10
)

// copyBufs holds buffers that are each used for one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// A Transport holds the parts that a plugin supplies to a Carrier.
type Transport struct {
	// Server accepts connections for the carrier.
	Server *Server
	// Dial connects to the peer with the given canonical name. If host is not empty, the peer must
	// prove that it is host. Dial blocks, and returns soon after ctx is canceled. Its errors have a
	// code of package codes.
	Dial func(ctx context.Context, name, host string) (net.Conn, error)
	// Lost converts an error from a read, other than the end of the connection, to the error of the
	// session.
	Lost func(err error) error
}

// A Carrier is the carrier of a context whose connections each have two goroutines: a reader, which
// reads into its own buffer, and a writer, which copies frames before writing them. Neither holds
// user memory while it blocks.
type Carrier struct {
	transport *Transport
	core      carrier.Core
	listener  *Listener // this carrier's own listening socket if Server.Sibling is set; otherwise nil

	buffers framing.Buffers // shared by all connections
}

var (
	_ Adopter            = (*Carrier)(nil)
	_ carrier.WriteMeter = (*Carrier)(nil)
	_ carrier.Prover     = (*conn)(nil)
	_ carrier.Locator    = (*conn)(nil)
)

// New returns the carrier of a context. The caller must not modify t afterward.
func New(t *Transport, core carrier.Core) (_ carrier.Carrier, err error) {
	ca := &Carrier{transport: t, core: core}
	if ca.listener, err = t.Server.Join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

// Core implements Adopter.
func (ca *Carrier) Core() carrier.Core { return ca.core }

// Adopt implements Adopter. The goroutine that read the HELLO becomes the reader.
func (ca *Carrier) Adopt(nc net.Conn, in *framing.In, hello *carrier.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return nil, ErrNoBulk
	}
	c := ca.newConn(in, nil)
	c.attach(nc)
	s, err := ca.core.Admit(ca, c, hello, verified)
	if err != nil {
		return nil, err
	}
	c.bindSession(s)
	go c.writeLoop(nc)
	return func() { c.readLoop(nc) }, nil
}

// Dial implements carrier.Carrier.
func (ca *Carrier) Dial(s carrier.Session) {
	ctx, cancel := context.WithCancel(context.Background())
	c := ca.newConn(&framing.In{}, s)
	c.cancel = cancel
	s.SetConn(c)
	go c.dial(ctx, s.Name(), s.Host())
}

// Flush implements carrier.Carrier.
func (ca *Carrier) Flush(sessions []carrier.Session) {
	for _, s := range sessions {
		if c, _ := s.Conn().(*conn); c != nil {
			c.wakeWriter()
		}
	}
}

// Cut implements carrier.Carrier. The writer closes the connection, which makes the reader return.
func (ca *Carrier) Cut(s carrier.Session, bye frame.Bye) {
	c, _ := s.Conn().(*conn)
	s.SetConn(nil)
	if c == nil || c.dead {
		return
	}
	c.dead = true
	c.lastFrame = bye.Frame()
	c.in.End()
	if c.nc == nil {
		c.cancel()
		return
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(closeTimeout))
	c.wakeWriter()
}

// Poll implements carrier.Carrier.
func (ca *Carrier) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements carrier.Carrier. It returns false, because each writer exits by itself
// within closeTimeout.
func (ca *Carrier) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (ca *Carrier) Shut() { ca.transport.Server.Leave(ca, ca.listener) }

// Drain implements carrier.Drainer.
func (ca *Carrier) Drain() { ca.transport.Server.Drain(ca) }

// Release implements carrier.Carrier. It does nothing, because every connection closes by itself
// after Shut.
func (ca *Carrier) Release() {}

// A conn is a connection that belongs to a session.
type conn struct {
	ca   *Carrier
	in   *framing.In   // used by the reader; Parse is called only with the lock held
	wake chan struct{} // wakes the writer

	// The context's lock guards these fields. The writer also uses out without the lock.
	nc          net.Conn // nil while connecting
	remote      string   // the peer's address; set with nc
	cancel      func()   // cancels the connection attempt
	session     carrier.Session
	out         framing.Out
	writing     bool   // the writer is in a write, which may block
	writeFailed bool   // whether a write has failed
	dead        bool   // whether Cut was called
	lastFrame   []byte // frame for the writer to write before it closes the connection

	writes atomic.Uint64 // number of writes that succeeded
}

// newConn returns a connection for session s, which may be nil if it is not yet known.
func (ca *Carrier) newConn(in *framing.In, s carrier.Session) *conn {
	c := &conn{ca: ca, in: in, wake: make(chan struct{}, 1)}
	c.in.Buffers, c.out.Buffers = &ca.buffers, &ca.buffers
	c.bindSession(s)
	return c
}

// bindSession sets the session of c, c.in and c.out.
func (c *conn) bindSession(s carrier.Session) { c.session, c.in.Session, c.out.Session = s, s, s }

// attach sets c's network connection to nc. The caller must hold the context's lock or be the only
// user of c.
func (c *conn) attach(nc net.Conn) {
	c.nc, c.remote = nc, addrText(nc.RemoteAddr())
	// The dialing end of a Unix socket has no address, so use the listener's.
	if c.remote == "" || c.remote == "@" {
		c.remote = addrText(nc.LocalAddr())
	}
}

// addrText returns the text form of a, or "" if a is nil.
func addrText(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// wakeWriter makes the writer check for work. It does not block.
func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dial establishes the connection and then runs the reader.
func (c *conn) dial(ctx context.Context, name, host string) {
	defer c.cancel()
	nc, err := c.ca.transport.Dial(ctx, name, host)
	c.ca.core.Lock()
	switch {
	case c.dead:
		c.ca.core.Unlock()
		if nc != nil {
			_ = nc.Close()
		}
		return
	case err != nil:
		c.session.Fail(err)
		c.ca.core.Unlock()
		return
	}
	c.attach(nc)
	c.ca.core.Unlock()
	go c.writeLoop(nc)
	c.readLoop(nc)
}

// readLoop reads until the connection is dead. Reads normally block with a small buffer. If a read
// fills its buffer, the next one uses a large buffer and blocks for at most largeBufTimeout.
func (c *conn) readLoop(nc net.Conn) {
	defer c.in.Close()
	defer c.ca.core.Rescue(c.failSession)
	for large, dead := false, false; !dead; {
		b := c.in.Wait()
		if large {
			b = c.in.Space()
		}
		n, err := nc.Read(b)
		c.in.Got(n)
		failpoint.Read(b[:n])
		large, dead = c.handleRead(nc, n, n == len(b), large, err)
	}
}

// handleRead handles the n bytes and the error returned by a read. filled reports whether the read
// filled its buffer, and wasLarge whether that buffer was a large one. It returns whether the next
// read should use a large buffer and whether the connection is dead.
func (c *conn) handleRead(nc net.Conn, n int, filled, wasLarge bool, err error) (large, dead bool) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if n > 0 && !c.dead {
		c.session.Heard(c.in.Bulk())
		if err := c.in.Parse(); err != nil {
			c.session.Fail(err)
		}
	}
	timedOut := wasLarge && !c.writeFailed && errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !timedOut && !c.dead {
		c.session.Fail(c.ca.transport.readError(err))
	}
	if c.writeFailed { // the writer has set a deadline for the last reads
		return wasLarge, c.dead
	}
	if filled {
		_ = nc.SetReadDeadline(time.Now().Add(largeBufTimeout))
	} else if wasLarge {
		_ = nc.SetReadDeadline(time.Time{})
	}
	return filled, c.dead
}

// failSession fails c's session with err, unless Cut was called. It takes the context's lock.
func (c *conn) failSession(err error) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if !c.dead {
		c.session.Fail(err)
	}
}

// writeLoop writes the session's frames to nc until the connection is dead, then writes the last
// frame and closes nc.
func (c *conn) writeLoop(nc net.Conn) {
	defer nc.Close()
	core := c.ca.core
	core.Lock()
	for !c.dead {
		if !c.out.Fill() || c.dead { // pulling frames may end the session
			core.Unlock()
			<-c.wake
			core.Lock()
			continue
		}
		buf := copyBufs.Get().(*[copySize]byte)
		n := c.out.Copy(buf[:]) // with the lock held, so that user memory is not in use when a cancel runs
		err := c.sendUnlocked(nc, buf[:n])
		copyBufs.Put(buf)
		for err != nil && !c.dead { // wait for the reader, which may still receive the reason from the peer
			c.writeFailed = true
			_ = nc.SetReadDeadline(time.Now().Add(closeTimeout))
			core.Unlock()
			<-c.wake
			core.Lock()
		}
	}
	last := c.lastFrame
	if !c.out.Last(nil) { // in the middle of a frame
		last = nil
	}
	core.Unlock()
	c.writeLast(nc, last)
}

// writeLast writes the frames that were pulled from the session, followed by last if it is not nil,
// and releases the buffers.
func (c *conn) writeLast(nc net.Conn, last []byte) {
	// The deadline set by Cut may already have passed.
	_ = nc.SetWriteDeadline(time.Now().Add(closeTimeout))
	for buf := copyBufs.Get().(*[copySize]byte); c.out.Pending() && last != nil; {
		if err := c.writeCounted(nc, buf[:c.out.Copy(buf[:])]); err != nil {
			last = nil
		}
	}
	if last != nil { // skip an empty write, in which a pipe would block until its reader reads
		_, _ = nc.Write(last)
	}
	c.out.Close()
}

// sendUnlocked writes b. The caller must hold the context's lock, which sendUnlocked releases
// during the write.
func (c *conn) sendUnlocked(nc net.Conn, b []byte) error {
	c.writing = true
	c.session.Waits()
	c.ca.core.Pause()
	err := c.writeCounted(nc, b)
	c.ca.core.Lock()
	c.writing = false
	if err != nil && c.dead {
		c.lastFrame = nil // in the middle of a frame
	}
	return err
}

// Taken implements carrier.WriteMeter.
func (ca *Carrier) Taken(s carrier.Session, f carrier.Lane) (count uint64, waits bool) {
	c, _ := s.Conn().(*conn)
	if c == nil || f != carrier.Messages {
		return 0, false
	}
	return c.writes.Load(), c.writing
}

// writeCounted writes b in parts of at most maxWrite bytes and counts the parts written. The
// context's lock must not be held.
func (c *conn) writeCounted(nc net.Conn, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxWrite)
		switch wrote, err := nc.Write(b[:n]); {
		case err != nil:
			return err
		case wrote < n: // bulk data has no checksum, so continuing would corrupt it
			return io.ErrShortWrite
		}
		b = b[n:]
		c.writes.Add(1)
	}
	return nil
}

// Proof implements carrier.Prover.
func (c *conn) Proof() carrier.Proof {
	if p, ok := c.nc.(carrier.Prover); ok {
		return p.Proof()
	}
	return carrier.Proof{}
}

// Remote implements carrier.Locator.
func (c *conn) Remote() string { return c.remote }

// readError converts an error from a read to the error of the session.
func (t *Transport) readError(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return ErrEOF
	}
	return t.Lost(err)
}

var (
	// ErrEOF is the error of a session whose connection was closed by the peer.
	ErrEOF = codes.WithText(codes.ErrPeerLost, "connection closed by peer")
	// ErrNoBulk is the reason for refusing a second connection to a session that did not offer one
	// or has ended.
	ErrNoBulk = codes.WithText(codes.ErrNoEntry, "no session for this connection")
)
