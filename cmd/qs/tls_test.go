package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// writeCert writes a certificate for 127.0.0.1 that is its own authority, and its key.
func writeCert(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// TestTLS: every command that dials or serves takes the same three flags.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := writeCert(t, t.TempDir())
	flags := []string{"-cert", cert, "-key", key, "-ca", cert}
	with := func(command string, args ...string) []string {
		return append(append([]string{command}, flags...), args...)
	}
	s := serveFiles(t, "", flags...)
	run(t, 0, with("ping", "-count", "2", "-interval", "0", s.addr)...)
	require.Contains(t, run(t, 0, with("rpcs", s.addr)...).out.String(), hg.PingRPC)
	require.Equal(t, "x", run(t, 0, with("call", "-raw", s.addr, hg.PingRPC, "x")...).out.String())
	run(t, 0, with("top", "-n", "1", s.addr)...)
	run(t, 0, with("ger", s.addr)...)
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(1000))
	run(t, 0, with("cp", src, s.addr+"/f")...)
	requireFile(t, src, filepath.Join(s.root, "f"))
	run(t, 0, with("perf", "-time", "1ms", "-inflight", "1", "-bulk", "1000")...)                     // starts a target
	run(t, 0, with("perf", "-op", "idle", "-peers", "2", "-time", "1ms")...)                          // a swarm
	run(t, 0, with("soak", "-time", "50ms", "-targets", "2", "-faults", "none", "-inflight", "2")...) // several

	require.Regexp(t, `cannot be reached.* TLS`, run(t, 1, "ping", "-count", "1", s.addr).errors.String())
	require.Regexp(t, `cannot be reached.*certificate`, run(t, 1, "ping", "-count", "1", "-ca", cert, s.addr).errors.String())
}

// TestTLSForAll: without -ca a target takes origins that have no certificate.
func TestTLSForAll(t *testing.T) {
	t.Parallel()
	cert, key := writeCert(t, t.TempDir())
	s := serve(t, "", "-cert", cert, "-key", key)
	run(t, 0, "ping", "-count", "1", "-ca", cert, s.addr)
}

func TestTLSMistakes(t *testing.T) {
	t.Parallel()
	cert, key := writeCert(t, t.TempDir())
	_, other := writeCert(t, t.TempDir())
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, `^qs ping: -cert needs -key`, []string{"-cert", cert}},
		{2, `^qs ping: -key needs -cert`, []string{"-key", key, "-ca", cert}},
		{1, `^qs ping: -cert cannot be read: open no-such-file: `, []string{"-cert", "no-such-file", "-key", key}},
		{1, `^qs ping: -key cannot be read: open no-such-file: `, []string{"-cert", cert, "-key", "no-such-file"}},
		{1, `^qs ping: -ca cannot be read: open no-such-file: `, []string{"-ca", "no-such-file"}},
		{1, `^qs ping: -ca ` + key + ` holds no certificate in PEM`, []string{"-ca", key}},
		{1, `^qs ping: -cert ` + cert + ` and -key ` + other + ` are no certificate with its key: `, []string{"-cert", cert, "-key", other}},
	} {
		q := run(t, c.code, append(append([]string{"ping"}, c.args...), "tcp://127.0.0.1:1")...)
		require.Regexp(t, c.want, q.errors.String())
	}
}
