package tcp

import (
	"errors"
	"net"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// newServer returns the class's server, which does not listen yet.
func (d *domain) newServer() *netconn.Server {
	s := &netconn.Server{
		Class: d.class, Log: d.log, MaxHalfOpen: d.opts.MaxHalfOpen, HandshakeTimeout: d.opts.HandshakeTimeout, Spread: d.opts.Spread,
		Shared: d.opts.Listener != nil, Begin: d.beginConn, Verify: d.isVerified,
	}
	if d.opts.ReusePort {
		s.Sibling = d.bindSibling
	}
	return s
}

// beginConn performs the TLS handshake on an accepted connection if TLS is enabled. The handshake fails at due. If
// beginConn rejects the peer, it sends the reason if possible, in a form that the peer can read.
func (d *domain) beginConn(nc net.Conn, due time.Time) (net.Conn, error) {
	s := &socket{tcp: nc.(*net.TCPConn)}
	if !d.usePoller() { // otherwise epollCarrier sets the options on its own descriptor
		d.setConnOptions(s.tcp)
	}
	if d.security == nil {
		s.ReadWriter = &plainReader{Conn: nc}
		return s, nil
	}
	var err error
	if s.tls, err = d.security.serve(s.tcp, due); err == nil {
		s.ReadWriter = s.tls
		return s, nil
	}
	// A peer that connects without sending anything, such as a load balancer's probe, does not count as a failed
	// handshake.
	if _, silent := errors.AsType[silentError](err); !silent {
		if core := d.class.Context(0); core != nil { // the context that the peer wants is not known yet, so the failure is counted in the first
			core.HandshakeFailed(nc.RemoteAddr().String(), secure.AcceptReason(err))
		}
	}
	if errors.Is(err, errNotTLS) {
		netconn.Refuse(nc, errWantsTLS)
	} else {
		_ = nc.SetDeadline(time.Now().Add(closeTimeout))
		netconn.Drain(nc)
	}
	return nil, err
}

// isVerified reports whether the peer of nc may be identified with the listener called name: it is on the same machine
// and, with TLS, its certificate is valid for that name.
func (d *domain) isVerified(nc net.Conn, name string) bool {
	s := nc.(*socket)
	return d.names.Verified(name, ipOf(s.tcp.LocalAddr()), ipOf(s.tcp.RemoteAddr())) &&
		(s.tls == nil || s.tls.proof.SpeaksFor(scheme, name))
}

// A plainReader reads from a connection without TLS. Read returns errWantsPlain if the peer starts a TLS handshake.
type plainReader struct {
	net.Conn
	head []byte // up to tlsHead bytes from the beginning of the stream
}

// Read implements io.Reader.
func (r *plainReader) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if len(r.head) < tlsHead {
		r.head = append(r.head, b[:min(n, tlsHead-len(r.head))]...)
		if isClientHello(r.head) {
			return 0, errWantsPlain
		}
	}
	return n, err
}
