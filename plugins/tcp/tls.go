package tcp

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// A security performs TLS handshakes as configured by Options.TLS.
type security struct {
	config     *tls.Config                // Options.TLS
	lastConfig atomic.Pointer[tls.Config] // configuration used by the last handshake; nil before the first
	timeout    time.Duration
	log        *slog.Logger
}

// newSecurity returns the security for opts, or nil if TLS is not enabled.
func newSecurity(opts *Options, log *slog.Logger) *security {
	if opts.TLS == nil {
		return nil
	}
	return &security{config: opts.TLS, timeout: opts.HandshakeTimeout, log: log}
}

// handshakeConfig returns the configuration for a handshake, which is Options.TLS with the settings that this package
// requires. Handshakes share one configuration until the certificate authorities change.
func (s *security) handshakeConfig() *tls.Config {
	if cfg := s.lastConfig.Load(); cfg != nil && secure.IsCurrent(s.config, cfg) {
		return cfg
	}
	cfg := secure.Forced(s.config, func(hello *tls.ClientHelloInfo, other *tls.Config) {
		hello.Conn.(*lowerConn).inspectsCerts = secure.Looks(other)
	})
	s.lastConfig.Store(cfg)
	return cfg
}

// A tlsConn is a TLS connection whose handshake has completed.
type tlsConn struct {
	*tls.Conn
	lower *lowerConn
	proof *secure.Proof
	own   *secure.Own // certificate presented by this side; nil if the peer dialed
}

// Read implements net.Conn. In TLS 1.3 the peer may reject this side's certificate after the handshake has completed on
// this side. Read uses own to explain that error.
func (c *tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.own.Wrap(err)
}

// serve performs the TLS handshake on an accepted connection. The handshake fails if it has not completed by deadline.
func (s *security) serve(nc *net.TCPConn, deadline time.Time) (*tlsConn, error) {
	t := &lowerConn{
		rw: nc, remote: nc.RemoteAddr(), inspectsCerts: secure.Looks(s.config),
		readLimit: secure.MaxClientHello, nextReadLimit: secure.MaxClientProof,
	}
	cfg := s.handshakeConfig()
	return s.handshake(tls.Server(t, cfg), cfg, t, nc, nil, deadline)
}

// dial performs the TLS handshake on a connection dialed to name, the peer's canonical name. The peer's certificate
// must be valid for host or, if host is empty, for the IP address in name.
func (s *security) dial(nc *net.TCPConn, name, host string) (*tlsConn, error) {
	ap, err := inet.Parse(scheme, name)
	if err != nil {
		return nil, err
	}
	t := &lowerConn{
		rw: nc, remote: net.TCPAddrFromAddrPort(ap), inspectsCerts: secure.Looks(s.config), readLimit: secure.MaxServerProof,
	}
	cfg, own := s.handshakeConfig(), &secure.Own{}
	conn := tls.Client(t, own.Note(secure.Client(cfg, scheme, name, host)))
	return s.handshake(conn, cfg, t, nc, own, time.Now().Add(s.timeout))
}

// handshake performs the handshake of conn, which fails if it has not completed by due. own is nil on the accepting
// side. The functions of the tls.Config run only here. If one of them panics, only this connection is closed.
func (s *security) handshake(
	conn *tls.Conn, cfg *tls.Config, t *lowerConn, nc *net.TCPConn, own *secure.Own, due time.Time,
) (c *tlsConn, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a callback of the tls.Config panicked", "peer", t.remote.String(), "panic", p, "stack", string(debug.Stack()))
			c, err = nil, secure.ErrPanicked
		}
	}()
	_ = nc.SetDeadline(due)
	if err := conn.Handshake(); err != nil {
		if !t.received {
			err = silentError{err}
		}
		return nil, own.Wrap(err)
	}
	if own != nil && t.certBytes > secure.MaxClientProof { // the listener closes the connection without giving this reason
		return nil, secure.OwnTooLong(t.certBytes, secure.MaxClientProof)
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != secure.ALPN { // package tls accepts a peer that offers no protocol
		_ = conn.CloseWrite()
		return nil, secure.ErrALPN
	}
	t.readLimit = -1
	return &tlsConn{Conn: conn, lower: t, proof: secure.Prove(cfg, &state, t.inspectsCerts), own: own}, nil
}

// A lowerConn is the connection that package tls reads and writes. It checks the first bytes that the peer sends,
// limits the number of bytes that it may send during the handshake, and reports an error if the connection is closed
// without close_notify. Its deadline methods do nothing, because deadlines are set on the underlying socket.
type lowerConn struct {
	rw            io.ReadWriter
	remote        net.Addr
	inspectsCerts bool   // functions of the tls.Config verify certificates
	readLimit     int    // number of bytes that the peer may still send; negative means no limit
	nextReadLimit int    // value of readLimit after this side's first write; 0 means unchanged
	certBytes     int    // number of bytes written since the peer's first bytes, which on the dialing side are its certificates
	firstBytes    []byte // up to tlsHead bytes from the beginning of the peer's stream
	received      bool   // the peer has sent bytes
}

// Read implements net.Conn.
func (t *lowerConn) Read(b []byte) (int, error) {
	if t.readLimit == 0 {
		return 0, secure.ErrTooMuch
	}
	if t.readLimit > 0 {
		b = b[:min(len(b), t.readLimit)]
	}
	n, err := t.rw.Read(b)
	if t.readLimit > 0 { // during the handshake, only one goroutine reads and writes
		t.received = t.received || n > 0
		t.readLimit -= n
		if len(t.firstBytes) < tlsHead {
			t.firstBytes = append(t.firstBytes, b[:min(n, tlsHead-len(t.firstBytes))]...)
			if !mayBeTLS(t.firstBytes) {
				return 0, errNotTLS
			}
		}
	}
	if err == io.EOF {
		err = errTruncated
	}
	return n, err
}

// tlsHead is the number of bytes needed to distinguish a TLS stream from one that begins with a HELLO frame.
const tlsHead = 3

// mayBeTLS reports whether b can be the beginning of a TLS stream, whose first record is a handshake message or an
// alert. A HELLO frame begins with its length, which is at most a few KiB, so the third byte of such a stream is 0.
func mayBeTLS(b []byte) bool {
	for i, c := range b {
		ok := c == 0x16 || c == 0x15
		switch i {
		case 1:
			ok = c == 3
		case 2:
			ok = c != 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// isClientHello reports whether head is the beginning of the first message of a TLS client. It returns false if head is
// shorter than tlsHead bytes.
func isClientHello(head []byte) bool {
	return len(head) >= tlsHead && head[0] == 0x16 && mayBeTLS(head)
}

// Write implements net.Conn.
func (t *lowerConn) Write(b []byte) (int, error) {
	if t.nextReadLimit > 0 {
		t.readLimit, t.nextReadLimit = t.nextReadLimit, 0
	}
	if t.readLimit > 0 && t.received {
		t.certBytes += len(b)
	}
	return t.rw.Write(b)
}

// Close implements net.Conn. It does nothing, because the socket's owner closes the socket.
func (t *lowerConn) Close() error { return nil }

// LocalAddr implements net.Conn.
func (t *lowerConn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (t *lowerConn) RemoteAddr() net.Addr { return t.remote }

// SetDeadline implements net.Conn.
func (t *lowerConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (t *lowerConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (t *lowerConn) SetWriteDeadline(time.Time) error { return nil }

// A silentError is returned by a handshake in which the peer sent nothing. It wraps the handshake's error.
type silentError struct{ error }

// Unwrap returns the handshake error.
func (e silentError) Unwrap() error { return e.error }

var (
	errNotTLS    = errors.New("the peer does not use TLS: " + secure.BothOrNone(scheme))
	errTruncated = errors.New("connection closed without a TLS close_notify alert")

	errWantsPlain = secure.WantsPlain(scheme)
	errWantsTLS   = secure.WantsTLS(scheme)
)

// tlsError returns the error for a handshake that failed with err. If the connection was interrupted, the code is
// ErrPeerLost, because another attempt may succeed.
func tlsError(err error) error {
	code := codes.ErrUnreachable
	if errors.Is(err, errTruncated) || isErrno(err, syscall.ECONNRESET, 10054) {
		code = codes.ErrPeerLost
	}
	return codes.WithText(code, "TLS: "+secure.Reason(err))
}
