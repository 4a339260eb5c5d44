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

// epollCarrier is the carrier of a context whose sockets are in the context's poller.
type epollCarrier struct {
	domain  *domain
	core    carrier.Core
	poller  carrier.Poller
	hasWork atomic.Bool // failedDials or closing is not empty

	buffers framing.Buffers // shared by conns

	// The fields below are guarded by the context's lock.
	conns       map[*conn]struct{}
	offered     map[token]*conn // first connections of sessions, by the token of their second connection
	failedDials []*conn         // connections whose dial failed immediately; reported by reap
	closing     []*conn         // dead connections whose descriptors are still open
	released    bool

	listener *netconn.Listener // with ReusePort, this carrier's listening socket; otherwise nil
}

var (
	_ netconn.Adopter    = (*epollCarrier)(nil)
	_ carrier.WriteMeter = (*epollCarrier)(nil)
	_ carrier.Drainer    = (*epollCarrier)(nil)
)

// newEpollCarrier returns the carrier of a context.
func (d *domain) newEpollCarrier(e carrier.Core) (_ carrier.Carrier, err error) {
	ca := &epollCarrier{domain: d, core: e, poller: e.Poller(), conns: map[*conn]struct{}{}, offered: map[token]*conn{}}
	if ca.listener, err = d.server.Join(ca); err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *epollCarrier) Core() carrier.Core { return ca.core }

// Adopt implements netconn.Adopter. It rejects a connection that the peer has already closed. The peer may since have
// opened a new session, which must not be closed in favor of the old connection.
func (ca *epollCarrier) Adopt(nc net.Conn, in *framing.In, hello *frame.Greeting, verified bool) (func(), error) {
	if len(hello.Label) > 0 {
		return ca.adoptBulk(nc.(*socket), in, hello)
	}
	c, err := ca.newConnFrom(nc.(*socket), in, carrier.Messages)
	if err != nil {
		return nil, err
	}
	l, err := ca.core.Admit(ca, c, hello, verified)
	if err != nil {
		c.discard()
		return nil, err
	}
	c.bindSession(l)
	c.offerBulk()
	c.startPolling(nc.(*socket))
	return func() { _ = nc.(*socket).tcp.Close() }, nil
}

// isHungUp reports whether the peer has closed the connection, even if there are bytes left to read.
func isHungUp(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p[:], 0)
	return n > 0
}

// Dial implements carrier.Carrier. A dial that fails immediately is reported by the next Poll, because the caller is in
// the middle of starting an operation.
func (ca *epollCarrier) Dial(l carrier.Session) {
	c := ca.newConn(&framing.In{}, l, carrier.Messages)
	c.in.Greet = c.handleHello
	c.dialled = true
	l.SetConn(c)
	ca.startDial(c)
}

// startDial starts connecting c to its session's peer. If that may block, it does so on another goroutine.
func (ca *epollCarrier) startDial(c *conn) {
	c.connecting = true
	if ca.domain.security != nil || ca.domain.opts.Control != nil || strings.Contains(c.session.Name(), "%") {
		ctx, cancel := context.WithCancel(context.Background())
		c.cancel = cancel
		go c.dialBlocking(ctx, c.session.Name(), c.session.Host())
		return
	}
	if err := c.startConnect(c.session.Name()); err != nil {
		c.dialErr = unreachableError("connect", err)
		ca.failedDials = append(ca.failedDials, c)
		ca.hasWork.Store(true)
		ca.core.PollSoon()
	}
}

// Flush implements carrier.Carrier.
func (ca *epollCarrier) Flush(ls []carrier.Session) {
	for _, l := range ls {
		c, _ := l.Conn().(*conn)
		if c == nil {
			continue
		}
		c.flush()
		if c.bulk != nil {
			c.bulk.flush()
		}
	}
}

// Stage implements carrier.Stager.
func (ca *epollCarrier) Stage(l carrier.Session) carrier.Writer {
	c, _ := l.Conn().(*conn)
	if c == nil || c.writing || c.blocked || c.connecting || c.writeFailed || c.dead || !c.out.Stages() {
		return nil
	}
	return &c.out
}

// Cut implements carrier.Carrier. Shutting down the connection wakes Poll, which closes the descriptor.
func (ca *epollCarrier) Cut(l carrier.Session, bye frame.Bye) {
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

// cut closes one connection. If last is not nil, it is sent as the last frame. The caller must hold the context's lock.
func (c *conn) cut(last []byte) {
	if c.dead {
		return
	}
	c.dead = true
	c.lastFrame = last
	c.in.End()
	ca := c.ca
	ca.closing = append(ca.closing, c)
	if c.cancel != nil {
		c.cancel()
	}
	ca.hasWork.Store(true)
	if !c.writing { // otherwise the writer does it when it has finished
		c.sendLastAndShutdown()
	}
	ca.core.PollSoon()
}

// Poll implements carrier.Carrier.
func (ca *epollCarrier) Poll(time.Duration) time.Duration {
	if ca.hasWork.Load() {
		ca.reap()
	}
	return 0
}

// reap reports dials that failed immediately, and closes the descriptors of dead connections that are not being written
// to.
func (ca *epollCarrier) reap() {
	ca.core.Lock()
	defer ca.core.Unlock()
	ca.hasWork.Store(false)
	failed := ca.failedDials
	ca.failedDials = nil
	for _, c := range failed {
		if !c.dead {
			c.fail(c.dialErr)
		}
	}
	closing := ca.closing
	ca.closing = nil
	for _, c := range closing {
		if c.writing {
			ca.closing = append(ca.closing, c)
			ca.hasWork.Store(true)
			continue
		}
		c.close()
	}
}

// Lingering implements carrier.Carrier. It returns false, because the last frame is sent immediately or not at all.
func (ca *epollCarrier) Lingering(time.Duration) bool { return false }

// Taken implements carrier.WriteMeter. The count is the number of bytes acknowledged by the peer's system, plus the
// number of times the socket became writable.
func (ca *epollCarrier) Taken(l carrier.Session, f carrier.Lane) (count uint64, waits bool) {
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
	return count + c.writableCount, true
}

// Shut implements carrier.Carrier.
func (ca *epollCarrier) Shut() { ca.domain.server.Leave(ca, ca.listener) }

// Drain implements carrier.Drainer.
func (ca *epollCarrier) Drain() { ca.domain.server.Drain(ca) }

// Release implements carrier.Carrier.
func (ca *epollCarrier) Release() {
	ca.core.Lock()
	defer ca.core.Unlock()
	ca.released = true
	for c := range ca.conns {
		if !c.writing { // otherwise the writer closes it when it has finished
			c.close()
		}
	}
}
