package rendezvous_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificate is one for the loopback address, for server and clients.
var certificate = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
})

func pool(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	c, err := certificate()
	require.NoError(t, err)
	p := x509.NewCertPool()
	p.AddCert(c.Leaf)
	return c, p
}

func serverTLS(t *testing.T) *tls.Config {
	c, p := pool(t)
	return &tls.Config{Certificates: []tls.Certificate{c}, ClientCAs: p, ClientAuth: tls.RequireAndVerifyClientCert}
}

func clientTLS(t *testing.T) *tls.Config {
	c, p := pool(t)
	return &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: p}
}
