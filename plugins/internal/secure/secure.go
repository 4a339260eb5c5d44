package secure

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
)

// ALPN is the protocol that both sides must offer in the TLS handshake.
const ALPN = "quicksilver/1"

// Limits, in bytes, on the data that a peer may send before the TLS handshake has completed. For a
// peer that connected, there is one limit for its first message and one for its certificates. For a
// peer that was dialed, a single limit applies to everything. Package tls uses several times as
// much memory as it receives.
const (
	MaxClientHello = 4 << 10
	MaxClientProof = 6 << 10
	MaxServerProof = 64 << 10
)

// Looks reports whether functions supplied by the program, in cfg, verify certificates.
func Looks(cfg *tls.Config) bool {
	return cfg.VerifyConnection != nil || cfg.VerifyPeerCertificate != nil
}

// Authorities is implemented by the ClientSessionCache of a configuration whose certificate
// authorities can be replaced, such as one of package qs. The field has no other use here, because
// sessions are not resumed, and Clone preserves it.
type Authorities interface {
	// Current returns the pool to use instead of pool, which may be pool itself. It may read files.
	Current(pool *x509.CertPool) *x509.CertPool
}

// Forced returns a copy of cfg for handshakes, with the current certificate authorities. The copy
// allows only TLS 1.3 and the protocol ALPN, and does not resume sessions, so that every connection
// verifies the peer. If cfg.GetConfigForClient is set, chosen is called with its result.
func Forced(cfg *tls.Config, chosen func(hello *tls.ClientHelloInfo, other *tls.Config)) *tls.Config {
	cfg = cfg.Clone()
	if a, ok := cfg.ClientSessionCache.(Authorities); ok {
		cfg.RootCAs, cfg.ClientCAs = a.Current(cfg.RootCAs), a.Current(cfg.ClientCAs)
	}
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	cfg.NextProtos = []string{ALPN}
	cfg.SessionTicketsDisabled, cfg.ClientSessionCache = true, nil
	cfg.DynamicRecordSizingDisabled = true
	if ask := cfg.GetConfigForClient; ask != nil {
		cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := ask(hello)
			if other != nil {
				other = Forced(other, chosen)
				chosen(hello, other)
			}
			return other, err
		}
	}
	return cfg
}

// IsCurrent reports whether forced, which was returned by Forced for cfg, still has the current
// certificate authorities.
func IsCurrent(cfg, forced *tls.Config) bool {
	a, ok := cfg.ClientSessionCache.(Authorities)
	return !ok || a.Current(cfg.RootCAs) == forced.RootCAs && a.Current(cfg.ClientCAs) == forced.ClientCAs
}

// Validate returns "" if cfg is valid, and otherwise a description of the TLS options that are
// valid.
func Validate(cfg *tls.Config) (want string) {
	if cfg != nil && cfg.MaxVersion != 0 && cfg.MaxVersion < tls.VersionTLS13 {
		return "a MaxVersion of TLS 1.3, or 0"
	}
	return ""
}

// MayListen returns an error if cfg contains no certificate to present to peers that connect.
func MayListen(scheme string, cfg *tls.Config) error {
	if len(cfg.Certificates) > 0 || cfg.GetCertificate != nil || cfg.GetConfigForClient != nil {
		return nil
	}
	return codes.WithText(codes.ErrInvalid, scheme+": options: TLS has no certificate, want Certificates or GetCertificate to listen")
}

// Client returns the configuration for dialing the peer at name. The peer's certificate must be
// valid for host or, if host is empty, for the address in name.
func Client(cfg *tls.Config, scheme, name, host string) *tls.Config {
	if cfg.ServerName != "" {
		return cfg
	}
	cfg = cfg.Clone()
	if cfg.ServerName = host; host == "" {
		cfg.ServerName = inet.HostOf(scheme, name)
	}
	return cfg
}

// An Own holds the certificate that this side has presented as the client of a handshake, or nil if
// it has presented none. An Own must be used for only one handshake.
type Own struct{ leaf *x509.Certificate }

// Note returns a copy of cfg that stores the certificate presented by this side in o.
func (o *Own) Note(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	choose, all := cfg.GetClientCertificate, cfg.Certificates
	cfg.GetClientCertificate = func(r *tls.CertificateRequestInfo) (c *tls.Certificate, err error) {
		if choose != nil {
			c, err = choose(r)
		} else { // choose a certificate in the same way as package tls
			c = &tls.Certificate{}
			for i := range all {
				if r.SupportsCertificate(&all[i]) == nil {
					c = &all[i]
					break
				}
			}
		}
		if err == nil && c != nil && len(c.Certificate) > 0 {
			if o.leaf = c.Leaf; o.leaf == nil {
				o.leaf, _ = x509.ParseCertificate(c.Certificate[0]) // if it cannot be parsed, package tls reports the error
			}
		}
		return c, err
	}
	return cfg
}

// Wrap returns err, the error of a connection. If err means that the peer considers this side's
// certificate expired, the result includes the certificate, which Reason describes. o may be nil.
func (o *Own) Wrap(err error) error {
	if err == nil || o == nil || o.leaf == nil || Innermost(err) != alertExpired {
		return err
	}
	return &expiredError{err, o.leaf}
}

// An expiredError is the error of a connection on which the peer rejected this side's certificate
// as expired.
type expiredError struct {
	error
	own *x509.Certificate
}

// Unwrap returns the peer's alert.
func (e *expiredError) Unwrap() error { return e.error }

// ByHost reports whether a peer's certificate must be valid for the host by which the peer was
// looked up. cfg may be nil.
func ByHost(cfg *tls.Config) bool {
	return cfg != nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify
}

// A Proof is what a handshake has verified about the peer.
type Proof struct {
	Who   carrier.Proof
	cfg   *tls.Config
	chain []*x509.Certificate // certificate chain as sent by the peer
	at    time.Time           // time of the handshake according to cfg.Time; zero if that is not set
}

// Prove returns the Proof for a completed handshake. looked reports whether functions supplied by
// the program have verified the peer's certificates.
func Prove(cfg *tls.Config, state *tls.ConnectionState, looked bool) *Proof {
	p := &Proof{Who: carrier.Proof{Secure: true}, cfg: cfg, chain: state.PeerCertificates}
	switch { // a certificate that was only requested or sent, but not verified, proves nothing
	case len(state.VerifiedChains) > 0:
		p.Who.Certificates = state.VerifiedChains[0]
	case looked && len(state.PeerCertificates) > 0:
		p.Who.Certificates = state.PeerCertificates[:1:1]
	}
	if len(p.Who.Certificates) > 0 {
		p.Who.Name = carrier.NameOf(p.Who.Certificates[0])
	}
	if cfg.Time != nil {
		p.at = cfg.Time()
	}
	p.Who.Expires = expiry(state.VerifiedChains, p.Who.Certificates, clock(cfg)())
	return p
}

// clock returns the clock that determines whether a certificate is valid, which is cfg.Time if set.
func clock(cfg *tls.Config) func() time.Time {
	if cfg.Time != nil {
		return cfg.Time
	}
	return time.Now
}

// WallClock returns the value of carrier.Network.WallClock for a transport that uses cfg, or nil if
// cfg is nil.
func WallClock(cfg *tls.Config) func() time.Time {
	if cfg == nil {
		return nil
	}
	return clock(cfg)
}

// expiry returns the time at which the last of the verified chains expires. A chain expires with
// the first of its certificates. If there is no verified chain, expiry uses shown, the certificates
// that functions supplied by the program have accepted. If these had already expired when they were
// accepted, they are considered valid forever, and expiry returns the zero time.
func expiry(verified [][]*x509.Certificate, shown []*x509.Certificate, now time.Time) (last time.Time) {
	if len(verified) == 0 {
		verified = [][]*x509.Certificate{shown}
	}
	for _, chain := range verified {
		var first time.Time
		for _, c := range chain {
			if first.IsZero() || c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(last) {
			last = first
		}
	}
	if !last.After(now) {
		return time.Time{}
	}
	return last.Add(time.Nanosecond) // a certificate is still valid at the time NotAfter
}

// SpeaksFor reports whether the peer, which has connected to this side, may be identified with the
// listener at name. For that, it must have proven the identity that it would have to prove if this
// side dialed name.
func (p *Proof) SpeaksFor(scheme, name string) bool {
	if len(p.Who.Certificates) == 0 || p.cfg.InsecureSkipVerify {
		return false
	}
	if _, err := inet.Parse(scheme, name); err != nil {
		return false
	}
	opts := x509.VerifyOptions{
		Roots: p.cfg.RootCAs, DNSName: Client(p.cfg, scheme, name, "").ServerName, CurrentTime: p.at, Intermediates: x509.NewCertPool(),
	}
	for _, cert := range p.chain[1:] { // the path to an authority may differ from that found for the connection
		opts.Intermediates.AddCert(cert)
	}
	_, err := p.Who.Certificates[0].Verify(opts)
	return err == nil
}

// BothOrNone returns a text that names the options to set, which are those in the Config of package
// qs or, in a program that creates the plugin itself, those of the plugin.
func BothOrNone(scheme string) string {
	return "set Config.TLS, or " + scheme + ".Options.TLS below package qs, on both sides, or on neither"
}

// WantsPlain returns the error that a TLS client receives from a peer without TLS.
func WantsPlain(scheme string) error {
	return codes.WithText(codes.ErrProtocol, "the peer uses TLS, and this side does not: "+BothOrNone(scheme))
}

// WantsTLS returns the error that a client without TLS receives from a peer that requires TLS.
func WantsTLS(scheme string) error {
	return codes.WithText(codes.ErrProtocol, "TLS is required here: "+BothOrNone(scheme))
}

// Handshake errors.
var (
	ErrALPN     = errors.New("the peer uses TLS, but not the protocol " + ALPN)
	ErrTooMuch  = errors.New("the certificate chain of the peer is too long; " + shorten)
	ErrPanicked = errors.New("a callback of the local tls.Config panicked; see the log")
)

const shorten = "use fewer intermediate certificates or smaller keys at the peer"

// Overflow is the TLS alert record_overflow, sent to a peer that has sent too much.
const Overflow = 22

// OwnTooLong returns the error for a client whose certificates, of n bytes, exceed the limit of the
// listener.
func OwnTooLong(n, limit int) error {
	return fmt.Errorf("the local certificate chain is too long: the limit of a listener is %d bytes, these have %d; "+
		"use fewer intermediate certificates or smaller keys", limit, n)
}

// alertExpired is the text of the alert that reports an expired or not yet valid certificate.
const alertExpired = "tls: expired certificate"

// Remedies for programs that make their tls.Config with qs.LoadTLS.
const (
	caFile    = "(LoadTLS: the ca file)"
	pairFiles = "(LoadTLS: the cert and key files)"
)

// unknownAuthority is the text of the alert that reports a certificate of an unknown authority.
const unknownAuthority = "tls: unknown certificate authority"

// alerts maps the text of each alert with which a peer may abort a handshake to a remedy, except
// unknownAuthority.
var alerts = map[string]string{
	"tls: certificate required":           "the peer requires a certificate; set Certificates in the local tls.Config " + pairFiles,
	"tls: bad certificate":                "the peer rejected the local certificate",
	alertExpired:                          "the peer rejected the local certificate as expired or not yet valid",
	"tls: record overflow":                "the peer rejected the local certificate chain as too long; use fewer intermediate certificates or smaller keys",
	"tls: error decrypting message":       "the peer found that the local private key does not match the certificate",
	"tls: protocol version not supported": "the peer does not support TLS 1.3",
	"tls: no application protocol":        "the peer uses TLS, but not the protocol " + ALPN,
}

// Innermost returns the text of err without the addresses and operations that package net prepends.
func Innermost(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}

// Reason returns a text that states why a TLS connection that this process dialed failed with err,
// and the remedy.
func Reason(err error) string { return reason(err, "RootCAs", "ClientCAs") }

// AcceptReason is like Reason, but for a TLS connection that this process accepted.
func AcceptReason(err error) string { return reason(err, "ClientCAs", "RootCAs") }

// reason implements Reason and AcceptReason. local and remote are the fields of a tls.Config that
// list the authorities that this side and the peer trust.
func reason(err error, local, remote string) string {
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	text := Innermost(err)
	refused, isRefused := errors.AsType[*expiredError](err)
	switch {
	case isRefused:
		return alerts[alertExpired] + " (" + carrier.Describe(refused.own) + ")"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "handshake timeout"
	case text == unknownAuthority:
		return "the peer does not trust the authority of the local certificate; add it to " + remote + " in the peer's tls.Config " +
			caFile + " (" + strings.TrimPrefix(text, "tls: ") + ")"
	case alerts[text] != "":
		return alerts[text] + " (" + strings.TrimPrefix(text, "tls: ") + ")"
	case !errors.As(err, &unverified):
		return text
	case errors.As(err, &unknown):
		return "the peer's certificate is signed by an unknown authority; add it to " + local + " in the local tls.Config " + caFile + " (" +
			unverified.UnverifiedCertificates[0].Issuer.String() + ")"
	case errors.As(err, &host):
		return "the peer's certificate is for another host; look the peer up by a name in the certificate, or set ServerName in the local tls.Config (" +
			inet.NotFor(host.Certificate, host.Host) + ")"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the peer's certificate has expired or is not yet valid (" + carrier.Describe(invalid.Cert) + ", for " + inet.NamesIn(invalid.Cert) + ": " + invalid.Detail + ")"
	}
	return "invalid certificate of the peer: " + unverified.Err.Error()
}
