package transports

import (
	"crypto/tls"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
)

// mutualTLS is a configuration for both roles with one certificate, which is its own authority.
var mutualTLS = sync.OnceValue(func() *tls.Config {
	c := testcert.New()
	pool := testcert.Pool(c)
	return &tls.Config{
		Certificates: []tls.Certificate{c}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
})
