package debug_test

import (
	"context"
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// TestDenied checks that the page counts requests that were denied, and TLS handshakes that failed.
func TestDenied(t *testing.T) {
	t.Parallel()
	ask := qs.Define[int, int]("denied/ask")
	own, known, unknown := testcert.New(), testcert.New(), testcert.New()
	both := func(mine, other tls.Certificate) *tls.Config {
		pool := testcert.Pool(other)
		return &tls.Config{Certificates: []tls.Certificate{mine}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}
	for _, scheme := range []string{"tcp", "udp"} {
		n, err := qs.Open(scheme+"://127.0.0.1:0", qs.Config{TLS: both(own, known), Authorize: func(context.Context, *qs.Call) error {
			return qs.Errorf(qs.ErrDenied, "not today")
		}})
		require.NoError(t, err)
		ask.Handle(n, func(_ context.Context, in int) (int, error) { return in, nil })
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- n.Serve(ctx) }()
		for _, cert := range []tls.Certificate{known, unknown} {
			c, err := qs.Open(scheme+"://", qs.Config{TLS: both(cert, own)})
			require.NoError(t, err)
			to, err := c.Peer(ctx, n.Addr().String())
			require.NoError(t, err)
			_, err = ask.Call(ctx, to, 1)
			require.Error(t, err)
			require.NoError(t, c.Close())
		}
		page := debug.New(n)
		var contexts []debug.Context
		for { // the server may learn of the handshake's end after its client
			contexts = getSnapshot(t, page, "").Contexts
			if contexts[0].HandshakesFailed > 0 || t.Context().Err() != nil {
				break
			}
		}
		require.Equal(t, int64(1), contexts[0].Denied, scheme)
		require.Positive(t, contexts[0].HandshakesFailed, scheme) // a client may dial again
		_, html := getPage(t, page, "GET", "/", "text/html")
		require.Regexp(t, `1 requests denied, [1-9]\d* TLS handshakes failed`, html)
		stop()
		require.NoError(t, <-served)
	}
}
