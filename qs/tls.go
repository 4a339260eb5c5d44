package qs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// LoadTLS returns a configuration for Config.TLS from PEM files:
//
//   - cert, key and ca: both sides prove who they are. cert and key are shown to peers, and a peer's certificate must be signed by
//     an authority in ca.
//   - cert and key: servers prove who they are, and who connects needs no certificate. Peers that are dialled must have one that
//     the system trusts.
//   - ca: a client that has no certificate, for servers that ask for none.
//   - three empty names: nil, no TLS.
//
// The certificate of a server must carry the host by which it was looked up: a DNS name, or the IP address where an address has
// one. Certificate and key are read anew when the files change: connections that are made from then on use them. Files that
// cannot be used then are logged, by the Logger of the Node that was opened last with the configuration, and the last ones stay in use. Of ca only the first content counts: to change authorities,
// have the file name old and new ones before the restart.
//
// The error matches ErrInvalid when only one of cert and key is given, or ca holds no certificate.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	if cert == "" && key == "" && ca == "" {
		return nil, nil
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("qs: TLS: cert is %q and key %q: want files for both, or for neither: %w", cert, key, hg.ErrInvalid)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if cert != "" {
		own := &keyPair{certFile: cert, keyFile: key}
		if err := own.load(); err != nil {
			return nil, fmt.Errorf("qs: TLS: %w", err)
		}
		cfg.ClientSessionCache = own // there is none: Open finds own here, also in a Clone
		cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.current(), nil }
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.current(), nil }
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("qs: TLS: ca cannot be read: %w", err)
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("qs: TLS: ca %s holds no certificate in PEM: %w", ca, hg.ErrInvalid)
		}
		cfg.RootCAs = trusted
		if cert != "" {
			cfg.ClientCAs, cfg.ClientAuth = trusted, tls.RequireAndVerifyClientCert
		}
	}
	return cfg, nil
}

// A keyPair is a certificate with its key, from two files that may be replaced.
type keyPair struct {
	certFile, keyFile string

	mu   sync.Mutex     // guards the fields below
	log  *slog.Logger   // of the Node that was opened last; nil: slog.Default()
	seen [2]os.FileInfo // what was read, or tried, last
	cert *tls.Certificate
}

// load reads the files.
func (k *keyPair) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := k.look()
	if err != nil {
		return fmt.Errorf("cert and key cannot be read: %w", err)
	}
	return k.read(seen)
}

// current returns the certificate in the files, or the last that could be used.
func (k *keyPair) current() *tls.Certificate {
	cert, log, err := k.refresh()
	if err != nil {
		if log == nil {
			log = slog.Default()
		}
		log.Warn("TLS: the certificate was replaced by one that cannot be used; the last one stays", "error", err)
	}
	return cert
}

// refresh reads files that have changed. The error is for log: why they cannot be used.
func (k *keyPair) refresh() (cert *tls.Certificate, log *slog.Logger, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := k.look()
	if err != nil || same(seen[0], k.seen[0]) && same(seen[1], k.seen[1]) {
		return k.cert, nil, nil // one of them is being replaced, or nothing is new
	}
	err = k.read(seen)
	return k.cert, k.log, err
}

// Get implements tls.ClientSessionCache: sessions are not resumed.
func (k *keyPair) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

// Put implements tls.ClientSessionCache.
func (k *keyPair) Put(string, *tls.ClientSessionState) {}

// setTLSLogger has a configuration that LoadTLS has made log by log.
func setTLSLogger(cfg *tls.Config, log *slog.Logger) {
	if cfg == nil {
		return
	}
	if k, ok := cfg.ClientSessionCache.(*keyPair); ok {
		k.mu.Lock()
		k.log = log
		k.mu.Unlock()
	}
}

// look returns what the files are now. Locked.
func (k *keyPair) look() (seen [2]os.FileInfo, err error) {
	if seen[0], err = os.Stat(k.certFile); err == nil {
		seen[1], err = os.Stat(k.keyFile)
	}
	return seen, err
}

// read uses what the files hold, whose state was seen before. Locked.
func (k *keyPair) read(seen [2]os.FileInfo) error {
	k.seen = seen
	cert, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return fmt.Errorf("cert %s and key %s cannot be used: %w", k.certFile, k.keyFile, err)
	}
	k.cert = &cert
	return nil
}

// same reports whether a file has not been replaced or written to.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
