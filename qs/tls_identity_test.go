package qs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// trustingConfig returns a configuration that presents cert, and trusts the others and itself.
func trustingConfig(cert tls.Certificate, others ...tls.Certificate) *tls.Config {
	pool := testcert.Pool(cert)
	for _, c := range others {
		pool.AddCert(c.Leaf)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// TestCallerByName checks that a handler, an interceptor and the authorizer get the SPIFFE name of
// the caller. A request does not run if the authorizer denies it, or panics.
func TestCallerByName(t *testing.T) {
	t.Parallel()
	const shop, cron = "spiffe://test/ns/shop/sa/cart", "spiffe://test/ns/ops/sa/cron"
	named := func(id string) tls.Certificate {
		u, err := url.Parse(id)
		require.NoError(t, err)
		return testcert.NewWith(func(c *x509.Certificate) { c.URIs, c.DNSNames = []*url.URL{u}, []string{"pod-7"} })
	}
	certs := map[string]tls.Certificate{shop: named(shop), cron: named(cron)}
	own := testcert.New()
	var ran, panics atomic.Int32
	var between atomic.Value
	cfg := qs.Config{
		TLS: trustingConfig(own, certs[shop], certs[cron]),
		Authorize: func(_ context.Context, c *qs.Call) error {
			if panics.Load() > 0 {
				panic("a bug")
			}
			if who := c.Caller(); who.Secure && strings.HasPrefix(who.Name, "spiffe://test/ns/shop/") {
				return nil
			}
			return qs.Errorf(qs.ErrPermission, "%s is not of the shop", c.Caller().Name)
		},
		ServerInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			between.Store(c.Caller().Name)
			return next(ctx)
		}},
	}
	s := server(t, cfg, func(n *qs.Node) {
		whoami.Handle(n, func(ctx context.Context, _ struct{}) (string, error) {
			ran.Add(1)
			return qs.CallerFrom(ctx).Name + " " + strings.Join(qs.CallerFrom(ctx).URIs(), ","), nil
		})
	})
	call := func(id string) (string, error) {
		c := open(t, "tcp://", qs.Config{TLS: trustingConfig(certs[id], own)})
		return whoami.Call(testContext(t), peer(t, c, s.Addr().String()), struct{}{})
	}
	got, err := call(shop)
	require.NoError(t, err)
	require.Equal(t, shop+" "+shop, got)
	require.Equal(t, shop, between.Load())

	_, err = call(cron)
	require.ErrorIs(t, err, qs.ErrPermission)
	require.ErrorContains(t, err, cron+" is not of the shop")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	panics.Store(1)
	_, err = call(shop)
	require.ErrorIs(t, err, qs.ErrPermission)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	require.EqualValues(t, 1, ran.Load())
}

// TestCertificatesRefused checks that a peer that cannot be verified gets no byte of a request, and
// the error has the expected and the actual name.
func TestCertificatesRefused(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	client := testcert.New()
	for name, c := range map[string]struct {
		change func(*x509.Certificate)
		wanted string // instead of the address
		bare   bool   // the client has no certificate
		says   []string
	}{
		"another name": {func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"db.test"} }, "kv.test", false, []string{"db.test", "kv.test"}},
		"no address":   {func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"db.test"} }, "", false, []string{"127.0.0.1"}},
		"expired":      {func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "", false, []string{"expired"}},
		"none":         {func(*x509.Certificate) {}, "", true, []string{"requires a certificate"}},
	} {
		own := testcert.NewWith(c.change)
		s := server(t, qs.Config{TLS: trustingConfig(own, client)}, func(n *qs.Node) {
			whoami.Handle(n, func(context.Context, struct{}) (string, error) { ran.Add(1); return "", nil })
		})
		mine := trustingConfig(client, own)
		if mine.ServerName = c.wanted; c.bare {
			mine.Certificates = nil
		}
		_, err := whoami.Call(testContext(t), peer(t, open(t, "tcp://", qs.Config{TLS: mine}), s.Addr().String()), struct{}{})
		require.Equal(t, qs.NotRun, qs.FateOf(err), "%s: %v", name, err)
		for _, part := range c.says {
			require.ErrorContains(t, err, part, name)
		}
	}
	require.Zero(t, ran.Load())
}
