package tcp

import (
	"context"
	"strings"
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
	d      *domain
	e      *engine.Endpoint
	poller *na.Poller
	work   atomic.Bool // failedDials or closing is not empty

	// Guarded by the endpoint's lock.
	conns       map[*conn]struct{}
	offered     map[token]*conn // connections of sessions whose second one may come
	failedDials []*conn         // at once
	closing     []*conn         // dead connections whose descriptors are still open
	released    bool

	own *listener // with ReusePort
}

var (
	_ carrier      = (*polled)(nil)
	_ engine.Taker = (*polled)(nil)
)

// newPolled makes the carrier of a context.
func (d *domain) newPolled(e *engine.Endpoint) (_ engine.Carrier, err error) {
	ca := &polled{d: d, e: e, poller: e.Host().Poller(), conns: map[*conn]struct{}{}, offered: map[token]*conn{}}
	if ca.own, err = d.join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *polled) endpoint() *engine.Endpoint { return ca.e }

// adopt implements carrier. A connection that the peer has given up meanwhile is nobody's: the session that it has made since
// must not go for it.
func (ca *polled) adopt(g *guest, hello *frame.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return ca.adoptBulk(g, hello)
	}
	c, err := ca.holdGuest(g, engine.FlowMessages)
	if err != nil {
		return nil, err
	}
	l, err := ca.e.Admit(ca, c, hello, verified)
	if err != nil {
		c.letGo()
		return nil, err
	}
	c.bind(l)
	c.offer()
	c.start(&g.socket)
	return func() { _ = g.tcp.Close() }, nil
}

// ended reports whether the peer has ended a connection, whatever waits to be read.
func ended(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p[:], 0)
	return n > 0
}

// Dial implements engine.Carrier. It reports nothing by itself: what fails at once is found by Poll, because the caller
// is in the middle of starting an operation.
func (ca *polled) Dial(l *engine.Link) {
	c := ca.newConn(&stream.In{}, l, engine.FlowMessages)
	c.in.Greet = c.greet
	c.dialled = true
	l.Conn = c
	ca.dial(c)
}

// dial begins to make c, a connection to the peer of its link.
func (ca *polled) dial(c *conn) {
	c.connecting = true
	if ca.d.sec != nil || ca.d.opts.Control != nil || strings.Contains(c.link.Name(), "%") {
		ctx, cancel := context.WithCancel(context.Background())
		c.cancel = cancel
		go c.connect(ctx, c.link.Name(), c.link.Host())
		return
	}
	if err := c.dial(c.link.Name()); err != nil {
		c.err = unreachable("connect", err)
		ca.failedDials = append(ca.failedDials, c)
		ca.work.Store(true)
		ca.e.Host().PollSoon()
	}
}

// Flush implements engine.Carrier.
func (ca *polled) Flush(ls []*engine.Link) {
	for _, l := range ls {
		c, _ := l.Conn.(*conn)
		if c == nil {
			continue
		}
		if c.flush(); c.bulk != nil {
			c.bulk.flush()
		}
	}
}

// Stage implements engine.Stager.
func (ca *polled) Stage(l *engine.Link) engine.Writer {
	c, _ := l.Conn.(*conn)
	if c == nil || c.writing || c.blocked || c.connecting || c.mute || c.dead || !c.out.Stages() {
		return nil
	}
	return &c.out
}

// Cut implements engine.Carrier. The descriptor is closed by Poll, which the end of the connection wakes.
func (ca *polled) Cut(l *engine.Link, bye frame.Bye) {
	c, _ := l.Conn.(*conn)
	l.Conn = nil
	if c == nil {
		return
	}
	c.cut(bye.Frame())
	if c.bulk != nil {
		c.bulk.cut(nil)
	}
	delete(ca.offered, c.token)
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
	ca.e.Host().PollSoon()
}

// Poll implements engine.Carrier.
func (ca *polled) Poll(time.Duration) time.Duration {
	if ca.work.Load() {
		ca.reap()
	}
	return 0
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

// Lingering implements engine.Carrier: what is said last goes at once or not at all.
func (ca *polled) Lingering(time.Duration) bool { return false }

// Taken implements engine.Taker: what the peer's system has acknowledged, and how often there was room again.
func (ca *polled) Taken(l *engine.Link, f engine.Flow) (count uint64, waits bool) {
	c, _ := l.Conn.(*conn)
	if c != nil && f == engine.FlowBulk {
		c = c.bulk
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
func (ca *polled) Shut() { ca.d.door.unregister(ca, ca.own) }

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
