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
	maxReads  = 4  // of one connection for one event, then it is the next one's turn
	maxWrites = 16 // of one connection in a row, then the poller says when to go on

	// maxUnsent bounds the bytes that the system takes before it can send them: a message waits behind no more. A bound
	// of one piece of bulk data costs no throughput on loopback and cuts that wait to less than half.
	maxUnsent = 256 << 10

	// maxRetry bounds the time after which the system sends lost data again, which it doubles otherwise: 3.2 s after the fourth
	// attempt. Then hardly any attempt tells a lossy network, or one that has just healed, from a peer that is gone before a
	// PeerTimeout of 5 s is over. One second is the least that Linux takes.
	maxRetry = time.Second
)

// A conn is a connection of a session. The goroutine that leads reads; one goroutine at a time writes, any:
//
//	flush: lock ─► out.Fill ─► unlock ─► writev ─► lock ─► … until nothing is left, or the socket is full (blocked)
//	                                                        Ready(writable) ─► flush again
//	Cut:   dead ─► farewell (by the writer if there is one) ─► shutdown ─► Poll closes the descriptor
//
// The descriptor stays open until neither a reader nor a writer can use it: the reader closes it, and waits for the
// writer to come out.
type conn struct {
	ca   *polled
	fd   int          // -1 when there is none; set before anybody else knows c
	flow carrier.Lane // of its session; set likewise
	in   *framing.In
	ours bool // the leader's: nobody else uses in any more
	wire wire // set under the lock before anybody reads or writes

	remote string // the address of the peer; set with fd

	// Guarded by the endpoint's lock. out is also used by the writer without it.
	link       carrier.Session
	out        framing.Out
	id         carrier.PollID
	added      bool // to the poller
	connecting bool
	cancel     func()       // ends connect
	rooms      uint64       // how often the socket had room again
	dialled    bool         // by us
	token      token        // of bulk; zero when there is none
	bulk       *conn        // the second connection of the session, once it was tried; nil in itself
	messages   uint64       // of FlowBulk: those of the context, at its last turn
	calm       int          // turns since there was one
	turn       atomic.Int32 // bytes of the next; read without the lock
	writing    bool         // a goroutine writes
	blocked    bool         // until the poller says that there is room
	watched    bool         // the poller was told to say so
	mute       bool         // writing has failed; the reader hears why
	dead       bool         // cut
	closed     bool
	last       []byte
	err        error // of a dial that failed at once
}

// newConn makes a connection; l is nil when it is not known yet. Locked.
func (ca *polled) newConn(in *framing.In, l carrier.Session, f carrier.Lane) *conn {
	c := &conn{ca: ca, fd: -1, flow: f, in: in}
	c.in.Lane, c.out.Lane = f, f
	c.in.Buffers, c.out.Buffers = &ca.buffers, &ca.buffers
	c.bind(l)
	ca.conns[c] = struct{}{}
	return c
}

func (c *conn) bind(l carrier.Session) { c.link, c.in.Session, c.out.Session = l, l, l }

// dial begins to connect. Locked; it does not wait.
func (c *conn) dial(name string) error {
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
	c.ca.d.setOptions(c.fd, ap.Addr())
	switch err = unix.Connect(c.fd, sa); err {
	case nil, unix.EINPROGRESS, unix.EINTR:
		return c.watchFirst()
	case unix.EAGAIN:
		return unix.EADDRNOTAVAIL // every port of this machine is in use
	}
	return err
}

// connect connects where that may wait: TLS has a handshake, Options.Control is code of the program, and the zone of an address is the name of an interface, which the system is
// asked for. A connection that is cut meanwhile ends it.
func (c *conn) connect(ctx context.Context, name, host string) {
	defer c.cancel()
	s, err := c.ca.d.connect(ctx, name, host)
	c.ca.e.Lock()
	if !c.dead {
		c.connecting = false
		if err == nil {
			if err = c.hold(s); err != nil { // of this process: dialing again would end the same way
				err = unreachable("keep the connection", err)
			} else {
				err = c.checkPeer()
			}
		}
		if err != nil {
			c.fail(err)
		} else {
			c.start(s)
			c.flush()
		}
	}
	c.ca.e.Unlock()
	if s != nil {
		_ = s.tcp.Close()
	}
}

// hold gives c a descriptor of its own on the connection of s, which goes on without s. Locked.
func (c *conn) hold(s *socket) error {
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

// start has the poller watch a connection that was made elsewhere. Locked.
func (c *conn) start(s *socket) {
	c.ca.d.setOptions(c.fd, ipOf(s.tcp.RemoteAddr()))
	if tls := c.wire.tls; tls != nil {
		tls.begin()
		c.blocked = true // until the leader has looked at what TLS holds
	}
	if err := c.watchFirst(); err != nil {
		c.fail(lost("watch the connection", err))
	}
}

// watchFirst adds the descriptor to the poller. Locked.
func (c *conn) watchFirst() (err error) {
	var to carrier.Pollable = c
	if c.flow == carrier.Bulk {
		to = (*bulkFD)(c)
	}
	if c.id, err = c.ca.poller.Add(c.fd, to); err != nil {
		return err
	}
	c.added = true
	if c.connecting || c.blocked {
		c.watched = true
		return c.ca.poller.Watch(c.fd, c.id, true, true)
	}
	return nil
}

// Ready implements carrier.Pollable.
func (c *conn) Ready(readable, writable bool) {
	if writable && !c.onWritable() {
		return
	}
	if readable || c.wire.holds() {
		c.read()
	}
}

// onWritable is called when the connection is made, and when the socket has room again. It reports false when the connection is dead.
func (c *conn) onWritable() bool {
	c.ca.e.Lock()
	defer c.ca.e.UnlockInput()
	switch {
	case c.dead:
		return false
	case c.connecting:
		if err := c.connected(); err != nil {
			c.fail(unreachable("connect", err))
			return false
		}
		c.connecting = false
	}
	c.blocked = false
	c.rooms++
	c.flush()
	return true
}

// connected tells how the attempt to connect ended.
func (c *conn) connected() error {
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
func (c *conn) Peek() bool { return c.read() }

// fail ends what c is there for. Locked.
func (c *conn) fail(err error) {
	if c.flow == carrier.Messages {
		c.link.Fail(err)
		return
	}
	c.link.LaneDown(err)
	c.cut(nil) // unless the end of the session has
}

// read takes in what has arrived, some of it, and reports whether anything had.
func (c *conn) read() (came bool) {
	if !c.ours { // the goroutine that has read the HELLO may still be looking at what came behind it
		c.ca.e.Lock()
		c.ours = true
		c.ca.e.Unlock()
	}
	defer c.in.Idle()
	reads, got := maxReads, 0
	for i := 0; i < reads && c.goesOn(got) || c.wire.holds(); i++ {
		n, dry, err := c.readOnce()
		got += n
		if n == 0 && err == nil {
			break // the poller will say when there is more
		}
		came = true
		if c.handle(n, err) || dry {
			break
		}
	}
	return came
}

// handle deals with n bytes that have been read, and with the error of the read. It reports whether c is dead.
func (c *conn) handle(n int, err error) (dead bool) {
	c.ca.e.Lock()
	defer c.ca.e.UnlockInput()
	if !c.dead && n > 0 {
		c.pace()
		c.link.Heard(c.in.Bulk())
		if err := c.in.Parse(); err != nil {
			c.fail(err)
		}
		c.large()
	}
	if !c.dead && err != nil {
		c.fail(err)
	}
	if !c.dead && c.wire.pending() { // TLS has answered something
		c.flush()
	}
	return c.dead
}

// Cut implements na.Cutter.
func (c *conn) Cut(err error) {
	c.ca.e.Lock()
	defer c.ca.e.UnlockInput()
	if !c.dead && c.link != nil {
		c.fail(err)
	}
}

// readOnce reads into user memory and the buffer. Memory of an operation is lent to the system for this one call.
func (c *conn) readOnce() (n int, dry bool, err error) {
	var room [framing.MaxVectors][]byte
	iov := room[:0]
	if c.wire.lends() {
		iov = c.in.Scatter(iov)
	} else {
		iov = append(iov, c.in.Space())
	}
	n, dry, err = c.wire.read(c.clip(iov))
	failpoint.Read(iov[0][:min(n, len(iov[0]))])
	if err == unix.EFAULT && c.in.Fault() {
		return 0, true, nil // the bytes are still there, to be read into other memory
	}
	c.in.Got(n)
	if err != nil && err != netconn.ErrEOF {
		err = lost("connection lost", err)
	}
	return n, dry, err
}

// flush writes what the session has, until there is nothing more or the socket is full, or until the caller has written
// enough for others. Locked at its beginning and its end, not while it writes.
func (c *conn) flush() {
	if c.writing || c.blocked || c.connecting || c.mute || c.dead {
		return
	}
	c.writing = true
	sent := 0
	for n := 0; (c.wire.pending() || c.out.Fill()) && !c.dead; n++ { // pulling frames may end the session
		if n == maxWrites || !c.goesOn(sent) {
			c.blocked = true
			break
		}
		c.pace()
		k, done, err := c.writeUnlocked()
		sent += k
		if err != nil { // what the peer sent last may wait to be read
			c.mute = true
			break
		}
		if c.blocked = !done; c.blocked || c.dead {
			break
		}
	}
	c.writing = false
	if c.dead {
		c.farewell()
		return
	}
	c.large()
	if c.blocked != c.watched && !c.mute {
		c.watched = c.blocked
		if err := c.ca.poller.Watch(c.fd, c.id, true, c.blocked); err != nil {
			c.fail(lost("watch the connection", err))
			return
		}
		if c.blocked {
			c.link.Waits()
		}
	}
}

// writeUnlocked is write without the lock. Locked at its beginning and its end.
func (c *conn) writeUnlocked() (n int, done bool, err error) {
	c.ca.e.Pause()
	defer c.ca.e.Lock()
	return c.write()
}

// write writes once what out has, and reports whether the socket may take more. Memory of an operation is lent to the
// system for this one call.
func (c *conn) write() (n int, done bool, err error) {
	var room [framing.MaxVectors][]byte
	n, full, err := c.wire.write(c.clip(c.out.Gather(room[:0])), c.out.Front())
	if err == unix.EFAULT && c.out.Fault() {
		return 0, true, nil // there is room, for the zeroes that follow
	}
	c.out.Wrote(n)
	return n, !full, err
}

// farewell sends the last frame, if the stream stands between two frames and the system takes it at once, and ends the
// connection, which wakes whoever polls. Locked; nobody writes.
func (c *conn) farewell() {
	if len(c.last) > 0 && !c.connecting && !c.mute && c.out.Last(c.last) {
		_, _, _ = c.write()
	}
	c.last = nil
	if c.fd >= 0 {
		c.wire.end()
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	if c.ca.released {
		c.close()
	}
}

// close closes the descriptor. Locked; nobody reads or writes, now or later.
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

// setOptions sets what the options ask for. The buffers are left to the system, which sizes them as it sees fit.
func (d *domain) setOptions(fd int, peer netip.Addr) {
	set := func(level, name, value int) { _ = unix.SetsockoptInt(fd, level, name, value) } // best effort
	seconds := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
	set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	set(unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	set(unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(maxRetry/time.Millisecond)) // since Linux 6.15; before that the line above has to do
	// Within the machine there is no network to be fair to, and what paces itself by measuring one (bbr) moves a fifth less.
	if peer.Unmap().IsLoopback() {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	}
	keep, user := d.opts.probes(d.peerTimeout)
	if !keep.Enable {
		return
	}
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(keep.Idle))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(keep.Interval))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keep.Count)
	set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(user/time.Millisecond))
}

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
