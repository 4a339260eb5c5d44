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

// lastGrace is how long the last bytes of a connection may take to be written.
const lastGrace = 100 * time.Millisecond

// A socket is a connection whose reads and writes wait, with TLS or without. Deadlines are those of the connection.
type socket struct {
	io.ReadWriter // tcp, or tls
	tcp           *net.TCPConn
	tls           *tlsConn // nil without
}

var (
	_ net.Conn       = (*socket)(nil)
	_ carrier.Prover = (*socket)(nil)
)

// Close says close_notify, as far as that goes within lastGrace, and closes the connection.
func (s *socket) Close() error {
	if s.tls != nil {
		_ = s.tcp.SetWriteDeadline(time.Now().Add(lastGrace))
		_ = s.tls.CloseWrite()
	}
	return s.tcp.Close()
}

// CloseWrite ends what is written, with close_notify first.
func (s *socket) CloseWrite() error {
	if s.tls != nil {
		_ = s.tls.CloseWrite()
	}
	return s.tcp.CloseWrite()
}

// NetConn returns the connection below TLS.
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

// connect dials name, TLS included: the peer must prove to be host, or to have that address where host is empty.
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
	if d.sec == nil {
		return s, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	s.tls, err = d.sec.dial(s.tcp, name, host)
	if stop(); err != nil {
		_ = nc.Close()
		return nil, insecure(err)
	}
	_ = nc.SetDeadline(time.Time{})
	s.ReadWriter = s.tls
	return s, nil
}

// setConnOptions sets what the options ask for.
func (d *domain) setConnOptions(nc *net.TCPConn) {
	keep, _ := d.opts.probes(d.peerTimeout)
	_ = nc.SetNoDelay(true)
	_ = nc.SetKeepAliveConfig(keep)
}

func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
