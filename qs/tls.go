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

// LoadTLS loads PEM files and returns a configuration for Config.TLS that is suitable for clients
// and servers. The arguments are file names. The following combinations are valid:
//
//   - cert, key and ca: mutual TLS. cert and key are presented to peers, and a peer's certificate
//     must be signed by an authority in ca.
//   - cert and key: only servers are authenticated, and clients need no certificate. The
//     certificate of a dialed peer must be trusted by the system.
//   - ca: for a client without a certificate. Its servers must not require one.
//   - none: LoadTLS returns nil, which means no TLS.
//
// A server's certificate must be valid for the host in its address, which is a DNS name or an IP
// address.
//
// The files are reloaded when they change, and new connections use the new contents. Sessions are
// closed when their certificates expire (see Config.CertificateGrace) and are then reestablished.
// If the new files are invalid, the last valid ones stay in use, and an error is logged to the
// Logger of the Node most recently opened with the configuration. To change authorities, list both
// the old and the new ones in ca until every certificate is signed by a new one.
//
// The error matches ErrInvalid if only one of cert and key is given, or if ca contains no
// certificate.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	if cert == "" && key == "" && ca == "" {
		return nil, nil
	}
	if (cert == "") != (key == "") {
		return nil, fmt.Errorf("qs: TLS: cert is %q and key is %q, want both or neither: %w",
			cert, key, hg.ErrInvalid)
	}
	f := &tlsFiles{}
	// f does not cache sessions. It is stored in ClientSessionCache so that the transports and Open
	// can find it, even in a clone of cfg.
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

// tlsFiles holds the certificates loaded by LoadTLS: a certificate with its key, authorities, or
// both. It reloads the files when they are replaced.
type tlsFiles struct {
	first *x509.CertPool // pool of authorities that LoadTLS stored in the configuration

	mu      sync.Mutex   // guards the fields below; held while files are read
	log     *slog.Logger // logger of the Node that was opened last; nil means slog.Default()
	pair    watchedFiles
	cert    *tls.Certificate
	ca      watchedFiles
	trusted *x509.CertPool
}

// watchedFiles is a set of files that are reloaded together when one of them has changed.
type watchedFiles struct {
	what     string // description of the files in error messages
	paths    []string
	lastInfo []os.FileInfo // state of the files when they were last read, even if reading failed
	err      error         // error of the last read, or nil
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

// reload reads the files if they have changed. It returns an error if their new contents are
// invalid.
func (w *watchedFiles) reload() error {
	seen, err := w.statFiles()
	if err != nil || slices.EqualFunc(seen, w.lastInfo, isSameFile) {
		return nil // either a file is currently being replaced, or none has changed
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

// refresh reloads the files of w if they have changed, and logs an error if they are invalid. what
// is the subject of the log message.
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

// Limits on the time to wait for the second file of a pair.
const (
	// maxPairWait is the maximum time to wait for the second file of a pair, which is polled for
	// every pairPollInterval.
	maxPairWait      = time.Second
	pairPollInterval = 5 * time.Millisecond
)

// certificate returns the certificate in the files, or the last valid one if the files are invalid.
// It is called in the goroutine of each handshake. Because a certificate and its key cannot be
// replaced atomically, certificate waits up to maxPairWait for a valid pair if the last valid
// certificate has expired.
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

// Current returns the current authorities, or the last valid ones, if pool is the pool that LoadTLS
// stored in the configuration. Otherwise it returns pool. The transports call it for each
// handshake, through secure.Authorities.
func (f *tlsFiles) Current(pool *x509.CertPool) *x509.CertPool {
	if pool == nil || pool != f.first {
		return pool
	}
	f.refresh(&f.ca, "the file of authorities was")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trusted
}

// Get implements tls.ClientSessionCache. It always returns false, since sessions are not resumed.
func (f *tlsFiles) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

// Put implements tls.ClientSessionCache. It does nothing.
func (f *tlsFiles) Put(string, *tls.ClientSessionState) {}

// setTLSLogger sets the logger of a configuration returned by LoadTLS. It has no effect on other
// configurations.
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

// readPairLocked reads a certificate and its key. The caller must hold f.mu, except in LoadTLS,
// where f is not yet shared.
func (f *tlsFiles) readPairLocked(certFile, keyFile string) error {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("cannot load cert %s and key %s: %w", certFile, keyFile, err)
	}
	f.cert = &cert
	return nil
}

// readAuthoritiesLocked reads the authorities. The caller must hold f.mu, except in LoadTLS, where
// f is not yet shared.
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

// isSameFile reports whether a file was neither replaced nor modified between a and b.
func isSameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
