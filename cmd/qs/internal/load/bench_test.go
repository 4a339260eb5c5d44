package load

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const benchInFlight = 50

// newEcho returns a target whose handler runs on the goroutine that drives it, so that little of what is measured is its own cost.
func newEcho(b *testing.B) *target {
	s := newTarget(b, nil)
	qs.Define[string, string]("echo", qs.Inline()).Handle(s.node, func(_ context.Context, in string) (string, error) { return in, nil })
	return s
}

// BenchmarkRun measures this package with 50 calls in flight. BenchmarkCallbacks is the minimum
// that a program can do with callbacks: the difference is the cost of the tool.
func BenchmarkRun(b *testing.B) {
	cfg := newConfig(b, newEcho(b))
	cfg.Method, cfg.Concurrency, cfg.Count = "echo", benchInFlight, int64(b.N)
	b.ResetTimer()
	res, err := Run(b.Context(), cfg)
	require.NoError(b, err)
	require.Equal(b, int64(b.N), res.Succeeded)
	b.ReportMetric(res.Latency.P50, "p50-µs")
}

func BenchmarkCallbacks(b *testing.B) {
	cfg := newConfig(b, newEcho(b))
	id, err := cfg.Class.Register("echo", nil)
	require.NoError(b, err)
	hctx, err := cfg.Class.NewContext()
	require.NoError(b, err)
	defer (&worker{hctx: hctx}).close()
	addr, err := hctx.LookupWait(b.Context(), cfg.Nodes[0])
	require.NoError(b, err)
	sent, ended := 0, 0
	var again hg.ForwardFunc
	again = func(h *hg.Handle, err error) {
		if err != nil {
			b.Error(err)
		}
		if ended++; sent < b.N {
			sent++
			_ = h.ForwardRaw(cfg.Inputs[0], again)
		}
	}
	b.ResetTimer()
	for range min(benchInFlight, b.N) {
		h, err := hctx.Create(addr, id)
		require.NoError(b, err)
		defer h.Close()
		sent++
		require.NoError(b, h.ForwardRaw(cfg.Inputs[0], again))
	}
	for ended < b.N {
		_ = hctx.Progress(-1)
		hctx.Trigger(0)
	}
}

func BenchmarkTypedCalls(b *testing.B) {
	s := newEcho(b)
	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(b, err)
	defer node.Close()
	peer, err := node.Peer(b.Context(), s.addr())
	require.NoError(b, err)
	echo := qs.Define[string, string]("echo")
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for range benchInFlight {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := echo.Call(b.Context(), peer, "hello"); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
}
