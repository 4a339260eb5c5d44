package tcp

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

// A polled is the carrier of a context whose sockets are in the context's poller.
type polled struct {
	names
	d      *domain
	e      *engine.Endpoint
	poller *na.Poller
	work   atomic.Bool // failedDials or closing is not empty

	// Guarded by the endpoint's lock.
	conns       map[*conn]struct{}
	failedDials []*conn // at once
	closing     []*conn // dead connections whose descriptors are still open
	released    bool

	own *listener // with ReusePort
}

var (
	_ carrier      = (*polled)(nil)
	_ engine.Laner = (*polled)(nil)
	_ engine.Taker = (*polled)(nil)
)

// newPolled makes the carrier of a context.
func (d *domain) newPolled(e *engine.Endpoint) (_ engine.Carrier, err error) {
	ca := &polled{names: d.names, d: d, e: e, poller: e.Context().Poller(), conns: map[*conn]struct{}{}}
	if ca.own, err = d.join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *polled) endpoint() *engine.Endpoint { return ca.e }

// take implements carrier. A connection that the peer has given up meanwhile is nobody's: the session that it has made since
// must not go for it.
func (ca *polled) take(g *guest, hello frame.Greeting, verified bool) (*engine.Link, func(), error) {
	c := ca.newConn(g.in, nil, hello.HasLane())
	err := c.hold(&g.socket)
	if err == nil && ended(c.fd) {
		err = errEOF
	}
	var l *engine.Link
	if err == nil {
		l, err = ca.e.Admit(c, hello, verified)
	}
	if err != nil {
		delete(ca.conns, c)
		_ = unix.Close(c.fd)
		return nil, nil, err
	}
	c.bind(l)
	c.start(&g.socket)
	return l, func() { _ = g.tcp.Close() }, nil
}

// ended reports whether the peer has ended a connection, whatever waits to be read.
func ended(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p[:], 0)
	return n > 0
}

// Dial implements engine.Carrier. It reports nothing by itself: what fails at once is found by Poll, because the caller
// is in the middle of starting an operation.
func (ca *polled) Dial(l *engine.Link) { l.Conn = ca.dial(l, false) }

// DialLane implements engine.Laner.
func (ca *polled) DialLane(l *engine.Link) { l.Lane = ca.dial(l, true) }

func (ca *polled) dial(l *engine.Link, lane bool) *conn {
	c := ca.newConn(&stream.In{}, l, lane)
	c.connecting = true
	if ca.d.sec != nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.cancel = cancel
		go c.secure(ctx, l.Name())
		return c
	}
	if err := c.dial(l.Name()); err != nil {
		c.err = unreachable("connect", err)
		ca.failedDials = append(ca.failedDials, c)
		ca.work.Store(true)
		ca.e.Context().Nudge()
	}
	return c
}

// Flush implements engine.Carrier.
func (ca *polled) Flush(l *engine.Link) {
	ca.e.Lock()
	if c, _ := l.Conn.(*conn); c != nil {
		c.flush()
	}
	if c, _ := l.Lane.(*conn); c != nil {
		c.flush()
	}
	ca.e.Unlock()
}

// Cut implements engine.Carrier. The descriptor is closed by Poll, which the end of the connection wakes.
func (ca *polled) Cut(l *engine.Link, last []byte) {
	c, _ := l.Conn.(*conn)
	lane, _ := l.Lane.(*conn)
	l.Conn, l.Lane = nil, nil
	if c != nil {
		c.cut(last)
	}
	if lane != nil {
		lane.cut(nil)
	}
}

// cut drops one connection. Locked.
func (c *conn) cut(last []byte) {
	if c.dead {
		return
	}
	c.dead = true
	c.last = last
	c.in.End()
	ca := c.ca
	ca.closing = append(ca.closing, c)
	if c.cancel != nil {
		c.cancel()
	}
	ca.work.Store(true)
	if !c.writing { // else the writer does it when it comes out
		c.farewell()
	}
	ca.e.Context().Nudge()
}

// Poll implements engine.Carrier.
func (ca *polled) Poll(time.Duration) {
	if ca.work.Load() {
		ca.reap()
	}
}

// reap reports dials that failed at once and closes the descriptors of dead connections.
func (ca *polled) reap() {
	ca.e.Lock()
	defer ca.e.Unlock()
	ca.work.Store(false)
	failed := ca.failedDials
	ca.failedDials = nil
	for _, c := range failed {
		if !c.dead {
			c.fail(c.err)
		}
	}
	closing := ca.closing
	ca.closing = nil
	for _, c := range closing {
		if c.writing {
			ca.closing = append(ca.closing, c)
			ca.work.Store(true)
			continue
		}
		c.close()
	}
}

// NextTimer implements engine.Carrier.
func (ca *polled) NextTimer() time.Duration {
	if len(ca.failedDials) > 0 {
		return 1
	}
	return 0
}

// Taken implements engine.Taker: what the peer's system has acknowledged, and how often there was room again.
func (ca *polled) Taken(l *engine.Link, bulk bool) (count uint64, waits bool) {
	c, _ := l.Conn.(*conn)
	if bulk {
		c, _ = l.Lane.(*conn)
	}
	if c == nil || !c.blocked {
		return 0, false
	}
	if info, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		count = info.Bytes_acked
	}
	return count + c.rooms, true
}

// Shut implements engine.Carrier.
func (ca *polled) Shut() { ca.d.door.part(ca, ca.own) }

// Release implements engine.Carrier.
func (ca *polled) Release() {
	ca.e.Lock()
	defer ca.e.Unlock()
	ca.released = true
	for c := range ca.conns {
		if !c.writing { // else the writer closes it when it comes out
			c.close()
		}
	}
}
