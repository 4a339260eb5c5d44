package tcp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pool.AddCert(a.cert)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// issue signs a certificate for 127.0.0.1 and for both roles, after change has modified it.
func (a *authority) issue(name string, change func(c *x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key := newKey(a.t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// under returns an authority whose certificate a has signed.
func (a *authority) under(name string) *authority {
	a.t.Helper()
	c := a.issue(name, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		c.IPAddresses, c.ExtKeyUsage = nil, nil
	})
	return &authority{t: a.t, cert: c.Leaf, key: c.PrivateKey.(*ecdsa.PrivateKey)}
}

// withCertificates returns c with further certificates to be sent after it.
func withCertificates(c tls.Certificate, more ...*x509.Certificate) tls.Certificate {
	c.Certificate = slices.Clone(c.Certificate)
	for _, m := range more {
		c.Certificate = append(c.Certificate, m.Raw)
	}
	return c
}

// mutual returns a configuration in which both sides present a certificate of the authority, and
// require one.
func (a *authority) mutual(own ...tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: own, RootCAs: a.pool, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// mutualTLS is a configuration for both roles with one certificate.
func mutualTLS(t testing.TB) *tls.Config {
	t.Helper()
	a := newAuthority(t, "cluster")
	return a.mutual(a.issue("node", nil))
}
