package tcp

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// maxAccepts bounds the connections that are accepted for one event.
const maxAccepts = 64

// A listenFD is a listening socket. One carrier at a time has it: the goroutine that leads that context accepts.
type listenFD struct {
	fd int

	mu     sync.Mutex // guards the fields below; the last lock
	turn   *listening // nil when nobody accepts
	users  int        // goroutines that accept now
	closed bool
}

// listening is the time of one carrier as the one that accepts: what its poller knows.
type listening struct {
	l  *listenFD
	ca *polled
	id na.PollID
}

// newListenFD takes the socket of l out of the hands of package net.
func newListenFD(l *net.TCPListener) (*listenFD, error) {
	defer func() { _ = l.Close() }()
	fd := -1
	raw, err := l.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(theirs uintptr) { fd, failed = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0) })
		if err == nil {
			err = failed
		}
	}
	if err != nil {
		return nil, na.WithText(na.ErrIO, "listening socket: "+err.Error())
	}
	return &listenFD{fd: fd}, nil
}

// accept takes over the first listening socket.
func (p *polledDomain) accept(_ *domain, l *net.TCPListener) (err error) {
	p.main, err = newListenFD(l)
	return err
}

// close closes the listening socket if no context ever did.
func (p *polledDomain) close() {
	if p.main != nil {
		p.main.close()
	}
}

// free tells whether the socket waits for its first carrier.
func (l *listenFD) free() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn == nil && !l.closed
}

// give makes ca the one that accepts. Called with polledDomain.mu held and both carriers' pollers open.
func (l *listenFD) give(ca *polled) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return na.ErrClosed
	}
	if old := l.turn; old != nil {
		old.ca.poller.Remove(l.fd, old.id)
		old.ca.own = nil
		l.turn = nil
	}
	t := &listening{l: l, ca: ca}
	id, err := ca.poller.Add(l.fd, t)
	if err != nil {
		return na.WithText(na.ErrIO, "watch the listening socket: "+err.Error())
	}
	t.id = id
	l.turn, ca.own = t, t
	return nil
}

// close ends the accepting; the descriptor goes with its last user. Called with the owner's poller open.
func (l *listenFD) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.turn != nil {
		l.turn.ca.poller.Remove(l.fd, l.turn.id)
		l.turn = nil
	}
	if l.users == 0 {
		_ = unix.Close(l.fd)
	}
}

// enter keeps the descriptor open until leave, and reports false when it is not t's turn any more.
func (t *listening) enter() bool {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if t.l.turn != t {
		return false
	}
	t.l.users++
	return true
}

func (t *listening) leave() {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if t.l.users--; t.l.users == 0 && t.l.closed {
		_ = unix.Close(t.l.fd)
	}
}

// watch says whether new connections are of interest.
func (t *listening) watch(on bool) {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if t.l.turn == t {
		_ = t.ca.poller.Watch(t.l.fd, t.id, on, false)
	}
}

// Ready implements na.Pollable: it accepts.
func (t *listening) Ready(_, _ bool) {
	if !t.enter() {
		return
	}
	defer t.leave()
	for range maxAccepts {
		fd, sa, err := unix.Accept4(t.l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			t.ca.newInbound(fd, addrPortOf(sa).Addr())
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EINVAL, unix.EBADF:
			// Nothing can be accepted now, and the poller would tell so without end.
			t.watch(false)
			t.ca.paused, t.ca.resume = t, t.ca.d.now()+acceptPause
			return
		default: // the connection broke before it was accepted
		}
	}
}

// An inbound is a connection that came in and has not said HELLO. It belongs to the goroutine that leads.
type inbound struct {
	ca     *polled
	fd     int
	id     na.PollID
	remote netip.Addr
	hello  hello
	due    time.Duration

	// With TLS, from its goroutine to the leader.
	tls    *sealed
	g      frame.Greeting
	speaks bool // for the address that it says it listens at
	err    error

	// With TLS, of the leader.
	late bool // it has taken too long, and its goroutine has not come back
	gone bool
}

// newInbound takes in a connection, within the limit.
func (ca *polled) newInbound(fd int, remote netip.Addr) {
	if len(ca.half) >= ca.d.opts.MaxHalfOpen {
		_ = unix.Close(fd)
		return
	}
	p := &inbound{ca: ca, fd: fd, remote: remote, due: ca.d.now() + ca.d.opts.HandshakeTimeout}
	if err := p.begin(); err != nil {
		_ = unix.Close(fd)
		return
	}
	ca.half[p] = struct{}{}
	if ca.expire == 0 {
		ca.expire = p.due
	}
}

// begin has somebody read: the leader, or a goroutine that does the handshake of TLS.
func (p *inbound) begin() (err error) {
	if p.ca.d.sec == nil {
		p.id, err = p.ca.poller.Add(p.fd, p)
		return err
	}
	f, err := duplicate(p.fd)
	if err == nil {
		go p.shake(f)
	}
	return err
}

// expireHalf ends what has taken too long to say HELLO. What has come is read first: it may be this process that was frozen.
func (ca *polled) expireHalf(now time.Duration) {
	ca.expire = 0
	for p := range ca.half {
		switch {
		case p.late:
		case now >= p.due:
			if p.ca.d.sec == nil {
				p.Ready(true, false)
			}
			if !p.gone {
				p.end()
			}
		case ca.expire == 0 || p.due < ca.expire:
			ca.expire = p.due
		}
	}
}

// end drops p. With TLS that waits for the goroutine, which a function of the user's may keep: it counts until then.
func (p *inbound) end() {
	if p.ca.d.sec == nil {
		p.drop()
		return
	}
	p.late = true
	_ = unix.Shutdown(p.fd, unix.SHUT_RDWR)
}

// Ready implements na.Pollable.
func (p *inbound) Ready(_, _ bool) {
	for {
		n, err := unix.Read(p.fd, p.hello.space())
		switch {
		case err == unix.EAGAIN:
			return
		case err == unix.EINTR:
			continue
		case err != nil || n == 0:
			p.drop()
			return
		}
		g, done, err := p.hello.got(n)
		if err != nil {
			p.refuse(err)
			return
		}
		if done {
			p.admit(g)
			return
		}
	}
}

// forget takes p out of this context, its descriptor stays open.
func (p *inbound) forget() {
	if p.ca.d.sec == nil {
		p.ca.poller.Remove(p.fd, p.id)
	}
	p.gone = true
	delete(p.ca.half, p)
}

func (p *inbound) drop() {
	p.forget()
	if p.ca.d.sec != nil { // the handshake reads a duplicate
		_ = unix.Shutdown(p.fd, unix.SHUT_RDWR)
	}
	_ = unix.Close(p.fd)
}

// refuse tells the peer why, if that can be done without waiting, and drops it.
func (p *inbound) refuse(err error) {
	p.say(engine.Goaway(err))
	p.drop()
}

// say sends the last frame, as far as that goes at once.
func (p *inbound) say(b []byte) {
	if p.tls == nil {
		_, _ = unix.Write(p.fd, b)
		return
	}
	_, _ = p.tls.Write(b)
	p.tls.end()
}

// admit hands the connection over to the context that its HELLO names. One that the peer has given up meanwhile is nobody's: the
// session that it has made since must not go for it.
func (p *inbound) admit(g frame.Greeting) {
	if ended(p.fd) {
		p.drop()
		return
	}
	to := p.ca.d.polledCarrier(int(g.Target))
	if to == nil {
		p.refuse(noContext(g))
		return
	}
	same := verified(g.Listen, localIP(p.fd), p.remote) && (p.tls == nil || p.speaks)
	p.forget()
	to.e.Lock()
	c := to.newConn(p.fd, nil, g.HasLane())
	c.tls = p.tls
	l, err := to.e.Admit(c, g, same)
	if err == nil {
		c.bind(l)
		to.d.setOptions(p.fd, p.remote)
		if err := c.watchFirst(); err != nil {
			c.fail(lost("watch the connection", err))
		}
		if c.tls != nil {
			c.again()
		}
		to.e.Unlock()
		to.e.Flush()
		return
	}
	delete(to.conns, c)
	to.e.Unlock()
	p.say(engine.Goaway(err))
	_ = unix.Close(p.fd)
	to.e.Flush() // the engine may have a word for the session that stays
}

// ended tells whether the peer has ended a connection, whatever waits to be read.
func ended(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p[:], 0)
	return n > 0
}

// localIP returns our side of a connection, or the zero Addr.
func localIP(fd int) netip.Addr {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}
	}
	return addrPortOf(sa).Addr()
}

func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
