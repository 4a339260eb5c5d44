package qs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// LoadTLS returns a configuration for Config.TLS, for client and server alike, from PEM files:
//
//   - cert, key and ca: mutual TLS. cert and key are presented to peers, and a peer's certificate
//     must be signed by an authority in ca.
//   - cert and key: only servers are authenticated; clients need no certificate. A dialed peer must
//     have a certificate that the system trusts.
//   - ca: a client without a certificate, for servers that do not require one.
//   - three empty names: nil, no TLS.
//
// The certificate of a server must contain the host of its address: a DNS name or an IP address.
//
// All three files are reloaded when they change. New connections use the new contents. Sessions are
// closed when their certificates expire (Config.CertificateGrace), and then reconnect. If the new
// files are invalid, the last valid ones stay in use, and the Logger of the last Node that was
// opened with the configuration logs the error. To change authorities, list the old and the new
// ones in ca until every certificate is signed by a new one.
//
// The error matches ErrInvalid when only one of cert and key is given, or ca holds no certificate.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	if cert == "" && key == "" && ca == "" {
		return nil, nil
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("qs: TLS: cert is %q and key is %q, want both or neither: %w",
			cert, key, hg.ErrInvalid)
	}
	f := &tlsFiles{}
	// f caches no sessions. The field is where the transports and Open find f, also in a Clone of
	// cfg.
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, ClientSessionCache: f}
	if cert != "" {
		f.pair.what, f.pair.paths = "cert and key", []string{cert, key}
		f.pair.read = func() error { return f.readPairLocked(cert, key) }
		if err := f.pair.load(); err != nil {
			return nil, fmt.Errorf("qs: TLS: %w", err)
		}
		cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate,
			error) {
			return f.certificate(), nil
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate,
			error) {
			return f.certificate(), nil
		}
	}
	if ca != "" {
		f.ca.what, f.ca.paths = "ca", []string{ca}
		f.ca.read = func() error { return f.readAuthoritiesLocked(ca) }
		if err := f.ca.load(); err != nil {
			return nil, fmt.Errorf("qs: TLS: %w", err)
		}
		f.first, cfg.RootCAs = f.trusted, f.trusted
		if cert != "" {
			cfg.ClientCAs, cfg.ClientAuth = f.trusted, tls.RequireAndVerifyClientCert
		}
	}
	return cfg, nil
}

// tlsFiles holds the files of a configuration: a certificate with its key, and authorities. Either
// may be missing. The files may be replaced at any time.
type tlsFiles struct {
	first *x509.CertPool // the pool that LoadTLS has put into the configuration

	mu      sync.Mutex   // guards the fields below, and the reading of the files
	log     *slog.Logger // of the Node that was opened last; nil for slog.Default()
	pair    watchedFiles
	cert    *tls.Certificate
	ca      watchedFiles
	trusted *x509.CertPool
}

// watchedFiles are files that are read again when one of them has changed.
type watchedFiles struct {
	what     string // describes the files in an error
	paths    []string
	lastInfo []os.FileInfo // of the files when they were last read, also if that failed
	err      error         // error of the last read
	read     func() error
}

// load reads the files for the first time.
func (w *watchedFiles) load() error {
	seen, err := w.statFiles()
	if err != nil {
		return err
	}
	w.lastInfo = seen
	return w.read()
}

// reload reads the files if they have changed. The error says why they cannot be used.
func (w *watchedFiles) reload() error {
	seen, err := w.statFiles()
	if err != nil || slices.EqualFunc(seen, w.lastInfo, isSameFile) {
		return nil // a file is being replaced, or none has changed
	}
	w.lastInfo = seen
	w.err = w.read()
	return w.err
}

// statFiles returns the current os.FileInfo of each file.
func (w *watchedFiles) statFiles() (seen []os.FileInfo, err error) {
	for _, name := range w.paths {
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", w.what, err)
		}
		seen = append(seen, info)
	}
	return seen, nil
}

// refresh reads the files of w if they have changed. If they cannot be used, it logs the reason.
func (f *tlsFiles) refresh(w *watchedFiles, what string) {
	f.mu.Lock()
	err, log := w.reload(), f.log
	f.mu.Unlock()
	if err == nil {
		return
	}
	if log == nil {
		log = slog.Default()
	}
	log.Warn("TLS: "+what+" replaced by an invalid one; keeping the last valid one", "error", err)
}

// Waiting for the second file of a pair.
const (
	// maxPairWait limits the wait for the second file of a pair. pairPollInterval is the interval
	// of looking for it.
	maxPairWait      = time.Second
	pairPollInterval = 5 * time.Millisecond
)

// certificate returns the certificate in the files, or the last valid one. It is called for each
// handshake, on its goroutine. The two files of a certificate and its key are not replaced
// atomically. If the last certificate has expired, certificate waits for the second file, for
// maxPairWait at most.
func (f *tlsFiles) certificate() *tls.Certificate {
	for end := time.Now().Add(maxPairWait); ; {
		f.refresh(&f.pair, "the certificate was")
		f.mu.Lock()
		cert, err := f.cert, f.pair.err
		f.mu.Unlock()
		now := time.Now()
		if err == nil || now.Before(cert.Leaf.NotAfter) || now.After(end) {
			return cert
		}
		<-time.After(pairPollInterval)
	}
}

// Current returns the current authorities, or the last that could be used, in place of the pool
// that LoadTLS has put into the configuration. The transports call it for each handshake, through
// secure.Authorities.
func (f *tlsFiles) Current(pool *x509.CertPool) *x509.CertPool {
	if pool == nil || pool != f.first {
		return pool
	}
	f.refresh(&f.ca, "the file of authorities was")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trusted
}

// Get implements tls.ClientSessionCache. It finds nothing: sessions are not resumed.
func (f *tlsFiles) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

// Put implements tls.ClientSessionCache.
func (f *tlsFiles) Put(string, *tls.ClientSessionState) {}

// setTLSLogger sets the logger of a configuration that LoadTLS has made.
func setTLSLogger(cfg *tls.Config, log *slog.Logger) {
	if cfg == nil {
		return
	}
	if f, ok := cfg.ClientSessionCache.(*tlsFiles); ok {
		f.mu.Lock()
		f.log = log
		f.mu.Unlock()
	}
}

// readPairLocked reads a certificate and its key. The caller holds mu, except LoadTLS, which has
// the only reference.
func (f *tlsFiles) readPairLocked(certFile, keyFile string) error {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("cannot load cert %s and key %s: %w", certFile, keyFile, err)
	}
	f.cert = &cert
	return nil
}

// readAuthoritiesLocked reads authorities. The caller holds mu, except LoadTLS, which has the only
// reference.
func (f *tlsFiles) readAuthoritiesLocked(file string) error {
	pem, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read ca: %w", err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		return fmt.Errorf("ca %s contains no PEM certificate: %w", file, hg.ErrInvalid)
	}
	f.trusted = trusted
	return nil
}

// isSameFile reports whether a file was neither replaced nor written to between a and b.
func isSameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
