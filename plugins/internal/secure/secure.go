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

// Limits, in bytes, for the data that a peer may send before the TLS handshake has completed. For a
// peer that connected, they apply to its first message and to its certificates. For a dialed peer,
// the limit applies to everything. Package tls needs several times as much memory as it receives.
const (
	MaxClientHello = 4 << 10
	MaxClientProof = 6 << 10
	MaxServerProof = 64 << 10
)

// Looks reports whether functions supplied by the program verify certificates.
func Looks(cfg *tls.Config) bool {
	return cfg.VerifyConnection != nil || cfg.VerifyPeerCertificate != nil
}

// Authorities is implemented by the ClientSessionCache of a configuration whose certificate
// authorities may be replaced, as package qs does. Sessions are never resumed here, so the field
// has no other use, and Clone preserves it.
type Authorities interface {
	// Current returns the pool that currently replaces pool, which may be pool itself. It may read
	// files.
	Current(pool *x509.CertPool) *x509.CertPool
}

// Forced returns a copy of cfg for one handshake, with the currently trusted authorities. The copy
// allows only TLS 1.3 and this module's protocol, and makes every connection verify the peer again.
// If GetConfigForClient is set, chosen is called with its result.
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

// IsCurrent reports whether forced, which Forced returned for cfg, has the currently trusted
// authorities.
func IsCurrent(cfg, forced *tls.Config) bool {
	a, ok := cfg.ClientSessionCache.(Authorities)
	return !ok || a.Current(cfg.RootCAs) == forced.RootCAs && a.Current(cfg.ClientCAs) == forced.ClientCAs
}

// Validate returns a description of the valid TLS options if cfg is invalid, and "" otherwise.
func Validate(cfg *tls.Config) (want string) {
	if cfg != nil && cfg.MaxVersion != 0 && cfg.MaxVersion < tls.VersionTLS13 {
		return "a MaxVersion of TLS 1.3, or 0"
	}
	return ""
}

// MayListen returns an error if cfg has no certificate to present to peers that connect.
func MayListen(scheme string, cfg *tls.Config) error {
	if len(cfg.Certificates) > 0 || cfg.GetCertificate != nil || cfg.GetConfigForClient != nil {
		return nil
	}
	return codes.WithText(codes.ErrInvalid, scheme+": options: TLS has no certificate, want Certificates or GetCertificate to listen")
}

// Client returns the configuration for dialing host at name. If host is empty, the peer is verified
// against the address in name.
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

// An Own holds the certificate that this side, as the client, presented in a handshake. It holds
// nil before that, or if no certificate was presented. An Own is used for one handshake.
type Own struct{ leaf *x509.Certificate }

// Note returns a copy of cfg that records in o the certificate that it presents.
func (o *Own) Note(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	choose, all := cfg.GetClientCertificate, cfg.Certificates
	cfg.GetClientCertificate = func(r *tls.CertificateRequestInfo) (c *tls.Certificate, err error) {
		if choose != nil {
			c, err = choose(r)
		} else { // choose as package tls does
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
				o.leaf, _ = x509.ParseCertificate(c.Certificate[0]) // package tls reports an error if it cannot be parsed
			}
		}
		return c, err
	}
	return cfg
}

// Wrap returns err, a connection error. If the peer rejected this side's certificate as expired,
// the returned error includes the certificate, which Reason describes. o may be nil.
func (o *Own) Wrap(err error) error {
	if err == nil || o == nil || o.leaf == nil || Innermost(err) != alertExpired {
		return err
	}
	return &expiredError{err, o.leaf}
}

// An expiredError indicates that the peer considers this side's certificate expired.
type expiredError struct {
	error
	own *x509.Certificate
}

// Unwrap returns the peer's alert.
func (e *expiredError) Unwrap() error { return e.error }

// ByHost reports whether peers must present certificates for the hosts by which they were looked
// up. cfg may be nil.
func ByHost(cfg *tls.Config) bool {
	return cfg != nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify
}

// A Proof is the verified information about a peer from a handshake.
type Proof struct {
	Who   carrier.Proof
	cfg   *tls.Config
	chain []*x509.Certificate // chain as sent by the peer
	at    time.Time           // time of the handshake by the program's clock; zero if cfg has no clock
}

// Prove returns the Proof for a handshake. looked reports whether functions supplied by the program
// have verified the certificates.
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

// clock returns the clock by which the validity of certificates is checked.
func clock(cfg *tls.Config) func() time.Time {
	if cfg.Time != nil {
		return cfg.Time
	}
	return time.Now
}

// WallClock returns the WallClock for a transport's carrier.Network, or nil without TLS. cfg may be
// nil.
func WallClock(cfg *tls.Config) func() time.Time {
	if cfg == nil {
		return nil
	}
	return clock(cfg)
}

// expiry returns the time at which the last of the verified chains expires. A chain expires when
// the first of its certificates does. If there is no verified chain, expiry uses the certificates
// in shown, which functions supplied by the program have accepted. Certificates that were accepted
// even though they had already expired never expire; expiry then returns the zero time.
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
	return last.Add(time.Nanosecond) // a certificate is still valid at NotAfter
}

// SpeaksFor reports whether the peer, which connected, may be identified with the listener at name.
// This requires that the peer has proven the identity that it would have to prove if it were dialed
// there.
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
	for _, cert := range p.chain[1:] { // the path to an authority may differ from that of the connection
		opts.Intermediates.AddCert(cert)
	}
	_, err := p.Who.Certificates[0].Verify(opts)
	return err == nil
}

// BothOrNone describes the options to set: those in the Config of package qs or, in programs that
// create the plugin themselves, those of the plugin.
func BothOrNone(scheme string) string {
	return "set Config.TLS, or " + scheme + ".Options.TLS below package qs, on both sides, or on neither"
}

// WantsPlain returns the error for a TLS client that connects to a peer without TLS.
func WantsPlain(scheme string) error {
	return codes.WithText(codes.ErrProtocol, "the peer uses TLS, and this side does not: "+BothOrNone(scheme))
}

// WantsTLS returns the error for a client without TLS that connects to a peer that requires it.
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

// OwnTooLong returns the error for a client that has presented n bytes of certificates to a
// listener with a lower limit.
func OwnTooLong(n, limit int) error {
	return fmt.Errorf("the local certificate chain is too long: the limit of a listener is %d bytes, these have %d; "+
		"use fewer intermediate certificates or smaller keys", limit, n)
}

// alertExpired is the text of the alert for a certificate that is not valid at the current time.
const alertExpired = "tls: expired certificate"

// alerts maps the alerts with which a peer aborts a handshake to remedies.
var alerts = map[string]string{
	"tls: certificate required":           "the peer requires a certificate; set Certificates in the local tls.Config",
	"tls: bad certificate":                "the peer rejected the local certificate",
	alertExpired:                          "the peer rejected the local certificate as expired or not yet valid",
	"tls: unknown certificate authority":  "the peer does not trust the authority of the local certificate; add it to the peer's ClientCAs",
	"tls: record overflow":                "the peer rejected the local certificate chain as too long; use fewer intermediate certificates or smaller keys",
	"tls: error decrypting message":       "the peer found that the local private key does not match the certificate",
	"tls: protocol version not supported": "the peer does not support TLS 1.3",
	"tls: no application protocol":        "the peer uses TLS, but not the protocol " + ALPN,
}

// Innermost returns the text of err without the addresses and calls that package net puts in front
// of it.
func Innermost(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}

// Reason returns the reason why a TLS connection failed, and the remedy.
func Reason(err error) string {
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
	case alerts[text] != "":
		return alerts[text] + " (" + strings.TrimPrefix(text, "tls: ") + ")"
	case !errors.As(err, &unverified):
		return text
	case errors.As(err, &unknown):
		return "the peer's certificate is signed by an unknown authority; add it to RootCAs in the local tls.Config (" +
			unverified.UnverifiedCertificates[0].Issuer.String() + ")"
	case errors.As(err, &host):
		return "the peer's certificate is for another host; look the peer up by a name in the certificate, or set ServerName in the local tls.Config (" +
			inet.NotFor(host.Certificate, host.Host) + ")"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the peer's certificate has expired or is not yet valid (" + carrier.Describe(invalid.Cert) + ", for " + inet.NamesIn(invalid.Cert) + ": " + invalid.Detail + ")"
	}
	return "invalid certificate of the peer: " + unverified.Err.Error()
}
