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
	// lastGrace is how long the last frame of a session may take to be written.
	lastGrace = 100 * time.Millisecond
	// moreGrace is how long a read may hold a large buffer.
	moreGrace = 100 * time.Millisecond
	// pieceSize is the largest write: what the peer must take of it at least to be one that takes something.
	pieceSize = 20 << 10
	// copySize is how much is copied for one write.
	copySize = 64 << 10
)

// copyBufs are for the time of one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// A Transport is what a Carrier needs of its plugin.
type Transport struct {
	// Server accepts connections for the carrier.
	Server *Server
	// Dial connects to the peer with a canonical name, which must prove to be host where that is not empty. It blocks, and returns soon
	// after ctx is canceled. An error carries a code of package codes.
	Dial func(ctx context.Context, name, host string) (net.Conn, error)
	// Lost returns the error of a session whose connection could not be read, for a reason other than its end.
	Lost func(err error) error
}

// A Carrier is the carrier of a context whose connections have two goroutines each: a reader that never lends user
// memory to a read that waits, and a writer that copies before it writes.
type Carrier struct {
	t    *Transport
	core carrier.Core
	own  *Listener // with Server.Sibling

	buffers framing.Buffers // of the connections
}

var (
	_ Adopter            = (*Carrier)(nil)
	_ carrier.WriteMeter = (*Carrier)(nil)
	_ carrier.Prover     = (*conn)(nil)
	_ carrier.Locator    = (*conn)(nil)
)

// New makes the carrier of a context. The caller does not change t any more.
func New(t *Transport, core carrier.Core) (_ carrier.Carrier, err error) {
	ca := &Carrier{t: t, core: core}
	if ca.own, err = t.Server.Join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

// Core implements Adopter.
func (ca *Carrier) Core() carrier.Core { return ca.core }

// Adopt implements Adopter: the goroutine that has read the HELLO is the reader.
func (ca *Carrier) Adopt(nc net.Conn, in *framing.In, hello *carrier.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return nil, ErrNoBulk
	}
	c := ca.newConn(in, nil)
	c.set(nc)
	s, err := ca.core.Admit(ca, c, hello, verified)
	if err != nil {
		return nil, err
	}
	c.bind(s)
	go c.write(nc)
	return func() { c.read(nc) }, nil
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
			c.poke()
		}
	}
}

// Cut implements carrier.Carrier: the writer closes the connection, which ends the reader.
func (ca *Carrier) Cut(s carrier.Session, bye frame.Bye) {
	c, _ := s.Conn().(*conn)
	s.SetConn(nil)
	if c == nil || c.dead {
		return
	}
	c.dead = true
	c.last = bye.Frame()
	c.in.End()
	if c.nc == nil {
		c.cancel()
		return
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastGrace))
	c.poke()
}

// Poll implements carrier.Carrier.
func (ca *Carrier) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements carrier.Carrier: writers end by themselves, within lastGrace of their turn.
func (ca *Carrier) Lingering(time.Duration) bool { return false }

// Shut implements carrier.Carrier.
func (ca *Carrier) Shut() { ca.t.Server.Leave(ca, ca.own) }

// Release implements carrier.Carrier: Shut has cut every connection, and each closes by itself.
func (ca *Carrier) Release() {}

// A conn is a connection of a session.
type conn struct {
	ca   *Carrier
	in   *framing.In   // the reader's; Parse under the lock
	wake chan struct{} // the writer has something to do

	// Guarded by the context's lock. out is also used by the writer without it.
	nc      net.Conn // nil while connecting
	remote  string   // the address of the peer; set with nc
	cancel  func()   // ends connecting
	session carrier.Session
	out     framing.Out
	writing bool // a write waits, perhaps
	mute    bool // writing has failed
	dead    bool
	last    []byte

	pieces atomic.Uint64 // that were written
}

func (ca *Carrier) newConn(in *framing.In, s carrier.Session) *conn {
	c := &conn{ca: ca, in: in, wake: make(chan struct{}, 1)}
	c.in.Buffers, c.out.Buffers = &ca.buffers, &ca.buffers
	c.bind(s)
	return c
}

func (c *conn) bind(s carrier.Session) { c.session, c.in.Session, c.out.Session = s, s, s }

// set has c use nc. Locked, or before c is known.
func (c *conn) set(nc net.Conn) {
	c.nc, c.remote = nc, text(nc.RemoteAddr())
	if c.remote == "" || c.remote == "@" { // a unix socket that has dialed has no address: that of the listener says as much
		c.remote = text(nc.LocalAddr())
	}
}

// text is empty for an address that is not known.
func text(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// poke tells the writer that there is something to do.
func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dial connects and then is the reader.
func (c *conn) dial(ctx context.Context, name, host string) {
	defer c.cancel()
	nc, err := c.ca.t.Dial(ctx, name, host)
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
	c.set(nc)
	c.ca.core.Unlock()
	go c.write(nc)
	c.read(nc)
}

// read takes in what arrives until the connection is dead. Its reads wait with a small buffer; one that has filled its buffer is
// followed by a large one, which waits for moreGrace at most.
func (c *conn) read(nc net.Conn) {
	defer c.in.Close()
	defer c.ca.core.Rescue(c.fail)
	for large, dead := false, false; !dead; {
		b := c.in.Wait()
		if large {
			b = c.in.Space()
		}
		n, err := nc.Read(b)
		c.in.Got(n)
		failpoint.Read(b[:n])
		large, dead = c.handle(nc, n, n == len(b), large, err)
	}
}

// handle deals with n bytes that have been read, which have filled the buffer or not, and with the error of the read. was says that the buffer was a large one,
// and large that the next one is to be.
func (c *conn) handle(nc net.Conn, n int, filled, was bool, err error) (large, dead bool) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if n > 0 && !c.dead {
		c.session.Heard(c.in.Bulk())
		if err := c.in.Parse(); err != nil {
			c.session.Fail(err)
		}
	}
	if late := was && !c.mute && errors.Is(err, os.ErrDeadlineExceeded); err != nil && !late && !c.dead {
		c.session.Fail(c.ca.t.readError(err))
	}
	if large = was; !c.mute {
		switch large = filled; {
		case large:
			_ = nc.SetReadDeadline(time.Now().Add(moreGrace))
		case was:
			_ = nc.SetReadDeadline(time.Time{})
		}
	}
	return large, c.dead
}

// fail ends the session of c.
func (c *conn) fail(err error) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if !c.dead {
		c.session.Fail(err)
	}
}

// write writes to nc what the session has until the connection is dead, sends the last frame and closes.
func (c *conn) write(nc net.Conn) {
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
		n := c.out.Copy(buf[:]) // under the lock: a cancel finds the memory free
		err := c.send(nc, buf[:n])
		copyBufs.Put(buf)
		for err != nil && !c.dead { // what the peer sent last may wait to be read
			c.mute = true
			_ = nc.SetReadDeadline(time.Now().Add(lastGrace))
			core.Unlock()
			<-c.wake
			core.Lock()
		}
	}
	last := c.last
	if !c.out.Last(nil) { // in the middle of a frame
		last = nil
	}
	core.Unlock()
	c.sendLast(nc, last)
}

// sendLast sends the frames that are pulled and the last one, if there is one, and lets go of the memory.
func (c *conn) sendLast(nc net.Conn, last []byte) {
	_ = nc.SetWriteDeadline(time.Now().Add(lastGrace)) // that of Cut may be over before the writer has run
	for buf := copyBufs.Get().(*[copySize]byte); c.out.Pending() && last != nil; {
		if err := c.writePieces(nc, buf[:c.out.Copy(buf[:])]); err != nil {
			last = nil
		}
	}
	if last != nil { // a pipe waits for its reader, whatever is written
		_, _ = nc.Write(last)
	}
	c.out.Close()
}

// send writes b. Locked at its beginning and its end, not while it writes.
func (c *conn) send(nc net.Conn, b []byte) error {
	c.writing = true
	c.session.Waits()
	c.ca.core.Pause()
	err := c.writePieces(nc, b)
	c.ca.core.Lock()
	c.writing = false
	if err != nil && c.dead {
		c.last = nil // in the middle of a frame
	}
	return err
}

// Taken implements carrier.WriteMeter.
func (ca *Carrier) Taken(s carrier.Session, f carrier.Lane) (count uint64, waits bool) {
	c, _ := s.Conn().(*conn)
	if c == nil || f != carrier.Messages {
		return 0, false
	}
	return c.pieces.Load(), c.writing
}

// writePieces writes b in pieces, and counts them. No lock is held.
func (c *conn) writePieces(nc net.Conn, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), pieceSize)
		switch wrote, err := nc.Write(b[:n]); {
		case err != nil:
			return err
		case wrote < n: // bulk data has no checksum: going on would damage it
			return io.ErrShortWrite
		}
		b = b[n:]
		c.pieces.Add(1)
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

// readError returns the error of a session whose connection has ended with err.
func (t *Transport) readError(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return ErrEOF
	}
	return t.Lost(err)
}

var (
	// ErrEOF is the error of a session whose connection the peer has closed.
	ErrEOF = codes.WithText(codes.ErrPeerLost, "connection closed by peer")
	// ErrNoBulk turns away a second connection of a session that offers none, or has ended.
	ErrNoBulk = codes.WithText(codes.ErrNoEntry, "no session waits for this connection")
)
