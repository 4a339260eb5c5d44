package tcp

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A polled is the carrier of a context whose sockets are in the context's poller.
type polled struct {
	d      *domain
	e      carrier.Core
	poller carrier.Poller
	work   atomic.Bool // failedDials or closing is not empty

	buffers framing.Buffers // of conns

	// Guarded by the endpoint's lock.
	conns       map[*conn]struct{}
	offered     map[token]*conn // connections of sessions whose second one may come
	failedDials []*conn         // at once
	closing     []*conn         // dead connections whose descriptors are still open
	released    bool

	own *netconn.Listener // with ReusePort
}

var (
	_ netconn.Adopter    = (*polled)(nil)
	_ carrier.WriteMeter = (*polled)(nil)
)

// newPolled makes the carrier of a context.
func (d *domain) newPolled(e carrier.Core) (_ carrier.Carrier, err error) {
	ca := &polled{d: d, e: e, poller: e.Poller(), conns: map[*conn]struct{}{}, offered: map[token]*conn{}}
	if ca.own, err = d.server.Join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *polled) Core() carrier.Core { return ca.e }

// Adopt implements netconn.Adopter. A connection that the peer has given up meanwhile is nobody's: the session that it has made since
// must not go for it.
func (ca *polled) Adopt(nc net.Conn, in *framing.In, hello *frame.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return ca.adoptBulk(nc.(*socket), in, hello)
	}
	c, err := ca.holdSocket(nc.(*socket), in, carrier.Messages)
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
	c.start(nc.(*socket))
	return func() { _ = nc.(*socket).tcp.Close() }, nil
}

// ended reports whether the peer has ended a connection, whatever waits to be read.
func ended(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p[:], 0)
	return n > 0
}

// Dial implements carrier.Carrier. It reports nothing by itself: what fails at once is found by Poll, because the caller
// is in the middle of starting an operation.
func (ca *polled) Dial(l carrier.Session) {
	c := ca.newConn(&framing.In{}, l, carrier.Messages)
	c.in.Greet = c.greet
	c.dialled = true
	l.SetConn(c)
	ca.dial(c)
}

// dial begins to make c, a connection to the peer of its session.
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
		ca.e.PollSoon()
	}
}

// Flush implements carrier.Carrier.
func (ca *polled) Flush(ls []carrier.Session) {
	for _, l := range ls {
		c, _ := l.Conn().(*conn)
		if c == nil {
			continue
		}
		if c.flush(); c.bulk != nil {
			c.bulk.flush()
		}
	}
}

// Stage implements carrier.Stager.
func (ca *polled) Stage(l carrier.Session) carrier.Writer {
	c, _ := l.Conn().(*conn)
	if c == nil || c.writing || c.blocked || c.connecting || c.mute || c.dead || !c.out.Stages() {
		return nil
	}
	return &c.out
}

// Cut implements carrier.Carrier. The descriptor is closed by Poll, which the end of the connection wakes.
func (ca *polled) Cut(l carrier.Session, bye frame.Bye) {
	c, _ := l.Conn().(*conn)
	l.SetConn(nil)
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
	ca.e.PollSoon()
}

// Poll implements carrier.Carrier.
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

// Lingering implements carrier.Carrier: what is said last goes at once or not at all.
func (ca *polled) Lingering(time.Duration) bool { return false }

// Taken implements carrier.WriteMeter: what the peer's system has acknowledged, and how often there was room again.
func (ca *polled) Taken(l carrier.Session, f carrier.Lane) (count uint64, waits bool) {
	c, _ := l.Conn().(*conn)
	if c != nil && f == carrier.Bulk {
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

// Shut implements carrier.Carrier.
func (ca *polled) Shut() { ca.d.server.Leave(ca, ca.own) }

// Release implements carrier.Carrier.
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
