package qs_test

import (
	"context"
	"crypto/tls"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// testRestart checks the view of a client of a server that ends in order while no goroutine drives
// the client: the next call runs at the new server if it is repeated, and else has the fate NotRun.
// served returns a server at addr, the same one for each addr after the first, and a function that
// ends it.
func testRestart(t testing.TB, open func(policy ...qs.Interceptor) *qs.Node, served func(addr string, handle func(n *qs.Node)) (na.Addr, func())) {
	const calls = 20 // enough that udp has measured the round trip, and gives up a silent peer sooner
	for _, policy := range [][]qs.Interceptor{nil, {qs.Retry(qs.RetryPolicy{})}} {
		ran := map[string]int{}
		handle := func(name string) func(n *qs.Node) {
			return func(n *qs.Node) {
				once.Handle(n, func(context.Context, string) (string, error) { ran[name]++; return name, nil })
			}
		}
		addr, stop := served("", handle("old"))
		c := open(policy...)
		ctx, cancel := c.WithTimeout(context.Background(), time.Minute)
		to, err := c.Peer(ctx, addr.String())
		require.NoError(t, err)
		var got string
		for range calls {
			got, err = once.Call(ctx, to, "")
			require.NoError(t, err)
			require.Equal(t, "old", got)
		}
		stop()
		_, stop = served(addr.String(), handle("new"))
		got, err = once.Call(ctx, to, "")
		if policy == nil {
			require.ErrorIs(t, err, qs.ErrPeerLost)
			require.Equal(t, qs.NotRun, qs.FateOf(err), "%v", err)
			require.Equal(t, map[string]int{"old": calls}, ran)
		} else {
			require.NoError(t, err)
			require.Equal(t, "new", got)
			require.Equal(t, map[string]int{"old": calls, "new": 1}, ran)
		}
		cancel()
		require.NoError(t, c.Close())
		stop()
	}
}

// TestOrderlyRestart is restarted, over every transport of real machines.
func TestOrderlyRestart(t *testing.T) {
	t.Parallel()
	cert := testcert.New()
	pool := testcert.Pool(cert)
	tls := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool}
	for name, tr := range map[string]struct {
		addr           string
		client, server hg.Plugin // the client is driven by its calls only
	}{
		"tcp":          {"tcp://127.0.0.1:0", tcp.New(tcp.Options{Unassisted: true}), tcp.New(tcp.Options{})},
		"tcp-portable": {"tcp://127.0.0.1:0", tcp.New(tcp.Options{Unassisted: true}), tcp.New(tcp.Options{Portable: true})},
		"tls":          {"tcp://127.0.0.1:0", tcp.New(tcp.Options{Unassisted: true, TLS: tls}), tcp.New(tcp.Options{TLS: tls})},
		"udp":          {"udp://127.0.0.1:0", udp.New(udp.Options{Unassisted: true}), udp.New(udp.Options{})},
		"sm":           {"sm://*", sm.New(sm.Options{Unassisted: true}), sm.New(sm.Options{})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm needs Linux")
			}
			with := func(p hg.Plugin, more ...qs.Interceptor) qs.Config {
				cfg := qs.Config{ClientInterceptors: more}
				cfg.HG.NA.Plugins = []hg.Plugin{p}
				return cfg
			}
			scheme, _, _ := strings.Cut(tr.addr, "://")
			testRestart(t, func(policy ...qs.Interceptor) *qs.Node {
				n, err := qs.Open(scheme+"://", with(tr.client, policy...))
				require.NoError(t, err)
				return n
			}, func(addr string, handle func(n *qs.Node)) (na.Addr, func()) {
				if addr == "" {
					addr = tr.addr
				}
				cfg := with(tr.server)
				cfg.ShutdownTimeout = 100 * time.Millisecond // the client confirms nothing while it is not driven
				n, err := qs.Open(addr, cfg)
				require.NoError(t, err)
				handle(n)
				ctx, stop := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() { ended <- n.Serve(ctx) }()
				return n.Addr(), func() {
					stop()
					<-ended
					require.NoError(t, n.Close())
				}
			})
		})
	}
}

// TestOrderlyRestartSim is restarted, in the simulator.
func TestOrderlyRestartSim(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1, NoAssist: true})
	defer w.Close()
	w.Go("client", func() {
		testRestart(t, func(policy ...qs.Interceptor) *qs.Node {
			return simulated(t, w, "sim://", qs.Config{ClientInterceptors: policy})
		}, func(_ string, handle func(n *qs.Node)) (na.Addr, func()) {
			ctx, stop := context.WithCancel(context.Background())
			var at na.Addr
			over := false
			w.Go("server", func() {
				n := simulated(t, w, "sim://server", qs.Config{})
				handle(n)
				at = n.Addr()
				_ = n.Serve(ctx)
				require.NoError(t, n.Close())
				over = true
			})
			w.Sleep(10 * time.Millisecond)
			return at, func() {
				stop()
				for !over {
					w.Sleep(time.Millisecond)
				}
			}
		})
	})
	require.NoError(t, w.Run(time.Hour))
}
