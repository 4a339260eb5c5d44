package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// copySize is what is copied for one write where user memory must not be lent to it; with TLS that is four records.
const copySize = 64 << 10

// copyBufs are for the time of one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// A socket is a connection whose reads and writes wait, with TLS or without. Deadlines are those of the connection.
type socket struct {
	io.ReadWriter // tcp, or tls
	tcp           *net.TCPConn
	tls           *tlsConn // nil without
}

// Close says close_notify, as far as that goes within lastGrace, and closes the connection.
func (s *socket) Close() {
	if s.tls != nil {
		_ = s.tcp.SetWriteDeadline(time.Now().Add(lastGrace))
		_ = s.tls.CloseWrite()
	}
	_ = s.tcp.Close()
}

// proof is what the handshake has proven of the peer.
func (s *socket) proof() na.Identity {
	if s.tls == nil {
		return na.Identity{}
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
		return nil, na.WithText(na.ErrUnreachable, secure.Innermost(err))
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
