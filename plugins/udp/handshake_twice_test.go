package udp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"crypto/tls"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestOneHandshakeForADial checks that a dial over a path that is slower than the client's timer, and
// repeats packets, is one handshake for the server.
func TestOneHandshakeForADial(t *testing.T) {
	t.Parallel()
	c := testcert.New()
	cfg := &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: testcert.Pool(c)}
	dom, cdom := new(*domain), new(*domain)
	var ctxs []*na.Context
	for i, addr := range []string{"udp://127.0.0.1:0", "udp://"} {
		keep := []**domain{dom, cdom}[i]
		cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{plugin{opts: Options{TLS: cfg}, tune: func(d *domain) { *keep = d }}}})
		require.NoError(t, err)
		ctx, err := cls.NewContext()
		require.NoError(t, err)
		ctxs = append(ctxs, ctx)
	}
	r, err := relay.New((*dom).shared.at, relay.Rules{Latency: 150 * time.Millisecond, Repeat: 1})
	require.NoError(t, err)
	defer r.Close()
	to := na.MakeAddr("udp://"+r.Addr().String(), 0)
	done := false
	require.NoError(t, ctxs[1].SendUnexpected(ctxs[1].NewOp(func(_ *na.Op, r na.Result) { require.NoError(t, r.Err); done = true }), to, 1, []byte("x")))
	most := 0
	for end := time.Now().Add(10 * time.Second); !done; {
		require.Less(t, time.Now(), end)
		for _, x := range ctxs {
			_ = x.Progress(time.Millisecond)
			x.Trigger(0)
		}
		(*dom).guard.mu.Lock()
		most = max(most, len((*dom).guard.halfOpen))
		(*dom).guard.mu.Unlock()
	}
	require.Equal(t, 1, most)
	for _, x := range ctxs {
		x.Close()
	}
	for end := time.Now().Add(10 * time.Second); !ctxs[0].Closed() || !ctxs[1].Closed(); {
		require.Less(t, time.Now(), end)
		for _, x := range ctxs {
			_ = x.Progress(time.Millisecond)
			x.Trigger(0)
		}
	}
}
