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

// An epollCarrier is the carrier of a context whose poller watches the sockets.
type epollCarrier struct {
	domain  *domain
	core    carrier.Core
	poller  carrier.Poller
	hasWork atomic.Bool // set if failedDials or closing is not empty

	buffers framing.Buffers // buffers shared by the elements of conns

	// The fields below are guarded by the context's lock.
	conns       map[*conn]struct{}
	offered     map[token]*conn // first connection of each session that offers a second one, by its token
	failedDials []*conn         // connections whose dial failed immediately; reported by reap
	closing     []*conn         // dead connections whose descriptors are still open
	released    bool

	listener *netconn.Listener // listening socket of this carrier if ReusePort is set; otherwise nil
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

// Adopt implements netconn.Adopter. It rejects a connection that the peer has already closed. The peer may have opened
// another session in the meantime, which the old connection must not replace.
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

// Dial implements carrier.Carrier. The next Poll reports a dial that fails immediately, because Dial is called while an
// operation is being started.
func (ca *epollCarrier) Dial(l carrier.Session) {
	c := ca.newConn(&framing.In{}, l, carrier.Messages)
	c.in.Greet = c.handleHello
	c.dialled = true
	l.SetConn(c)
	ca.startDial(c)
}

// startDial starts connecting c to its session's peer, on another goroutine if that may block.
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

// cut closes c. If last is not nil, it is sent as the last frame if possible. The caller must hold the context's lock.
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
	if !c.writing { // otherwise the writer calls it when it has finished
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

// reap reports the dials that failed immediately. It also closes the descriptors of dead connections, except those that
// a goroutine is writing to.
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

// Taken implements carrier.WriteMeter. The count is the number of bytes that the peer's system has acknowledged, plus
// the number of times the socket has become writable.
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
