package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

const (
	// portablePause is how long nothing is accepted after the process ran out of descriptors.
	portablePause = 100 * time.Millisecond
	// lastGrace is how long the last frame of a session may take to be written.
	lastGrace = 100 * time.Millisecond
	// copySize is what a writer copies for one write.
	copySize = 64 << 10
)

// portableDomain is what the carriers of a class share when goroutines read the connections.
type portableDomain struct {
	main *portableListener // nil when there is none

	mu   sync.Mutex // guards the fields below and portable.own; taken inside an endpoint's lock
	open []*portable
	half map[*net.TCPConn]struct{} // connections that have not said HELLO
}

// A portableListener is a listening socket, with a goroutine that accepts once a context exists.
type portableListener struct {
	l       *net.TCPListener
	done    chan struct{}
	started bool
	closed  bool
}

func (p *portableListener) close() {
	if !p.closed {
		p.closed = true
		close(p.done)
		_ = p.l.Close()
	}
}

// A portable is the carrier of a context whose connections have two goroutines each: a reader that never lends user
// memory to a read that waits, and a writer that copies before it writes.
type portable struct {
	names
	d   *domain
	e   *engine.Endpoint
	own *portableListener // with ReusePort
}

var _ engine.Carrier = (*portable)(nil)

// accept takes over the first listening socket.
func (p *portableDomain) accept(_ *domain, l *net.TCPListener) error {
	p.main = &portableListener{l: l, done: make(chan struct{})}
	return nil
}

// close closes the listening socket if no context ever did.
func (p *portableDomain) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.main != nil {
		p.main.close()
	}
}

// newPortable makes the carrier of a context.
func (d *domain) newPortable(e *engine.Endpoint) (engine.Carrier, error) {
	ca := &portable{names: d.names, d: d, e: e}
	p := &d.portable
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.half == nil {
		p.half = map[*net.TCPConn]struct{}{}
	}
	switch {
	case p.main == nil:
	case !p.main.started:
		p.main.started = true
		if d.opts.ReusePort {
			ca.own = p.main
		}
		go d.acceptLoop(p.main)
	case d.opts.ReusePort:
		l, err := d.bindSibling()
		if err != nil {
			return nil, err
		}
		ca.own = &portableListener{l: l, done: make(chan struct{}), started: true}
		go d.acceptLoop(ca.own)
	case p.main.closed:
		return nil, na.WithText(na.ErrClosed, "the listening socket was closed with the last context")
	}
	p.open = append(p.open, ca)
	return ca, nil
}

// portableCarrier returns the open carrier of a target id, or nil.
func (d *domain) portableCarrier(target int) *portable {
	e := d.eng.Context(target) // nil until the engine knows its carrier
	if e == nil {
		return nil
	}
	d.portable.mu.Lock()
	defer d.portable.mu.Unlock()
	for _, ca := range d.portable.open {
		if ca.e == e {
			return ca
		}
	}
	return nil
}

// acceptLoop accepts until the socket is closed.
func (d *domain) acceptLoop(l *portableListener) {
	for {
		nc, err := l.l.AcceptTCP()
		switch {
		case err == nil:
			d.greet(nc)
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, most likely
			pause := time.NewTimer(portablePause)
			select {
			case <-pause.C:
			case <-l.done:
				pause.Stop()
				return
			}
		}
	}
}

// greet takes in a connection, within the limit.
func (d *domain) greet(nc *net.TCPConn) {
	p := &d.portable
	p.mu.Lock()
	full := len(p.half) >= d.opts.MaxHalfOpen || len(p.open) == 0
	if !full {
		p.half[nc] = struct{}{}
	}
	p.mu.Unlock()
	if full {
		_ = nc.Close()
		return
	}
	go d.serve(nc)
}

// serve reads the HELLO of a connection that came in, and then is the reader of its connection.
func (d *domain) serve(nc *net.TCPConn) {
	pc, g, err := d.hear(nc)
	var c *portableConn
	if err == nil {
		_ = nc.SetDeadline(time.Time{})
		if c, err = d.admit(nc, pc, g); err == nil {
			c.read(pc)
			return
		}
		_ = nc.SetWriteDeadline(time.Now().Add(lastGrace))
		_, _ = pc.Write(engine.Goaway(err))
		_ = pc.Close()
	}
	_ = nc.Close()
}

// hear reads the HELLO, after the handshake of TLS if that is asked for. The connection is half open meanwhile.
func (d *domain) hear(nc *net.TCPConn) (pc portableSocket, g frame.Greeting, err error) {
	err = errStopped
	defer func() { // also when a function of the user's ends the goroutine
		d.portable.mu.Lock()
		delete(d.portable.half, nc)
		d.portable.mu.Unlock()
		if err == errStopped {
			_ = nc.Close()
		}
	}()
	due := time.Now().Add(d.opts.HandshakeTimeout)
	_ = nc.SetDeadline(due)
	if pc, err = d.begin(nc, due); err == nil {
		g, err = readHello(pc)
	}
	if err != nil {
		_ = nc.SetDeadline(time.Now().Add(lastGrace))
		d.turnAway(nc, pc, err)
	}
	return pc, g, err
}

// admit hands the connection over to the context that its HELLO names.
func (d *domain) admit(nc *net.TCPConn, pc portableSocket, g frame.Greeting) (*portableConn, error) {
	to := d.portableCarrier(int(g.Target))
	if to == nil {
		return nil, noContext(g)
	}
	same := verified(g.Listen, ipOf(nc.LocalAddr()), ipOf(nc.RemoteAddr()))
	if t, ok := pc.(*portableTLS); ok {
		same = same && t.speaksFor(g.Listen)
	}
	c := to.newConn(nil)
	c.nc = pc
	d.setConnOptions(nc)
	to.e.Lock()
	l, err := to.e.Admit(c, g, same)
	if err == nil {
		c.bind(l)
		go c.write(pc, c.patient(pc))
	}
	to.e.Unlock()
	to.e.Flush()
	return c, err
}

// Dial implements engine.Carrier.
func (ca *portable) Dial(l *engine.Link) {
	ctx, cancel := context.WithCancel(context.Background())
	c := ca.newConn(l)
	c.cancel = cancel
	l.Conn = c
	go c.dial(ctx, l.Name())
}

// Flush implements engine.Carrier.
func (ca *portable) Flush(l *engine.Link) {
	ca.e.Lock()
	if c, _ := l.Conn.(*portableConn); c != nil {
		c.poke()
	}
	ca.e.Unlock()
}

// Cut implements engine.Carrier: the writer closes the connection, which ends the reader.
func (ca *portable) Cut(l *engine.Link, last []byte) {
	c, _ := l.Conn.(*portableConn)
	l.Conn = nil
	if c == nil || c.dead {
		return
	}
	c.dead = true
	c.last = last
	c.in.End()
	if c.nc == nil {
		c.cancel()
		return
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastGrace))
	c.poke()
}

// Poll implements engine.Carrier.
func (ca *portable) Poll(time.Duration) {}

// NextTimer implements engine.Carrier. A handshake has a deadline of its own, which holds although nobody drives.
func (ca *portable) NextTimer() time.Duration { return 0 }

// Shut implements engine.Carrier.
func (ca *portable) Shut() {
	p := &ca.d.portable
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.open {
		if other == ca {
			p.open = append(p.open[:i], p.open[i+1:]...)
			break
		}
	}
	if ca.own != nil {
		ca.own.close()
	}
	if len(p.open) == 0 {
		if p.main != nil {
			p.main.close()
		}
		for nc := range p.half {
			_ = nc.Close()
		}
	}
}

// Release implements engine.Carrier: Shut has cut every connection, and each closes within lastGrace.
func (ca *portable) Release() {}

// A portableConn is a connection of a link.
type portableConn struct {
	ca   *portable
	in   stream.In     // the reader's; Parse under the lock
	wake chan struct{} // the writer has something to do

	// Guarded by the endpoint's lock. out is also used by the writer without it.
	nc     portableSocket // nil while connecting
	cancel func()         // ends connecting
	link   *engine.Link
	out    stream.Out
	dead   bool
	last   []byte
}

func (ca *portable) newConn(l *engine.Link) *portableConn {
	c := &portableConn{ca: ca, wake: make(chan struct{}, 1)}
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
func (c *portableConn) dial(ctx context.Context, name string) {
	defer c.cancel()
	nc, err := c.ca.d.connect(ctx, name)
	c.ca.e.Lock()
	switch {
	case c.dead:
		c.ca.e.Unlock()
		if nc != nil {
			_ = nc.Close()
		}
		return
	case err != nil:
		c.link.Fail(err)
		c.ca.e.Unlock()
		c.ca.e.Flush()
		return
	}
	c.nc = nc
	c.ca.e.Unlock()
	go c.write(nc, c.patient(nc))
	c.read(nc)
}

// connect dials name, TLS included.
func (d *domain) connect(ctx context.Context, name string) (portableSocket, error) {
	ap, err := parseName(name)
	var nc net.Conn
	if err == nil {
		dialer := net.Dialer{KeepAlive: -1}
		nc, err = dialer.DialContext(ctx, "tcp", ap.String())
	}
	if err != nil {
		return nil, na.WithText(na.ErrUnreachable, reason(err))
	}
	tcp := nc.(*net.TCPConn)
	d.setConnOptions(tcp)
	if d.sec == nil {
		return tcp, nil
	}
	return d.dialTLS(ctx, tcp, name)
}

// read takes in what arrives until the connection is dead.
func (c *portableConn) read(nc portableSocket) {
	defer c.in.Close()
	for dead := false; !dead; {
		n, err := nc.Read(c.in.Space())
		c.in.Got(n)
		c.ca.e.Lock()
		if n > 0 && !c.dead {
			c.link.Heard(c.in.Bulk())
			if err := c.in.Parse(); err != nil {
				c.link.Fail(err)
			}
		}
		if err != nil && !c.dead {
			c.link.Fail(readError(err))
		}
		dead = c.dead
		c.ca.e.Unlock()
		c.ca.e.Flush()
	}
}

// write writes to w, which is nc, what the link has until the connection is dead, sends the last frame and closes.
func (c *portableConn) write(nc portableSocket, w io.Writer) {
	defer func() { _ = nc.Close() }()
	buf := make([]byte, copySize)
	e := c.ca.e
	e.Lock()
	for !c.dead {
		if !c.out.Fill() || c.dead { // pulling frames may end the link
			e.Unlock()
			<-c.wake
			e.Lock()
			continue
		}
		n := c.out.Copy(buf) // under the lock: a cancel finds the memory free
		err := c.send(w, buf[:n])
		for err != nil && !c.dead { // what the peer sent last may wait to be read
			_ = nc.SetReadDeadline(time.Now().Add(lastGrace))
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
	for c.out.Pending() && last != nil {
		if _, err := w.Write(buf[:c.out.Copy(buf)]); err != nil {
			last = nil
		}
	}
	_, _ = w.Write(last)
	c.out.Close()
}

// send writes b. Locked at its beginning and its end, not while it writes.
func (c *portableConn) send(w io.Writer, b []byte) error {
	c.ca.e.Unlock()
	_, err := w.Write(b)
	c.ca.e.Lock()
	switch {
	case err == nil:
	case c.dead:
		c.last = nil // in the middle of a frame
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.link.Fail(c.ca.d.opts.unread())
		c.last = nil
	}
	return err
}

// A patientSocket is written to until a peer takes nothing for WriteTimeout. It is below TLS, which a write that did not end
// breaks for good.
type patientSocket struct {
	*net.TCPConn
	c *portableConn
}

// Write implements io.Writer. The peer may take its time, but it must take something.
func (s patientSocket) Write(b []byte) (n int, err error) {
	for {
		s.renew()
		k, err := s.TCPConn.Write(b[n:])
		n += k
		if k == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// renew sets the deadline, before Cut sets one, not after.
func (s patientSocket) renew() {
	s.c.ca.e.Lock()
	if !s.c.dead {
		_ = s.SetWriteDeadline(time.Now().Add(s.c.ca.d.opts.WriteTimeout))
	}
	s.c.ca.e.Unlock()
}

// patient has the socket of nc, which nobody uses yet, be patient, and returns what is to be written to.
func (c *portableConn) patient(nc portableSocket) io.Writer {
	if t, ok := nc.(*portableTLS); ok {
		t.tap.rw = patientSocket{t.nc, c}
		return t
	}
	return patientSocket{nc.(*net.TCPConn), c}
}

// readError says how a connection ended.
func readError(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return errEOF
	}
	return lost("connection lost", err)
}

// setConnOptions sets what the options ask for.
func (d *domain) setConnOptions(nc *net.TCPConn) {
	keep, _ := d.opts.probes(d.peerTimeout)
	_ = nc.SetNoDelay(true)
	_ = nc.SetKeepAliveConfig(keep)
}

func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
