package mercury

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// A link is the way to a peer while it is being dialled.
type link struct {
	ctx    context.Context // of the dial: ends when another connection of the pair takes its place
	cancel context.CancelFunc
	done   chan struct{} // closed when there is a connection or an error
	err    error
}

// connTo returns the connection to addr. It makes one if there is none.
func (n *Node) connTo(ctx context.Context, addr string) (*conn, error) {
	n.mu.RLock()
	c := n.conns[addr]
	n.mu.RUnlock()
	if c != nil {
		return c, nil
	}
	a, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	if a == n.self {
		return n.toSelf()
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, ErrClosed
	}
	if c = n.conns[addrText(a)]; c != nil {
		n.mu.Unlock()
		return c, nil
	}
	l := n.links[a]
	if l == nil {
		if len(n.conns)+n.setups >= n.cfg.MaxPeers {
			n.mu.Unlock()
			return nil, errorf(ErrAgain, "there are %d connections: Config.MaxPeers", n.cfg.MaxPeers)
		}
		n.setups++
		l = &link{done: make(chan struct{})}
		l.ctx, l.cancel = context.WithTimeout(context.Background(), n.cfg.SetupTimeout)
		n.links[a] = l
		go n.dial(l, a)
	}
	n.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, ended(ctx, "no connection yet")
	}
	if l.err != nil {
		return nil, l.err
	}
	return n.connTo(ctx, addrText(a))
}

// dial makes a connection, or fails, or gives way to one that the peer has made.
func (n *Node) dial(l *link, a netip.AddrPort) {
	err := error(errNack)
	for pause := 5 * time.Millisecond; err == errNack; pause = min(2*pause, 200*time.Millisecond) {
		if err = n.dialOnce(l, a); err != errNack {
			break
		}
		// The peer has a connection of the pair: one that it has begun, which arrives here soon, or an old one whose end it has not
		// noticed yet.
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			err = errorf(ErrUnreachable, "%v: the peer refuses a second connection of this port", ErrUnreachable)
		}
	}
	l.cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setups--
	if n.links[a] != l { // taken by accept, which told of it
		return
	}
	delete(n.links, a)
	l.err = err
	close(l.done)
}

var (
	errNack    = errorf(ErrExists, "there is another connection of the pair")
	errSwapped = errorf(ErrUnsupported, "the peer has another byte order")
)

func (n *Node) dialOnce(l *link, a netip.AddrPort) error {
	d := net.Dialer{}
	if own := n.self.Addr(); !own.IsUnspecified() && own.IsLoopback() == a.Addr().IsLoopback() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0)) // the peer names us by it
	}
	nc, err := d.DialContext(l.ctx, "tcp4", a.String())
	if err != nil {
		return errorf(ErrUnreachable, "%v: %v", ErrUnreachable, err)
	}
	stop := context.AfterFunc(l.ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := xnet.Setup{Kind: xnet.Request, Port: n.self.Port(), PID: n.pid}
	if _, err = nc.Write(s.Append(nil)); err == nil {
		s, err = n.readSetup(nc)
	}
	switch {
	case CodeOf(err) == ErrUnsupported:
	case err != nil:
		err = errorf(ErrUnreachable, "%v: no set-up: %v", ErrUnreachable, err)
	case s.Kind == xnet.Refuse:
		err = errNack
	case s.Kind != xnet.Accept || s.Version != 0:
		err = errorf(ErrProtocol, "the peer answers the set-up with kind %d, version %d", s.Kind, s.Version)
	case s.Swapped:
		err = errSwapped
	}
	if err != nil || !stop() {
		nc.Close()
		if err == nil {
			err = errNack
		}
		return err
	}
	c := n.newConn(nc, a, n.nameFor(nc), s)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.links[a] != l {
		nc.Close()
		return ErrClosed
	}
	n.conns[c.addr] = c
	c.begin()
	return nil
}

// nameFor returns the address that the other end of nc calls us by: the one it sees, and the port that we tell it.
func (n *Node) nameFor(nc net.Conn) netip.AddrPort {
	if a, ok := nc.LocalAddr().(*net.TCPAddr); ok {
		return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), n.self.Port())
	}
	return n.self
}

// readSetup reads the peer's set-up message. The error carries ErrUnsupported for one of another protocol that is known, ErrProtocol for one that
// makes no sense, and otherwise that of nc.
func (n *Node) readSetup(nc net.Conn) (_ xnet.Setup, err error) {
	defer n.rescueSetup(nc, &err)
	b := make([]byte, xnet.MaxSetup)
	if _, err := io.ReadFull(nc, b[:4]); err != nil {
		return xnet.Setup{}, err
	}
	size, err := xnet.SetupLen(b)
	if err != nil {
		return xnet.Setup{}, errorf(ErrProtocol, "%v", err)
	}
	if _, err := io.ReadFull(nc, b[4:size]); err != nil {
		return xnet.Setup{}, err
	}
	read(b[:size])
	s, err := xnet.ParseSetup(b[:size])
	switch {
	case errors.Is(err, xnet.ErrRXM):
		err = errorf(ErrUnsupported, "%v", err)
	case err != nil:
		err = errorf(ErrProtocol, "%v", err)
	}
	return s, err
}

// accept takes connections until the listener is closed.
func (n *Node) accept() {
	for {
		nc, err := n.ln.Accept()
		if isClosed(err) {
			return
		}
		if err != nil { // no descriptors, for example: there may be some soon
			time.Sleep(5 * time.Millisecond)
			continue
		}
		n.mu.Lock()
		room := !n.closed && len(n.conns)+n.setups < n.cfg.MaxPeers
		if room {
			n.setups++
		}
		n.mu.Unlock()
		if !room {
			nc.Close()
			continue
		}
		go n.greet(nc)
	}
}

// greet sets up a connection that a peer has made.
func (n *Node) greet(nc net.Conn) {
	c := n.admit(nc)
	n.mu.Lock()
	n.setups--
	n.mu.Unlock()
	if c == nil {
		nc.Close()
	}
}

func (n *Node) admit(nc net.Conn) *conn {
	_ = nc.SetDeadline(time.Now().Add(n.cfg.SetupTimeout))
	s, err := n.readSetup(nc)
	remote, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok || n.refuse(nc, remote.AddrPort(), s, err) {
		return nil
	}
	name := netip.AddrPortFrom(remote.AddrPort().Addr().Unmap(), s.Port)
	self := n.nameFor(nc)
	c := n.newConn(nc, name, self, s)
	c.firstTag += tagCount
	refusal := (&xnet.Setup{Kind: xnet.Refuse, Port: s.Port, PID: n.pid}).Append(nil)

	n.mu.Lock()
	l, old := n.links[name], n.conns[c.addr]
	nack := old != nil && old.pid == s.PID || name == self || old == nil && l != nil && name.Compare(self) < 0
	if n.closed || nack {
		n.mu.Unlock()
		_, _ = nc.Write(refusal)
		return nil
	}
	// We speak version 0, without rendezvous, which every release of libfabric understands.
	answer := xnet.Setup{Kind: xnet.Accept, Port: s.Port, PID: n.pid}
	if _, err = nc.Write(answer.Append(nil)); err != nil || nc.SetDeadline(time.Time{}) != nil {
		n.mu.Unlock()
		return nil
	}
	n.conns[c.addr] = c
	if l != nil { // our own dial of the pair gives way
		delete(n.links, name)
		l.cancel()
		close(l.done)
	}
	c.begin()
	n.mu.Unlock()
	if old != nil {
		old.fail(errorf(ErrPeerLost, "%v: it was started again, and has another connection", ErrPeerLost))
	}
	return c
}

// refuse reports whether the set-up message that a peer begins with makes no connection. What it says of the peer's protocol is logged, and
// a peer that waits for words of its own protocol gets them.
func (n *Node) refuse(nc net.Conn, peer netip.AddrPort, s xnet.Setup, err error) bool {
	switch {
	case err == nil && s.Kind != xnet.Request:
		err = errorf(ErrProtocol, "it begins with a set-up message of kind %d", s.Kind)
	case err == nil && s.Swapped:
		err = errSwapped
	case err == nil:
		return false
	case CodeOf(err) == ErrUnsupported:
		_, _ = nc.Write(xnet.AppendRXMRefusal(nil))
	case CodeOf(err) != ErrProtocol: // nothing came
		return true
	}
	n.refused(peer, err)
	return true
}

// forget takes a connection that has ended out of the tables.
func (n *Node) forget(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[c.addr] == c {
		delete(n.conns, c.addr)
	}
	if n.own == c || n.ownPeer == c {
		n.own, n.ownPeer = nil, nil
	}
}

// toSelf returns a connection of the process with itself.
func (n *Node) toSelf() (*conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	if n.own == nil {
		a, b := net.Pipe()
		s := xnet.Setup{PID: n.pid}
		n.own, n.ownPeer = n.newConn(a, n.self, n.self, s), n.newConn(b, n.self, n.self, s)
		n.own.begin()
		n.ownPeer.begin()
	}
	return n.own, nil
}
