package qs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestPeerIdentity checks that a client has the identity of its server as soon as there is a
// connection: the transport, and by TLS its verified certificate. Before that, and after the server
// has exited, it has none.
func TestPeerIdentity(t *testing.T) {
	t.Parallel()
	cert := testcert.New()
	for _, secure := range []bool{false, true} {
		cfg := qs.Config{}
		if secure {
			cfg.TLS = trustingConfig(cert)
		}
		s := server(t, cfg, func(n *qs.Node) {
			whoami.Handle(n, func(context.Context, struct{}) (string, error) { return "", nil })
		})
		c := open(t, "tcp://", cfg)
		to := peer(t, c, s.Addr().String())
		require.Same(t, c, to.Node())
		_, ok := to.Identity()
		require.False(t, ok)
		_, err := to.Ping(testContext(t))
		require.NoError(t, err)
		id, ok := to.Identity()
		require.True(t, ok)
		require.Equal(t, "tcp", id.Transport)
		require.Equal(t, secure, id.Secure)
		require.Equal(t, secure, len(id.Certificates) > 0)
	}
	_, ok := qs.Peer{}.Identity()
	require.False(t, ok)
	require.Nil(t, qs.Peer{}.Node())
}
