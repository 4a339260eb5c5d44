package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

const (
	// lastGrace is how long the last frame of a session may take to be written.
	lastGrace = 100 * time.Millisecond
	// moreGrace is how long a read may hold a large buffer.
	moreGrace = 100 * time.Millisecond
	// pieceSize is the largest write: what the peer must take of it at least to be one that takes something.
	pieceSize = 20 << 10
)

// A portable is the carrier of a context whose connections have two goroutines each: a reader that never lends user
// memory to a read that waits, and a writer that copies before it writes.
type portable struct {
	d   *domain
	e   *engine.Endpoint
	own *listener // with ReusePort
}

var (
	_ carrier          = (*portable)(nil)
	_ engine.Taker     = (*portable)(nil)
	_ engine.Prover    = (*portableConn)(nil)
	_ engine.Addressed = (*portableConn)(nil)
)

// newPortable makes the carrier of a context.
func (d *domain) newPortable(e *engine.Endpoint) (_ engine.Carrier, err error) {
	ca := &portable{d: d, e: e}
	if ca.own, err = d.join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *portable) endpoint() *engine.Endpoint { return ca.e }

// adopt implements carrier: the goroutine of g is the reader.
func (ca *portable) adopt(g *guest, hello *frame.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return nil, errNoBulk
	}
	c := ca.newConn(nil)
	c.nc, c.remote, c.in = &g.socket, g.tcp.RemoteAddr().String(), g.in
	ca.d.setConnOptions(g.tcp)
	l, err := ca.e.Admit(ca, c, hello, verified)
	if err != nil {
		return nil, err
	}
	c.bind(l)
	go c.write(c.nc, c.writer(c.nc))
	return func() { c.read(c.nc) }, nil
}

// Dial implements engine.Carrier.
func (ca *portable) Dial(l *engine.Link) {
	ctx, cancel := context.WithCancel(context.Background())
	c := ca.newConn(l)
	c.cancel = cancel
	l.Conn = c
	go c.dial(ctx, l.Name(), l.Host())
}

// Flush implements engine.Carrier.
func (ca *portable) Flush(ls []*engine.Link) {
	for _, l := range ls {
		if c, _ := l.Conn.(*portableConn); c != nil {
			c.poke()
		}
	}
}

// Cut implements engine.Carrier: the writer closes the connection, which ends the reader.
func (ca *portable) Cut(l *engine.Link, bye frame.Bye) {
	c, _ := l.Conn.(*portableConn)
	l.Conn = nil
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
	_ = c.nc.tcp.SetWriteDeadline(time.Now().Add(lastGrace))
	c.poke()
}

// Poll implements engine.Carrier.
func (ca *portable) Poll(time.Duration) time.Duration { return 0 }

// Lingering implements engine.Carrier: writers end by themselves, within lastGrace of their turn.
func (ca *portable) Lingering(time.Duration) bool { return false }

// Shut implements engine.Carrier.
func (ca *portable) Shut() { ca.d.door.unregister(ca, ca.own) }

// Release implements engine.Carrier: Shut has cut every connection, and each closes by itself.
func (ca *portable) Release() {}

// A portableConn is a connection of a link.
type portableConn struct {
	ca   *portable
	in   *stream.In    // the reader's; Parse under the lock
	wake chan struct{} // the writer has something to do

	// Guarded by the endpoint's lock. out is also used by the writer without it.
	nc      *socket // nil while connecting
	remote  string  // the address of the peer; set with nc
	cancel  func()  // ends connecting
	link    *engine.Link
	out     stream.Out
	writing bool // a write waits, perhaps
	mute    bool // writing has failed
	dead    bool
	last    []byte

	pieces atomic.Uint64 // that were written
}

func (ca *portable) newConn(l *engine.Link) *portableConn {
	c := &portableConn{ca: ca, in: &stream.In{}, wake: make(chan struct{}, 1)}
	c.bind(l)
	return c
}

func (c *portableConn) bind(l *engine.Link) { c.link, c.in.Link, c.out.Link = l, l, l }

// poke tells the writer that there is something to do.
func (c *portableConn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dial connects and then is the reader.
func (c *portableConn) dial(ctx context.Context, name, host string) {
	defer c.cancel()
	nc, err := c.ca.d.connect(ctx, name, host)
	c.ca.e.Lock()
	switch {
	case c.dead:
		c.ca.e.Unlock()
		if nc != nil {
			nc.Close()
		}
		return
	case err != nil:
		c.link.Fail(err)
		c.ca.e.Unlock()
		return
	}
	c.nc, c.remote = nc, nc.tcp.RemoteAddr().String()
	c.ca.e.Unlock()
	go c.write(nc, c.writer(nc))
	c.read(nc)
}

// read takes in what arrives until the connection is dead. Its reads wait with a small buffer; one that has filled its buffer is
// followed by a large one, which waits for moreGrace at most.
func (c *portableConn) read(nc *socket) {
	defer c.in.Close()
	defer c.ca.e.Rescue(c.fail)
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
func (c *portableConn) handle(nc *socket, n int, filled, was bool, err error) (large, dead bool) {
	c.ca.e.Lock()
	defer c.ca.e.UnlockInput()
	if n > 0 && !c.dead {
		c.link.Heard(c.in.Bulk())
		if err := c.in.Parse(); err != nil {
			c.link.Fail(err)
		}
	}
	if late := was && !c.mute && errors.Is(err, os.ErrDeadlineExceeded); err != nil && !late && !c.dead {
		c.link.Fail(readError(err))
	}
	if large = was; !c.mute {
		switch large = filled; {
		case large:
			_ = nc.tcp.SetReadDeadline(time.Now().Add(moreGrace))
		case was:
			_ = nc.tcp.SetReadDeadline(time.Time{})
		}
	}
	return large, c.dead
}

// fail ends the session of c.
func (c *portableConn) fail(err error) {
	c.ca.e.Lock()
	defer c.ca.e.UnlockInput()
	if !c.dead {
		c.link.Fail(err)
	}
}

// writer returns what is written to; the goroutine that reads calls it.
func (c *portableConn) writer(nc *socket) io.Writer {
	w := pieceWriter{c, nc.tcp}
	if nc.tls == nil {
		return w
	}
	nc.tls.lower.rw = readWriter{nc.tcp, w}
	return nc.tls
}

// write writes to w what the link has until the connection is dead, sends the last frame and closes.
func (c *portableConn) write(nc *socket, w io.Writer) {
	defer nc.Close()
	e := c.ca.e
	e.Lock()
	for !c.dead {
		if !c.out.Fill() || c.dead { // pulling frames may end the link
			e.Unlock()
			<-c.wake
			e.Lock()
			continue
		}
		buf := copyBufs.Get().(*[copySize]byte)
		n := c.out.Copy(buf[:]) // under the lock: a cancel finds the memory free
		err := c.send(w, buf[:n])
		copyBufs.Put(buf)
		for err != nil && !c.dead { // what the peer sent last may wait to be read
			c.mute = true
			_ = nc.tcp.SetReadDeadline(time.Now().Add(lastGrace))
			e.Unlock()
			<-c.wake
			e.Lock()
		}
	}
	last := c.last
	if !c.out.Last(nil) { // in the middle of a frame
		last = nil
	}
	e.Unlock()
	c.sendLast(nc, w, last)
}

// sendLast sends the frames that are pulled and the last one, if there is one, and lets go of the memory.
func (c *portableConn) sendLast(nc *socket, w io.Writer, last []byte) {
	_ = nc.tcp.SetWriteDeadline(time.Now().Add(lastGrace)) // that of Cut may be over before the writer has run
	for buf := copyBufs.Get().(*[copySize]byte); c.out.Pending() && last != nil; {
		if _, err := w.Write(buf[:c.out.Copy(buf[:])]); err != nil {
			last = nil
		}
	}
	_, _ = w.Write(last)
	c.out.Close()
}

// send writes b. Locked at its beginning and its end, not while it writes.
func (c *portableConn) send(w io.Writer, b []byte) error {
	c.writing = true
	c.link.Waits()
	c.ca.e.Pause()
	_, err := w.Write(b)
	c.ca.e.Lock()
	c.writing = false
	if err != nil && c.dead {
		c.last = nil // in the middle of a frame
	}
	return err
}

// Taken implements engine.Taker.
func (ca *portable) Taken(l *engine.Link, f engine.Flow) (count uint64, waits bool) {
	c, _ := l.Conn.(*portableConn)
	if c == nil || f != engine.FlowMessages {
		return 0, false
	}
	return c.pieces.Load(), c.writing
}

// A pieceWriter writes in pieces, below TLS if there is any, and counts them.
type pieceWriter struct {
	c *portableConn
	w io.Writer
}

// Write implements io.Writer.
func (p pieceWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = p.w.Write(b[n:min(len(b), n+pieceSize)])
		n += k
		p.c.pieces.Add(1)
	}
	return n, err
}

type readWriter struct {
	io.Reader
	io.Writer
}

// Proof implements engine.Prover.
func (c *portableConn) Proof() na.Identity { return c.nc.proof() }

// Remote implements engine.Addressed.
func (c *portableConn) Remote() string { return c.remote }

// readError says how a connection ended.
func readError(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return errEOF
	}
	return lost("connection lost", err)
}
