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

// A security does TLS handshakes with Options.TLS.
type security struct {
	config     *tls.Config                // Options.TLS
	lastConfig atomic.Pointer[tls.Config] // the configuration of the last handshake; nil before the first
	timeout    time.Duration
	log        *slog.Logger
}

// newSecurity returns nil if the options have no TLS.
func newSecurity(opts *Options, log *slog.Logger) *security {
	if opts.TLS == nil {
		return nil
	}
	return &security{config: opts.TLS, timeout: opts.HandshakeTimeout, log: log}
}

// handshakeConfig returns the configuration of a handshake: Options.TLS with the settings that this package requires.
// All handshakes share it until the certificate authorities change.
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

// A tlsConn is a connection with TLS after its handshake.
type tlsConn struct {
	*tls.Conn
	lower *lowerConn
	proof *secure.Proof
	own   *secure.Own // the certificate of this side; nil if the peer has dialed
}

// Read implements net.Conn. With TLS 1.3 the peer may refuse the certificate of this side after the handshake has
// completed here; own explains that error.
func (c *tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.own.Wrap(err)
}

// serve performs the handshake of an accepted connection. It fails at deadline.
func (s *security) serve(nc *net.TCPConn, deadline time.Time) (*tlsConn, error) {
	t := &lowerConn{
		rw: nc, remote: nc.RemoteAddr(), inspectsCerts: secure.Looks(s.config),
		readLimit: secure.MaxClientHello, nextReadLimit: secure.MaxClientProof,
	}
	cfg := s.handshakeConfig()
	return s.handshake(tls.Server(t, cfg), cfg, t, nc, nil, deadline)
}

// dial performs the handshake of a dialed connection, within the timeout of s. name is the canonical name of the peer, host the host that it must
// prove to be, or empty.
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

// handshake performs the handshake of conn. It fails at due. own is nil at the accepting side. Functions of the tls.Config run
// only here; a panic in one ends only this connection.
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
	if own != nil && t.certBytes > secure.MaxClientProof { // the listener will close the connection without a reason
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

// A lowerConn is the connection below package tls. It forwards reads and writes, checks the first bytes of the peer,
// limits the bytes that the peer sends during the handshake, and reports an end of the connection without
// close_notify as an error. Deadlines are those of the socket.
type lowerConn struct {
	rw            io.ReadWriter
	remote        net.Addr
	inspectsCerts bool   // functions of the tls.Config verify certificates
	readLimit     int    // bytes that the peer may still send; negative: no limit
	nextReadLimit int    // readLimit from the first write of this side on; 0: unchanged
	certBytes     int    // bytes written since the peer's first bytes: at the dialing side its certificates
	firstBytes    []byte // up to tlsHead bytes
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
	if t.readLimit > 0 { // during the handshake, when one goroutine reads and writes
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

// tlsHead is the number of bytes that distinguish a TLS stream from one that begins with a HELLO frame.
const tlsHead = 3

// mayBeTLS reports whether b can be the beginning of a TLS stream: a record with a handshake message or an alert. A
// HELLO frame begins with its length of at most a few KiB, so its third byte is zero.
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

// isClientHello reports whether head, the first bytes of a stream, begins the first message of a TLS client. It is
// false for fewer than tlsHead bytes.
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

// Close implements net.Conn. It is a no-op, since the owner of the socket closes it.
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

// A silentError is the error of a handshake in which the peer has sent nothing.
type silentError struct{ error }

// Unwrap returns the error of the handshake.
func (e silentError) Unwrap() error { return e.error }

var (
	errNotTLS    = errors.New("the peer does not use TLS: " + secure.BothOrNone(scheme))
	errTruncated = errors.New("connection closed without a TLS close_notify alert")

	errWantsPlain = secure.WantsPlain(scheme)
	errWantsTLS   = secure.WantsTLS(scheme)
)

// tlsError returns the error of a handshake that failed. A connection that was cut off may succeed at another
// attempt, so it gets the code ErrPeerLost.
func tlsError(err error) error {
	code := codes.ErrUnreachable
	if errors.Is(err, errTruncated) || isErrno(err, syscall.ECONNRESET, 10054) {
		code = codes.ErrPeerLost
	}
	return codes.WithText(code, "TLS: "+secure.Reason(err))
}
