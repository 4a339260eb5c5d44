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

// A security is Options.TLS, which each handshake makes fit for its role.
type security struct {
	own     *tls.Config
	last    atomic.Pointer[tls.Config] // what the last handshake used; none before the first
	timeout time.Duration
	log     *slog.Logger
}

// newSecurity returns nil when the options ask for none.
func newSecurity(opts *Options, log *slog.Logger) *security {
	if opts.TLS == nil {
		return nil
	}
	return &security{own: opts.TLS, timeout: opts.HandshakeTimeout, log: log}
}

// forced returns the configuration of a handshake, which all share until the authorities change.
func (s *security) forced() *tls.Config {
	if cfg := s.last.Load(); cfg != nil && secure.IsCurrent(s.own, cfg) {
		return cfg
	}
	cfg := secure.Forced(s.own, func(hello *tls.ClientHelloInfo, other *tls.Config) {
		hello.Conn.(*lowerConn).looked = secure.Looks(other)
	})
	s.last.Store(cfg)
	return cfg
}

// A tlsConn is a connection with TLS whose handshake is over.
type tlsConn struct {
	*tls.Conn
	lower *lowerConn
	proof *secure.Proof
	own   *secure.Own // nil: the peer has dialled
}

// Read implements net.Conn. The peer may refuse the certificate of this side when the handshake is over here.
func (c *tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.own.Wrap(err)
}

// serve has the peer that connected to us begin TLS. due bounds the time.
func (s *security) serve(nc *net.TCPConn, due time.Time) (*tlsConn, error) {
	t := &lowerConn{rw: nc, remote: nc.RemoteAddr(), looked: secure.Looks(s.own), left: secure.MaxClientHello, then: secure.MaxClientProof}
	cfg := s.forced()
	return s.handshake(tls.Server(t, cfg), cfg, t, nc, nil, due)
}

// dial begins TLS with the peer that we connected to, whose canonical name is given, and the host that it must prove to be, or empty.
func (s *security) dial(nc *net.TCPConn, name, host string) (*tlsConn, error) {
	ap, err := inet.Parse(scheme, name)
	if err != nil {
		return nil, err
	}
	t := &lowerConn{rw: nc, remote: net.TCPAddrFromAddrPort(ap), looked: secure.Looks(s.own), left: secure.MaxServerProof}
	cfg, own := s.forced(), &secure.Own{}
	return s.handshake(tls.Client(t, own.Note(secure.Client(cfg, scheme, name, host))), cfg, t, nc, own, time.Now().Add(s.timeout))
}

// handshake is that of the dialing side if own is not nil. Functions of the user's run here only. A panic in one ends this connection only.
func (s *security) handshake(conn *tls.Conn, cfg *tls.Config, t *lowerConn, nc *net.TCPConn, own *secure.Own, due time.Time) (c *tlsConn, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a function of the tls.Config panicked", "peer", t.remote.String(), "panic", p, "stack", string(debug.Stack()))
			c, err = nil, secure.ErrPanicked
		}
	}()
	_ = nc.SetDeadline(due)
	if err := conn.Handshake(); err != nil {
		if !t.heard {
			err = errSilent{err}
		}
		return nil, own.Wrap(err)
	}
	if own != nil && t.proof > secure.MaxClientProof { // the listener will end it, and cannot say why
		return nil, secure.OwnTooLong(t.proof, secure.MaxClientProof)
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != secure.ALPN { // package tls lets a peer go on that names none
		_ = conn.CloseWrite()
		return nil, secure.ErrALPN
	}
	t.left = -1
	return &tlsConn{Conn: conn, lower: t, proof: secure.Prove(cfg, &state, t.looked), own: own}, nil
}

// A lowerConn is the connection that package tls sees. It passes on what comes and goes, looks at the first bytes, bounds what
// comes before the handshake has ended, and tells an end that was announced from one that was not. Deadlines are those of
// the socket.
type lowerConn struct {
	rw     io.ReadWriter
	remote net.Addr
	looked bool // functions of the user's look at certificates
	left   int  // bytes that may come yet; negative when there is no limit
	then   int  // and from our first answer on
	proof  int  // bytes that a client has written since the first answer: its certificates
	first  []byte
	heard  bool // anything
}

// Read implements net.Conn.
func (t *lowerConn) Read(b []byte) (int, error) {
	if t.left == 0 {
		return 0, secure.ErrTooMuch
	}
	if t.left > 0 {
		b = b[:min(len(b), t.left)]
	}
	n, err := t.rw.Read(b)
	if t.left > 0 { // the handshake goes on: one goroutine reads and writes
		t.heard = t.heard || n > 0
		t.left -= n
		if len(t.first) < tlsHead {
			t.first = append(t.first, b[:min(n, tlsHead-len(t.first))]...)
			if !maybeTLS(t.first) {
				return 0, errNotTLS
			}
		}
	}
	if err == io.EOF {
		err = errTruncated
	}
	return n, err
}

// tlsHead is how many bytes tell a stream of TLS from one that begins with a HELLO. They may come in as many segments.
const tlsHead = 3

// maybeTLS reports whether a stream that begins so may be TLS: a record with a handshake message or an alert. A HELLO
// of our own, whose length comes first, is at most a few KiB: its third byte is zero.
func maybeTLS(b []byte) bool {
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

// beginsTLS reports whether head, the first bytes of a stream, is that of a TLS client's first message. It is false while fewer
// than tlsHead bytes have come.
func beginsTLS(head []byte) bool {
	return len(head) >= tlsHead && head[0] == 0x16 && maybeTLS(head)
}

// Write implements net.Conn.
func (t *lowerConn) Write(b []byte) (int, error) {
	if t.then > 0 {
		t.left, t.then = t.then, 0
	}
	if t.left > 0 && t.heard {
		t.proof += len(b)
	}
	return t.rw.Write(b)
}

// Close implements net.Conn; the socket is closed by who has it.
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

// An errSilent is the error of a handshake in which the peer has said nothing.
type errSilent struct{ error }

// Unwrap returns what has ended it.
func (e errSilent) Unwrap() error { return e.error }

var (
	errNotTLS    = errors.New("the peer does not speak TLS: " + secure.BothOrNone(scheme))
	errTruncated = errors.New("connection cut: it ended without the close_notify of TLS")

	errWantsPlain = secure.WantsPlain(scheme)
	errWantsTLS   = secure.WantsTLS(scheme)
)

// insecure is the error of a connection whose TLS could not begin. One that was cut may be let in at another attempt.
func insecure(err error) error {
	code := codes.ErrUnreachable
	if errors.Is(err, errTruncated) || isErrno(err, syscall.ECONNRESET, 10054) {
		code = codes.ErrPeerLost
	}
	return codes.WithText(code, "TLS: "+secure.Reason(err))
}
