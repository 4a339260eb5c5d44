package rendezvous_test

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
)

// certificate is one for the loopback address, for server and clients.
var certificate = sync.OnceValue(testcert.New)

func newPool(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	return certificate(), testcert.Pool(certificate())
}

func serverTLS(t *testing.T) *tls.Config {
	c, p := newPool(t)
	return &tls.Config{Certificates: []tls.Certificate{c}, ClientCAs: p, ClientAuth: tls.RequireAndVerifyClientCert}
}

func clientTLS(t *testing.T) *tls.Config {
	c, p := newPool(t)
	return &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: p}
}
