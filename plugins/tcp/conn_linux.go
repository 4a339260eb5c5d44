package tcp

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
)

const (
	maxReads  = 4  // maximum number of reads from one connection before the next one is served
	maxWrites = 16 // maximum number of writes to one connection before the poller's next event is handled

	// maxUnsent is the number of bytes that the system accepts before it can send them (TCP_NOTSENT_LOWAT). It bounds
	// the number of bytes that a message waits for. At the size of one piece of bulk data, the wait is less than half
	// as long as without the limit. On loopback, throughput is not reduced.
	maxUnsent = 256 << 10

	// maxRetry is the longest retransmission timeout that the system uses (TCP_RTO_MAX_MS). By default the timeout
	// doubles with each retransmission, to 3.2 s after the fourth. A PeerTimeout of 5 s would then allow too few
	// retransmissions to tell a lossy network, or one that has just recovered, from a lost peer. Linux accepts no less
	// than 1 s.
	maxRetry = time.Second
)

// A conn is a connection of a session. The goroutine that polls the context reads from it. Any goroutine may write to
// it, but only one at a time.
//
// flush writes frames until there are none left or the socket is full, releasing the context's lock during each write.
// In the latter case, Ready calls it again once the socket is writable. cut marks the connection as dead. The last
// frame is then sent and the connection shut down, by the writer if there is one. Finally, Poll closes the descriptor.
// The descriptor stays open until neither a reader nor a writer can use it.
type conn struct {
	ca          *epollCarrier
	fd          int          // -1 if there is none; set before other goroutines use c
	lane        carrier.Lane // set before other goroutines use c
	in          *framing.In
	leaderOwned bool // the polling goroutine uses in; before that, the goroutine that reads the HELLO does
	wire        wire // set with the context's lock held, before the first read or write

	remote string // address of the peer; set with fd

	// The fields below are guarded by the context's lock. The writer also uses out without it.
	session          carrier.Session
	out              framing.Out
	id               carrier.PollID
	added            bool // the descriptor is in the poller
	connecting       bool
	cancel           func()       // cancels dialBlocking
	writableCount    uint64       // number of times the socket became writable
	dialled          bool         // this side dialed c
	token            token        // token of the session's second connection; zero if none is offered
	bulk             *conn        // second connection of the session, once dialed or adopted; nil in a bulk connection
	messages         uint64       // for lane Bulk: number of the context's messages at the last turn
	quietTurns       int          // for lane Bulk: number of turns since the last message
	quota            atomic.Int32 // for lane Bulk: number of bytes allowed in one turn; read without the lock
	writing          bool         // a goroutine is in flush
	blocked          bool         // the socket is full or the turn is over; wait for the poller
	watchingWritable bool         // the poller watches for writability
	writeFailed      bool         // a write has failed; the next read returns the reason
	dead             bool         // cut has been called
	closed           bool         // the descriptor is closed
	lastFrame        []byte       // sent before the shutdown
	dialErr          error        // error of a dial that failed immediately, to be reported by reap
}

// newConn returns a connection on lane f that receives through in. l is its session, or nil if that is not known yet.
// The caller must hold the context's lock.
func (ca *epollCarrier) newConn(in *framing.In, l carrier.Session, f carrier.Lane) *conn {
	c := &conn{ca: ca, fd: -1, lane: f, in: in}
	c.in.Lane, c.out.Lane = f, f
	c.in.Buffers, c.out.Buffers = &ca.buffers, &ca.buffers
	c.bindSession(l)
	ca.conns[c] = struct{}{}
	return c
}

// bindSession sets the session of c.
func (c *conn) bindSession(l carrier.Session) { c.session, c.in.Session, c.out.Session = l, l, l }

// startConnect starts connecting to name and does not block. The caller must hold the context's lock.
func (c *conn) startConnect(name string) error {
	ap, err := inet.Parse(scheme, name)
	if err != nil {
		return err
	}
	sa, family := sockaddrOf(ap)
	if c.fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		c.fd = -1
		return err
	}
	c.wire.fd, c.remote = c.fd, ap.String()
	c.ca.domain.setSocketOptions(c.fd, ap.Addr())
	switch err = unix.Connect(c.fd, sa); err {
	case nil, unix.EINPROGRESS, unix.EINTR:
		return c.addToPoller()
	case unix.EAGAIN:
		return unix.EADDRNOTAVAIL // all local ports are in use
	}
	return err
}

// dialBlocking connects c on a goroutine of its own. It is used if connecting may block: TLS requires a handshake,
// Options.Control is code of the program, and an address zone is the name of an interface that must be looked up. cut
// cancels it.
func (c *conn) dialBlocking(ctx context.Context, name, host string) {
	defer c.cancel()
	s, err := c.ca.domain.connect(ctx, name, host)
	c.ca.core.Lock()
	if !c.dead {
		c.connecting = false
		if err == nil {
			if err = c.attach(s); err != nil { // the error is local, and would recur on every attempt
				err = unreachableError("set TCP keepalive", err)
			} else {
				err = c.checkBulkPeer()
			}
		}
		if err != nil {
			c.fail(err)
		} else {
			c.startPolling(s)
			c.flush()
		}
	}
	c.ca.core.Unlock()
	if s != nil {
		_ = s.tcp.Close()
	}
}

// attach makes c use a duplicate of the descriptor of s. The caller may then close s. The context's lock must be held.
func (c *conn) attach(s *socket) error {
	fd, err := duplicate(s.tcp)
	if err != nil {
		return err
	}
	c.fd, c.wire.fd, c.remote = fd, fd, s.tcp.RemoteAddr().String()
	if s.tls != nil {
		c.wire.tls = newTLSWire(s.tls, fd)
	}
	return nil
}

// startPolling adds c, to which s was attached, to the poller. The caller must hold the context's lock.
func (c *conn) startPolling(s *socket) {
	c.ca.domain.setSocketOptions(c.fd, ipOf(s.tcp.RemoteAddr()))
	if tls := c.wire.tls; tls != nil {
		tls.useDescriptor()
		c.blocked = true // until the polling goroutine has read the bytes that TLS has buffered
	}
	if err := c.addToPoller(); err != nil {
		c.fail(lostError("watch the connection", err))
	}
}

// addToPoller adds the descriptor of c to the poller. The caller must hold the context's lock.
func (c *conn) addToPoller() (err error) {
	var to carrier.Pollable = c
	if c.lane == carrier.Bulk {
		to = (*bulkFD)(c)
	}
	if c.id, err = c.ca.poller.Add(c.fd, to); err != nil {
		return err
	}
	c.added = true
	if c.connecting || c.blocked {
		c.watchingWritable = true
		return c.ca.poller.Watch(c.fd, c.id, true, true)
	}
	return nil
}

// Ready implements carrier.Pollable.
func (c *conn) Ready(readable, writable bool) {
	if writable && !c.onWritable() {
		return
	}
	if readable || c.wire.hasBuffered() {
		c.readAvailable()
	}
}

// onWritable handles the event that the connection has been established or the socket has become writable. It returns
// false if the connection is dead.
func (c *conn) onWritable() bool {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	switch {
	case c.dead:
		return false
	case c.connecting:
		if err := c.connectError(); err != nil {
			c.fail(unreachableError("connect", err))
			return false
		}
		c.connecting = false
	}
	c.blocked = false
	c.writableCount++
	c.flush()
	return true
}

// connectError returns the error of the attempt to connect, or nil if c is connected.
func (c *conn) connectError() error {
	errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// Peek implements carrier.Peeker.
func (c *conn) Peek() bool { return c.readAvailable() }

// fail closes the session because of err. On a bulk connection it closes only that connection. The caller must hold the
// context's lock.
func (c *conn) fail(err error) {
	if c.lane == carrier.Messages {
		c.session.Fail(err)
		return
	}
	c.session.LaneDown(err)
	c.cut(nil) // no effect if LaneDown has closed the session
}

// readAvailable reads and handles bytes that have arrived, up to the quota. It reports whether there were any.
func (c *conn) readAvailable() (came bool) {
	if !c.leaderOwned { // the goroutine that reads the HELLO also parses the bytes after it, with the lock held; wait for it
		c.ca.core.Lock()
		c.leaderOwned = true
		c.ca.core.Unlock()
	}
	defer c.in.Idle()
	reads, got := maxReads, 0
	for i := 0; i < reads && c.hasQuota(got) || c.wire.hasBuffered(); i++ {
		n, dry, err := c.readOnce()
		got += n
		if n == 0 && err == nil {
			break // the poller reports when more bytes arrive
		}
		came = true
		if c.handleRead(n, err) || dry {
			break
		}
	}
	return came
}

// handleRead handles the result of a read: n bytes in c.in, and err. It reports whether c is dead.
func (c *conn) handleRead(n int, err error) (dead bool) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if !c.dead && n > 0 {
		c.updateQuota()
		c.session.Heard(c.in.Bulk())
		if err := c.in.Parse(); err != nil {
			c.fail(err)
		}
		c.dialBulkIfNeeded()
	}
	if !c.dead && err != nil {
		c.fail(err)
	}
	if !c.dead && c.wire.hasPending() { // TLS has written a reply
		c.flush()
	}
	return c.dead
}

// Cut implements na.Cutter.
func (c *conn) Cut(err error) {
	c.ca.core.Lock()
	defer c.ca.core.UnlockInput()
	if !c.dead && c.session != nil {
		c.fail(err)
	}
}

// readOnce performs a single read, into user memory and the receive buffer. The system accesses user memory only during
// this call, which does not block. dry reports whether no more bytes have arrived.
func (c *conn) readOnce() (n int, dry bool, err error) {
	var room [framing.MaxVectors][]byte
	iov := room[:0]
	if c.wire.canBorrow() {
		iov = c.in.Scatter(iov)
	} else {
		iov = append(iov, c.in.Space())
	}
	n, dry, err = c.wire.read(c.clipToQuota(iov))
	failpoint.Read(iov[0][:min(n, len(iov[0]))])
	if err == unix.EFAULT && c.in.Fault() {
		return 0, true, nil // the next read puts the bytes into other memory
	}
	c.in.Got(n)
	if err != nil && err != netconn.ErrEOF {
		err = lostError("connection lost", err)
	}
	return n, dry, err
}

// flush writes the session's frames until there are none left, the socket is full, or the turn is over. The caller must
// hold the context's lock. flush releases the lock during each write.
func (c *conn) flush() {
	if c.writing || c.blocked || c.connecting || c.writeFailed || c.dead {
		return
	}
	c.writing = true
	sent := 0
	for n := 0; (c.wire.hasPending() || c.out.Fill()) && !c.dead; n++ { // pulling frames may close the session
		if n == maxWrites || !c.hasQuota(sent) {
			c.blocked = true
			break
		}
		c.updateQuota()
		k, done, err := c.writeUnlocked()
		sent += k
		if err != nil { // the reader reports the failure, because it may still receive the peer's reason
			c.writeFailed = true
			break
		}
		if c.blocked = !done; c.blocked || c.dead {
			break
		}
	}
	c.writing = false
	if c.dead {
		c.sendLastAndShutdown()
		return
	}
	c.dialBulkIfNeeded()
	if c.blocked != c.watchingWritable && !c.writeFailed {
		c.watchingWritable = c.blocked
		if err := c.ca.poller.Watch(c.fd, c.id, true, c.blocked); err != nil {
			c.fail(lostError("watch the connection", err))
			return
		}
		if c.blocked {
			c.session.Waits()
		}
	}
}

// writeUnlocked calls writeOnce. It releases the context's lock, which the caller must hold, for the duration of the
// call.
func (c *conn) writeUnlocked() (n int, done bool, err error) {
	c.ca.core.Pause()
	defer c.ca.core.Lock()
	return c.writeOnce()
}

// writeOnce performs a single write from out. done is false if the socket is full. The system accesses user memory only
// during this call, which does not block.
func (c *conn) writeOnce() (n int, done bool, err error) {
	var room [framing.MaxVectors][]byte
	n, full, err := c.wire.write(c.clipToQuota(c.out.Gather(room[:0])), c.out.Front())
	if err == unix.EFAULT && c.out.Fault() {
		return 0, true, nil // the socket has room for the zeros that replace the memory
	}
	c.out.Wrote(n)
	return n, !full, err
}

// sendLastAndShutdown shuts down the connection, which wakes the poller. Before that it sends the last frame, unless
// the stream ends within a frame or the system does not accept the frame immediately. The caller must hold the
// context's lock, and no goroutine may be writing.
func (c *conn) sendLastAndShutdown() {
	if len(c.lastFrame) > 0 && !c.connecting && !c.writeFailed && c.out.Last(c.lastFrame) {
		_, _, _ = c.writeOnce()
	}
	c.lastFrame = nil
	if c.fd >= 0 {
		c.wire.closeWrite()
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	if c.ca.released {
		c.close()
	}
}

// close closes the descriptor. The caller must hold the context's lock, and no goroutine may be reading or writing.
func (c *conn) close() {
	if c.closed {
		return
	}
	c.closed = true
	delete(c.ca.conns, c)
	c.in.Close()
	c.out.Close()
	if c.fd < 0 {
		return
	}
	if c.added && !c.ca.released {
		c.ca.poller.Remove(c.fd, c.id)
	}
	_ = unix.Close(c.fd)
}

// setSocketOptions sets the socket options, ignoring those that the system does not support. It leaves the buffer sizes
// to the system.
func (d *domain) setSocketOptions(fd int, peer netip.Addr) {
	set := func(level, name, value int) { _ = unix.SetsockoptInt(fd, level, name, value) } // best effort
	seconds := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
	set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	set(unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	// TCP_RTO_MAX_MS is available since Linux 6.15. On earlier versions, only the option set above has an effect.
	set(unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(maxRetry/time.Millisecond))
	// On loopback no network is shared, and a congestion control that measures the rate (bbr) reduces throughput by a
	// fifth.
	if peer.Unmap().IsLoopback() {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	}
	keep, user := d.opts.keepaliveParams(d.peerTimeout)
	if !keep.Enable {
		return
	}
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(keep.Idle))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(keep.Interval))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keep.Count)
	set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(user/time.Millisecond))
}

// sockaddrOf converts ap to a socket address and its address family.
func sockaddrOf(ap netip.AddrPort) (unix.Sockaddr, int) {
	ip := ap.Addr()
	if ip.Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ip.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ip.As16()}, unix.AF_INET6
}

// Proof implements carrier.Prover.
func (c *conn) Proof() carrier.Proof {
	if tls := c.wire.tls; tls != nil {
		return tls.proof.Who
	}
	return carrier.Proof{}
}

// Remote implements carrier.Locator.
func (c *conn) Remote() string { return c.remote }

var (
	_ carrier.Prover  = (*conn)(nil)
	_ carrier.Locator = (*conn)(nil)
)
