package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// closeTimeout is the maximum time spent on writing the last bytes of a connection.
const closeTimeout = 100 * time.Millisecond

// A socket is a TCP connection, with or without TLS. Deadlines apply to the underlying TCP connection.
type socket struct {
	io.ReadWriter // the TCP connection, tls, or a plainReader
	tcp           *net.TCPConn
	tls           *tlsConn // nil without TLS
}

var (
	_ net.Conn       = (*socket)(nil)
	_ carrier.Prover = (*socket)(nil)
)

// Close closes the connection. With TLS it first sends close_notify, for which it waits up to closeTimeout.
func (s *socket) Close() error {
	if s.tls != nil {
		_ = s.tcp.SetWriteDeadline(time.Now().Add(closeTimeout))
		_ = s.tls.CloseWrite()
	}
	return s.tcp.Close()
}

// CloseWrite shuts down the writing side of the connection. With TLS it sends close_notify first.
func (s *socket) CloseWrite() error {
	if s.tls != nil {
		_ = s.tls.CloseWrite()
	}
	return s.tcp.CloseWrite()
}

// NetConn returns the TCP connection underlying s.
func (s *socket) NetConn() net.Conn { return s.tcp }

// LocalAddr implements net.Conn.
func (s *socket) LocalAddr() net.Addr { return s.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (s *socket) RemoteAddr() net.Addr { return s.tcp.RemoteAddr() }

// SetDeadline implements net.Conn.
func (s *socket) SetDeadline(t time.Time) error { return s.tcp.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (s *socket) SetReadDeadline(t time.Time) error { return s.tcp.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (s *socket) SetWriteDeadline(t time.Time) error { return s.tcp.SetWriteDeadline(t) }

// Proof implements carrier.Prover.
func (s *socket) Proof() carrier.Proof {
	if s.tls == nil {
		return carrier.Proof{}
	}
	return s.tls.proof.Who
}

// connect dials name and, if TLS is enabled, performs the handshake. The peer's certificate must then be valid for host
// or, if host is empty, for the IP address in name.
func (d *domain) connect(ctx context.Context, name, host string) (*socket, error) {
	ap, err := inet.Parse(scheme, name)
	var nc net.Conn
	if err == nil {
		dialer := net.Dialer{KeepAlive: -1, Control: d.opts.Control}
		nc, err = dialer.DialContext(ctx, "tcp", ap.String())
	}
	if err != nil {
		return nil, codes.WithText(codes.ErrUnreachable, secure.Innermost(err))
	}
	s := &socket{ReadWriter: nc, tcp: nc.(*net.TCPConn)}
	d.setConnOptions(s.tcp)
	if d.security == nil {
		return s, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	s.tls, err = d.security.dial(s.tcp, name, host)
	stop()
	if err != nil {
		_ = nc.Close()
		return nil, tlsError(err)
	}
	_ = nc.SetDeadline(time.Time{})
	s.ReadWriter = s.tls
	return s, nil
}

// setConnOptions sets the socket options of a connection that is read and written through package net.
func (d *domain) setConnOptions(nc *net.TCPConn) {
	keep, _ := d.opts.keepaliveParams(d.peerTimeout)
	_ = nc.SetNoDelay(true)
	_ = nc.SetKeepAliveConfig(keep)
}

// ipOf returns the IP address of a, or the zero Addr if a has none.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
