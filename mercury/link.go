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

// A pendingDial is a dial in progress. Several calls may wait for it.
type pendingDial struct {
	ctx    context.Context // also canceled when a connection from the peer replaces the dial
	cancel context.CancelFunc
	done   chan struct{} // closed once there is a connection or an error
	err    error         // valid once done is closed
}

// connTo returns the connection to addr. If there is none, it dials and waits for the connection.
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
		return n.connToSelf()
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
	l := n.pendingDials[a]
	if l == nil {
		if len(n.conns)+n.setups >= n.cfg.MaxPeers {
			n.mu.Unlock()
			return nil, errorf(ErrAgain, "limit of %d connections reached (Config.MaxPeers)", n.cfg.MaxPeers)
		}
		n.setups++
		l = &pendingDial{done: make(chan struct{})}
		l.ctx, l.cancel = context.WithTimeout(context.Background(), n.cfg.SetupTimeout)
		n.pendingDials[a] = l
		go n.dial(l, a)
	}
	n.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, contextError(ctx, "no connection yet")
	}
	if l.err != nil {
		return nil, l.err
	}
	return n.connTo(ctx, addrText(a))
}

// dial connects to a and completes l, unless a connection accepted from the peer has already completed it.
func (n *Node) dial(l *pendingDial, a netip.AddrPort) {
	err := error(errNack)
	for pause := 5 * time.Millisecond; err == errNack; pause = min(2*pause, 200*time.Millisecond) {
		if err = n.dialOnce(l, a); err != errNack {
			break
		}
		// The peer already has a connection with this node. Either it has dialed one, which will arrive here soon, or
		// it has not yet noticed that an old one was closed.
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			err = errorf(ErrUnreachable, "%v: peer refused a second connection from this port", ErrUnreachable)
		}
	}
	l.cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setups--
	if n.pendingDials[a] != l { // admit has replaced the dial and closed done
		return
	}
	delete(n.pendingDials, a)
	l.err = err
	close(l.done)
}

var (
	errNack    = errorf(ErrExists, "peer has another connection to this node")
	errSwapped = errorf(ErrUnsupported, "byte order of the peer is not supported")
)

// dialOnce makes one attempt to connect to a. It returns errNack if the peer refuses a second connection or if l is
// canceled.
func (n *Node) dialOnce(l *pendingDial, a netip.AddrPort) error {
	d := net.Dialer{}
	if own := n.self.Addr(); !own.IsUnspecified() && own.IsLoopback() == a.Addr().IsLoopback() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0)) // the peer uses it as the address of this node
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
		err = errorf(ErrUnreachable, "%v: set-up failed: %v", ErrUnreachable, err)
	case s.Kind == xnet.Refuse:
		err = errNack
	case s.Kind != xnet.Accept || s.Version != 0:
		err = errorf(ErrProtocol, "unexpected set-up response of kind %d, version %d", s.Kind, s.Version)
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
	c := n.newConn(nc, a, n.nameOnConn(nc), s)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.pendingDials[a] != l {
		nc.Close()
		return ErrClosed
	}
	n.conns[c.addr] = c
	c.start()
	return nil
}

// nameOnConn returns the address of this node as seen by the peer of nc: the local IP address of nc and the node's
// port.
func (n *Node) nameOnConn(nc net.Conn) netip.AddrPort {
	if a, ok := nc.LocalAddr().(*net.TCPAddr); ok {
		return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), n.self.Port())
	}
	return n.self
}

// readSetup reads the peer's set-up message. The error has the code ErrUnsupported for another known protocol and
// ErrProtocol for an invalid message. Other errors are those of nc.
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
	callFailpoint(b[:size])
	s, err := xnet.ParseSetup(b[:size])
	switch {
	case errors.Is(err, xnet.ErrRXM):
		err = errorf(ErrUnsupported, "%v", err)
	case err != nil:
		err = errorf(ErrProtocol, "%v", err)
	}
	return s, err
}

// acceptLoop accepts connections until the listener is closed.
func (n *Node) acceptLoop() {
	for {
		nc, err := n.ln.Accept()
		if isClosed(err) {
			return
		}
		if err != nil { // for example, out of file descriptors
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
		go n.setUpAccepted(nc)
	}
}

// setUpAccepted sets up an accepted connection. It closes the connection if that fails.
func (n *Node) setUpAccepted(nc net.Conn) {
	c := n.admit(nc)
	n.mu.Lock()
	n.setups--
	n.mu.Unlock()
	if c == nil {
		nc.Close()
	}
}

// admit exchanges set-up messages on an accepted connection. It returns the conn, or nil if the connection is refused.
// If both sides dial each other, the connection dialed by the side with the higher address is kept.
func (n *Node) admit(nc net.Conn) *conn {
	_ = nc.SetDeadline(time.Now().Add(n.cfg.SetupTimeout))
	s, err := n.readSetup(nc)
	remote, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok || n.refuseSetup(nc, remote.AddrPort(), s, err) {
		return nil
	}
	name := netip.AddrPortFrom(remote.AddrPort().Addr().Unmap(), s.Port)
	self := n.nameOnConn(nc)
	c := n.newConn(nc, name, self, s)
	c.firstTag += tagCount
	refusal := (&xnet.Setup{Kind: xnet.Refuse, Port: s.Port, PID: n.pid}).Append(nil)

	n.mu.Lock()
	l, old := n.pendingDials[name], n.conns[c.addr]
	nack := old != nil && old.pid == s.PID || name == self || old == nil && l != nil && name.Compare(self) < 0
	if n.closed || nack {
		n.mu.Unlock()
		_, _ = nc.Write(refusal)
		return nil
	}
	// Version 0, which lacks libfabric's rendezvous protocol, is supported by every release of libfabric.
	answer := xnet.Setup{Kind: xnet.Accept, Port: s.Port, PID: n.pid}
	if _, err = nc.Write(answer.Append(nil)); err != nil || nc.SetDeadline(time.Time{}) != nil {
		n.mu.Unlock()
		return nil
	}
	n.conns[c.addr] = c
	if l != nil { // this connection replaces the one that this node is dialing
		delete(n.pendingDials, name)
		l.cancel()
		close(l.done)
	}
	c.start()
	n.mu.Unlock()
	if old != nil {
		old.fail(errorf(ErrPeerLost, "%v: replaced by a connection of the restarted peer", ErrPeerLost))
	}
	return c
}

// refuseSetup reports whether the connection nc must be refused. s is the peer's first set-up message, and err is the
// error from reading it. refuseSetup logs the reason if it concerns the protocol. To a peer that uses ofi_rxm, it sends
// a refusal in that protocol.
func (n *Node) refuseSetup(nc net.Conn, peer netip.AddrPort, s xnet.Setup, err error) bool {
	switch {
	case err == nil && s.Kind != xnet.Request:
		err = errorf(ErrProtocol, "unexpected set-up message of kind %d", s.Kind)
	case err == nil && s.Swapped:
		err = errSwapped
	case err == nil:
		return false
	case CodeOf(err) == ErrUnsupported:
		_, _ = nc.Write(xnet.AppendRXMRefusal(nil))
	case CodeOf(err) != ErrProtocol: // the message did not arrive
		return true
	}
	n.logRefusal(peer, err)
	return true
}

// removeConn removes the closed connection c from n, so that the next call to its peer dials a new one.
func (n *Node) removeConn(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[c.addr] == c {
		delete(n.conns, c.addr)
	}
	if n.selfConn == c || n.selfPeer == c {
		n.selfConn, n.selfPeer = nil, nil
	}
}

// connToSelf returns the node's connection to itself, establishing it if necessary.
func (n *Node) connToSelf() (*conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	if n.selfConn == nil {
		a, b := net.Pipe()
		s := xnet.Setup{PID: n.pid}
		n.selfConn, n.selfPeer = n.newConn(a, n.self, n.self, s), n.newConn(b, n.self, n.self, s)
		n.selfConn.start()
		n.selfPeer.start()
	}
	return n.selfConn, nil
}
