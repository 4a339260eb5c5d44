package qs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// testContext returns a context that bounds a test: on a busy machine, with the race detector, some minutes.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// oneAtATime leaves a test out under the race detector: the simulator runs one of its goroutines at a time, so that there is nothing to
// find, and it takes ten times longer.
func oneAtATime(t *testing.T) {
	t.Helper()
	if raceflag.Enabled && !long.On {
		t.Skip("one goroutine runs at a time: there are no races to be found")
	}
}

// open opens a node that is closed with the test.
func open(t testing.TB, addr string, cfg qs.Config) *qs.Node {
	t.Helper()
	n, err := qs.Open(addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// server is serverAt over tcp.
func server(t testing.TB, cfg qs.Config, register func(n *qs.Node)) *qs.Node {
	t.Helper()
	return serverAt(t, "tcp://127.0.0.1:0", cfg, register)
}

// serverAt opens a node at addr that serves what register registers until the test ends.
func serverAt(t testing.TB, addr string, cfg qs.Config, register func(n *qs.Node)) *qs.Node {
	t.Helper()
	n, err := qs.Open(addr, cfg)
	require.NoError(t, err)
	register(n)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, n.Close())
	})
	return n
}

func peer(t testing.TB, n *qs.Node, addrs ...string) qs.Peer {
	t.Helper()
	p, err := n.Peer(testContext(t), addrs...)
	require.NoError(t, err)
	return p
}

// pair returns a client's node and the peer that is a server with cfg.
func pair(t testing.TB, cfg qs.Config, register func(n *qs.Node)) (*qs.Node, qs.Peer) {
	t.Helper()
	s := server(t, cfg, register)
	c := open(t, "tcp://", qs.Config{})
	return c, peer(t, c, s.Addr().String())
}

// simulated opens a node in a world.
func simulated(t testing.TB, w *sim.World, addr string, cfg qs.Config) *qs.Node {
	t.Helper()
	cfg.HG.NA.Plugins = []hg.Plugin{w.Plugin()}
	n, err := qs.Open(addr, cfg)
	require.NoError(t, err)
	return n
}
