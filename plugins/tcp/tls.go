package tcp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
)

const (
	// alpn is the protocol that both sides must name in the TLS handshake.
	alpn = "quicksilver/1"
	// What a peer may send before the TLS handshake has ended: its first message and its certificates, when it connected
	// to us; all that it says, when we dialled it. Package tls needs several times as much memory for it.
	maxClientHello = 4 << 10
	maxClientProof = 6 << 10
	maxServerProof = 64 << 10
)

// A security is Options.TLS, made fit for both roles of a class.
type security struct {
	cfg     *tls.Config
	timeout time.Duration
	log     *slog.Logger
}

// newSecurity returns nil when the options ask for none.
func newSecurity(opts *Options, log *slog.Logger) *security {
	if opts.TLS == nil {
		return nil
	}
	return &security{cfg: forced(opts.TLS), timeout: opts.HandshakeTimeout, log: log}
}

// looks reports whether functions of the user's look at certificates.
func looks(cfg *tls.Config) bool {
	return cfg.VerifyConnection != nil || cfg.VerifyPeerCertificate != nil
}

// forced returns a copy of cfg that speaks nothing but TLS 1.3 and our protocol, and that has every connection prove anew
// who it is.
func forced(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	cfg.NextProtos = []string{alpn}
	cfg.SessionTicketsDisabled, cfg.ClientSessionCache = true, nil
	cfg.DynamicRecordSizingDisabled = true
	if ask := cfg.GetConfigForClient; ask != nil {
		cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := ask(hello)
			if other != nil {
				other = forced(other)
				hello.Conn.(*lowerConn).looked = looks(other)
			}
			return other, err
		}
	}
	return cfg
}

// validateTLS says what is wrong with Options.TLS; empty when nothing is.
func validateTLS(cfg *tls.Config) (want string) {
	if cfg != nil && cfg.MaxVersion != 0 && cfg.MaxVersion < tls.VersionTLS13 {
		return "a MaxVersion of TLS 1.3, or 0"
	}
	return ""
}

// mayListen reports whether there is a certificate to show to those who connect.
func (s *security) mayListen() error {
	c := s.cfg
	if len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil {
		return nil
	}
	return na.WithText(na.ErrInvalid, "tcp: options: TLS has no certificate, want Certificates or GetCertificate to listen")
}

// A tlsConn is a connection with TLS whose handshake is over.
type tlsConn struct {
	*tls.Conn
	sec   *security
	lower *lowerConn
	who   na.Identity
	at    time.Time // by the user's clock; zero when there is none
}

// serve has the peer that connected to us begin TLS. due bounds the time.
func (s *security) serve(nc *net.TCPConn, due time.Time) (*tlsConn, error) {
	t := &lowerConn{rw: nc, remote: nc.RemoteAddr(), looked: looks(s.cfg), left: maxClientHello, then: maxClientProof}
	return s.handshake(tls.Server(t, s.cfg), t, nc, due)
}

// dial begins TLS with the peer that we connected to, whose canonical name is given, and the host that it must prove to be, or empty.
func (s *security) dial(nc *net.TCPConn, name, host string) (*tlsConn, error) {
	ap, err := inet.Parse(scheme, name)
	if err != nil {
		return nil, err
	}
	t := &lowerConn{rw: nc, remote: net.TCPAddrFromAddrPort(ap), looked: looks(s.cfg), left: maxServerProof}
	return s.handshake(tls.Client(t, s.client(name, host)), t, nc, time.Now().Add(s.timeout))
}

// client is the configuration for dialling host at name.
func (s *security) client(name, host string) *tls.Config {
	if s.cfg.ServerName != "" {
		return s.cfg
	}
	cfg := s.cfg.Clone()
	if cfg.ServerName = host; host == "" {
		cfg.ServerName = inet.HostOf(scheme, name)
	}
	return cfg
}

// byHost reports whether peers must prove to be the hosts that they were looked up by.
func (s *security) byHost() bool {
	return s != nil && s.cfg.ServerName == "" && !s.cfg.InsecureSkipVerify
}

// handshake is where functions of the user's run, and nowhere else. A panic in one ends this connection only.
func (s *security) handshake(conn *tls.Conn, t *lowerConn, nc *net.TCPConn, due time.Time) (c *tlsConn, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a function of the tls.Config panicked", "peer", t.remote.String(), "panic", p, "stack", string(debug.Stack()))
			c, err = nil, errPanicked
		}
	}()
	_ = nc.SetDeadline(due)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != alpn { // package tls lets a peer go on that names none
		_ = conn.CloseWrite()
		return nil, errALPN
	}
	t.left = -1
	who := na.Identity{Secure: true}
	switch { // what was only asked for, or sent, proves nothing
	case len(state.VerifiedChains) > 0:
		who.Certificates = state.VerifiedChains[0]
	case t.looked && len(state.PeerCertificates) > 0:
		who.Certificates = state.PeerCertificates[:1:1]
	}
	if len(who.Certificates) > 0 {
		who.Name = na.NameIn(who.Certificates[0])
	}
	c = &tlsConn{Conn: conn, sec: s, lower: t, who: who}
	if s.cfg.Time != nil {
		c.at = s.cfg.Time()
	}
	return c, nil
}

// speaksFor reports whether the peer, which connected to us, may be taken for the one that listens at name: it has proven
// what it would have to prove if we dialled it there.
func (c *tlsConn) speaksFor(name string) bool {
	cfg := c.sec.cfg
	if len(c.who.Certificates) == 0 || cfg.InsecureSkipVerify {
		return false
	}
	if _, err := inet.Parse(scheme, name); err != nil {
		return false
	}
	opts := x509.VerifyOptions{
		Roots: cfg.RootCAs, DNSName: c.sec.client(name, "").ServerName, CurrentTime: c.at, Intermediates: x509.NewCertPool(),
	}
	for _, cert := range c.ConnectionState().PeerCertificates[1:] { // another path may be needed than for connecting
		opts.Intermediates.AddCert(cert)
	}
	_, err := c.who.Certificates[0].Verify(opts)
	return err == nil
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
	first  []byte
}

// Read implements net.Conn.
func (t *lowerConn) Read(b []byte) (int, error) {
	if t.left == 0 {
		return 0, errTooMuch
	}
	if t.left > 0 {
		b = b[:min(len(b), t.left)]
	}
	n, err := t.rw.Read(b)
	if t.left > 0 {
		t.left -= n
		if len(t.first) < 3 {
			t.first = append(t.first, b[:min(n, 3-len(t.first))]...)
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

// beginsTLS reports whether a stream begins with the first message of a TLS client.
func beginsTLS(b []byte) bool { return bytes.HasPrefix(b, []byte{0x16, 3}) && b[2] != 0 }

// Write implements net.Conn.
func (t *lowerConn) Write(b []byte) (int, error) {
	if t.then > 0 {
		t.left, t.then = t.then, 0
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

// bothOrNone names what a program sets: the Config of package quicksilver, or else what it makes the plugin with.
const bothOrNone = "set Config.TLS, or tcp.Options.TLS below package quicksilver, on both sides, or on neither"

var (
	errNotTLS    = errors.New("the peer does not speak TLS: " + bothOrNone)
	errALPN      = errors.New("the peer speaks TLS but not " + alpn + " inside it: another program is there")
	errTooMuch   = errors.New("the peer says too much before it has proven who it is: its chain of certificates is long")
	errPanicked  = errors.New("a function of the tls.Config panicked here: see the log")
	errTruncated = errors.New("connection cut: it ended without the close_notify of TLS")

	// errWantsPlain is told to a TLS client by who speaks none; errWantsTLS to a plain one by who speaks nothing else.
	errWantsPlain = na.WithText(na.ErrProtocol, "the peer speaks TLS, this side does not: "+bothOrNone)
	errWantsTLS   = na.WithText(na.ErrProtocol, "TLS is required here: "+bothOrNone)
)

// alerts say what to do about what a peer said as it ended a handshake.
var alerts = map[string]string{
	"tls: certificate required":           "the peer wants a certificate: set Certificates in the tls.Config of this side",
	"tls: bad certificate":                "the peer does not accept the certificate of this side",
	"tls: expired certificate":            "the certificate of this side has expired, or is not valid yet, says the peer: renew it",
	"tls: unknown certificate authority":  "the peer does not know who signed the certificate of this side: add the authority to ClientCAs there",
	"tls: error decrypting message":       "the private key of this side is not that of its certificate, says the peer",
	"tls: protocol version not supported": "the peer has no TLS 1.3 in common with this side, which takes nothing older",
	"tls: no application protocol":        "the peer speaks TLS but not " + alpn + " inside it: another program is there",
}

// tlsReason says why TLS came to an end, and what to do about it.
func tlsReason(err error) string {
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	text := reason(err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "the peer did not end the TLS handshake in time"
	case alerts[text] != "":
		return alerts[text] + " (" + strings.TrimPrefix(text, "tls: ") + ")"
	case !errors.As(err, &unverified):
		return text
	case errors.As(err, &unknown):
		return "the peer's certificate was signed by an authority that is unknown here: add it to RootCAs in the tls.Config of this side (" +
			unverified.UnverifiedCertificates[0].Issuer.String() + ")"
	case errors.As(err, &host):
		return "the peer's certificate is for another host: look the peer up by a name that is in it, put the name or address into it, or set ServerName in the tls.Config of this side (" +
			inet.NotFor(host.Certificate, host.Host) + ")"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the peer's certificate has expired, or is not valid yet: renew it there (" + inet.NamesIn(invalid.Cert) + ": " + invalid.Detail + ")"
	}
	return "the peer's certificate is not accepted: " + unverified.Err.Error()
}

// insecure is the error of a connection whose TLS could not begin. One that was cut may be let in at another attempt.
func insecure(err error) error {
	code := na.ErrUnreachable
	if errors.Is(err, errTruncated) || isErrno(err, syscall.ECONNRESET, 10054) {
		code = na.ErrPeerLost
	}
	return na.WithText(code, "TLS: "+tlsReason(err))
}

// turnAway tells a peer why it is not let in, and lets it have the time to hear that. c is nil when the handshake failed.
// The socket has a deadline.
func turnAway(nc *net.TCPConn, c *tlsConn, err error) {
	_, ours := errors.AsType[na.Code](err)
	switch {
	case errors.Is(err, errNotTLS):
		_, _ = nc.Write(frame.ByeOf(errWantsTLS).Frame())
	case c != nil && ours: // it has said something, and not what it should
		_, _ = c.Write(frame.ByeOf(err).Frame())
		_ = c.CloseWrite()
	}
	// Closing with bytes unread would reset the connection, and the peer might not hear it.
	_, _ = io.CopyN(io.Discard, nc, maxServerProof)
}
