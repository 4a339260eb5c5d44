package tcp

import (
	"errors"
	"net"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// newServer returns what accepts the connections of the class; it listens nowhere yet.
func (d *domain) newServer() *netconn.Server {
	s := &netconn.Server{
		Class: d.class, Log: d.log, MaxHalfOpen: d.opts.MaxHalfOpen, HandshakeTimeout: d.opts.HandshakeTimeout, Spread: d.opts.Spread,
		Begin: d.begin, Verify: d.verify,
	}
	if d.opts.ReusePort {
		s.Sibling = d.bindSibling
	}
	return s
}

// begin begins TLS on an accepted connection, if the options ask for it.
func (d *domain) begin(nc net.Conn, due time.Time) (net.Conn, error) {
	s := &socket{tcp: nc.(*net.TCPConn)}
	if !d.usePoller() { // else the other carrier sets them on its own descriptor
		d.setConnOptions(s.tcp)
	}
	if d.sec == nil {
		s.ReadWriter = &plainReader{Conn: nc}
		return s, nil
	}
	var err error
	if s.tls, err = d.sec.serve(s.tcp, due); err == nil {
		s.ReadWriter = s.tls
		return s, nil
	}
	if _, silent := errors.AsType[errSilent](err); !silent { // a peer that connects and sends nothing, as a probe of a load balancer does, has begun none
		if e := d.class.Context(0); e != nil { // which one the peer wants is not known yet
			e.HandshakeFailed(nc.RemoteAddr().String(), secure.Reason(err))
		}
	}
	if errors.Is(err, errNotTLS) {
		netconn.Refuse(nc, errWantsTLS)
	} else {
		_ = nc.SetDeadline(time.Now().Add(lastGrace))
		netconn.Drain(nc)
	}
	return nil, err
}

// verify reports whether the peer of nc is on the machine that name names, and is the one that its certificate names.
func (d *domain) verify(nc net.Conn, name string) bool {
	s := nc.(*socket)
	return d.names.Verified(name, ipOf(s.tcp.LocalAddr()), ipOf(s.tcp.RemoteAddr())) && (s.tls == nil || s.tls.proof.SpeaksFor(scheme, name))
}

// A plainReader is a connection without TLS. Its first bytes tell a peer that begins TLS.
type plainReader struct {
	net.Conn
	head []byte // as many as tell that
}

// Read implements io.Reader.
func (r *plainReader) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if len(r.head) < tlsHead {
		r.head = append(r.head, b[:min(n, tlsHead-len(r.head))]...)
		if beginsTLS(r.head) {
			return 0, errWantsPlain
		}
	}
	return n, err
}
