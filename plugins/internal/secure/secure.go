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

// ALPN is the protocol that both sides must name in the TLS handshake.
const ALPN = "quicksilver/1"

// What a peer may send before the TLS handshake has ended, in bytes: its first message and its certificates, when it connected
// to us; all that it says, when we dialled it. Package tls needs several times as much memory for it.
const (
	MaxClientHello = 4 << 10
	MaxClientProof = 6 << 10
	MaxServerProof = 64 << 10
)

// Looks reports whether functions of the user's look at certificates.
func Looks(cfg *tls.Config) bool {
	return cfg.VerifyConnection != nil || cfg.VerifyPeerCertificate != nil
}

// Authorities is implemented by the ClientSessionCache of a configuration whose authorities may be replaced: package qs makes such. No
// session is ever resumed here, so the field has no other use; a Clone keeps it.
type Authorities interface {
	// Current returns what is to be used now in the place of pool, which may be pool itself. It may read files.
	Current(pool *x509.CertPool) *x509.CertPool
}

// Forced returns a copy of cfg for one handshake, with the authorities that are trusted now, that speaks nothing but TLS 1.3 and our protocol, and that has every connection prove anew
// who it is. chosen is called with what GetConfigForClient returned, if anything.
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

// IsCurrent reports whether forced, which Forced has made of cfg, has the authorities that are trusted now.
func IsCurrent(cfg, forced *tls.Config) bool {
	a, ok := cfg.ClientSessionCache.(Authorities)
	return !ok || a.Current(cfg.RootCAs) == forced.RootCAs && a.Current(cfg.ClientCAs) == forced.ClientCAs
}

// Validate says what is wrong with the TLS of a transport's options; empty when nothing is.
func Validate(cfg *tls.Config) (want string) {
	if cfg != nil && cfg.MaxVersion != 0 && cfg.MaxVersion < tls.VersionTLS13 {
		return "a MaxVersion of TLS 1.3, or 0"
	}
	return ""
}

// MayListen reports whether there is a certificate to show to those who connect.
func MayListen(scheme string, cfg *tls.Config) error {
	if len(cfg.Certificates) > 0 || cfg.GetCertificate != nil || cfg.GetConfigForClient != nil {
		return nil
	}
	return codes.WithText(codes.ErrInvalid, scheme+": options: TLS has no certificate, want Certificates or GetCertificate to listen")
}

// Client is the configuration for dialling host at name, or the address in name where host is empty.
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

// An Own is the certificate that this side has shown in a handshake, as the one that dials; nil before, or for none. It is used by one handshake.
type Own struct{ leaf *x509.Certificate }

// Note returns cfg, or a copy of it, that notes in o what it shows.
func (o *Own) Note(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	choose, all := cfg.GetClientCertificate, cfg.Certificates
	cfg.GetClientCertificate = func(r *tls.CertificateRequestInfo) (c *tls.Certificate, err error) {
		if choose != nil {
			c, err = choose(r)
		} else { // as package tls chooses
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
				o.leaf, _ = x509.ParseCertificate(c.Certificate[0]) // else package tls says what is wrong with it
			}
		}
		return c, err
	}
	return cfg
}

// Wrap returns an error of the connection, with the certificate if the peer has refused it because it has expired: Reason says which it is. o may be nil.
func (o *Own) Wrap(err error) error {
	if err == nil || o == nil || o.leaf == nil || Innermost(err) != alertExpired {
		return err
	}
	return &expiredError{err, o.leaf}
}

// An expiredError says that the peer takes the certificate of this side for expired.
type expiredError struct {
	error
	own *x509.Certificate
}

// Unwrap returns what the peer has said.
func (e *expiredError) Unwrap() error { return e.error }

// ByHost reports whether peers must prove to be the hosts that they were looked up by. cfg may be nil.
func ByHost(cfg *tls.Config) bool {
	return cfg != nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify
}

// A Proof is what a handshake has proven of the peer.
type Proof struct {
	Who   carrier.Proof
	cfg   *tls.Config
	chain []*x509.Certificate // as the peer sent it
	at    time.Time           // by the user's clock; zero when there is none
}

// Prove returns it. looked: functions of the user's have looked at certificates.
func Prove(cfg *tls.Config, state *tls.ConnectionState, looked bool) *Proof {
	p := &Proof{Who: carrier.Proof{Secure: true}, cfg: cfg, chain: state.PeerCertificates}
	switch { // what was only asked for, or sent, proves nothing
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

// clock returns the clock by which certificates are judged.
func clock(cfg *tls.Config) func() time.Time {
	if cfg.Time != nil {
		return cfg.Time
	}
	return time.Now
}

// WallClock returns that of the network of a transport; nil where there is no TLS. cfg may be nil.
func WallClock(cfg *tls.Config) func() time.Time {
	if cfg == nil {
		return nil
	}
	return clock(cfg)
}

// expiry is when the last of the chains that were verified expires, each with the first of its certificates; without one when shown does, which
// functions of the user's have accepted. What had expired before, and was accepted all the same, never does.
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
	return last.Add(time.Nanosecond) // a certificate is valid at its NotAfter
}

// SpeaksFor reports whether the peer, which connected to us, may be taken for the one that listens at name: it has proven
// what it would have to prove if we dialled it there.
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
	for _, cert := range p.chain[1:] { // another path may be needed than for connecting
		opts.Intermediates.AddCert(cert)
	}
	_, err := p.Who.Certificates[0].Verify(opts)
	return err == nil
}

// BothOrNone names what a program sets: the Config of package qs, or else what it makes the plugin with.
func BothOrNone(scheme string) string {
	return "set Config.TLS, or " + scheme + ".Options.TLS below package qs, on both sides, or on neither"
}

// WantsPlain is told to a TLS client by who speaks none, WantsTLS to a plain one by who speaks nothing else.
func WantsPlain(scheme string) error {
	return codes.WithText(codes.ErrProtocol, "the peer speaks TLS, this side does not: "+BothOrNone(scheme))
}

// WantsTLS is the other way round.
func WantsTLS(scheme string) error {
	return codes.WithText(codes.ErrProtocol, "TLS is required here: "+BothOrNone(scheme))
}

// Errors of a handshake.
var (
	ErrALPN     = errors.New("the peer speaks TLS but not " + ALPN + " inside it: another program is there")
	ErrTooMuch  = errors.New("the peer's certificates are longer than this side takes before it knows who the peer is: " + shorten)
	ErrPanicked = errors.New("a function of the tls.Config panicked here: see the log")
)

const shorten = "have the peer show fewer intermediate certificates, or ones with smaller keys"

// Overflow is the alert of who has been told too much: record_overflow.
const Overflow = 22

// OwnTooLong is the error of who has shown n bytes of certificates to a listener that takes limit.
func OwnTooLong(n, limit int) error {
	return fmt.Errorf("the certificates of this side are too long: a listener takes %d bytes before it knows who connects, and these came to %d: "+
		"show fewer intermediate certificates, or ones with smaller keys", limit, n)
}

// alertExpired is what a peer says of a certificate that is not valid at this time.
const alertExpired = "tls: expired certificate"

// alerts say what to do about what a peer said as it ended a handshake.
var alerts = map[string]string{
	"tls: certificate required":           "the peer wants a certificate: set Certificates in the tls.Config of this side",
	"tls: bad certificate":                "the peer does not accept the certificate of this side",
	alertExpired:                          "the certificate of this side has expired, or is not valid yet, says the peer: renew it",
	"tls: unknown certificate authority":  "the peer does not know who signed the certificate of this side: add the authority to ClientCAs there",
	"tls: record overflow":                "the peer takes no certificates as long as those of this side: show fewer intermediate certificates, or ones with smaller keys",
	"tls: error decrypting message":       "the private key of this side is not that of its certificate, says the peer",
	"tls: protocol version not supported": "the peer has no TLS 1.3 in common with this side, which takes nothing older",
	"tls: no application protocol":        "the peer speaks TLS but not " + ALPN + " inside it: another program is there",
}

// Innermost is the innermost text of err: without the names of addresses and calls that package net puts before it.
func Innermost(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}

// Reason says why TLS came to an end, and what to do about it.
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
		return "the peer's certificate has expired, or is not valid yet: renew it there (" + carrier.Describe(invalid.Cert) + ", for " + inet.NamesIn(invalid.Cert) + ": " + invalid.Detail + ")"
	}
	return "the peer's certificate is not accepted: " + unverified.Err.Error()
}
