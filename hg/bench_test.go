package hg_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// BenchmarkFair runs 16 goroutines that Call a server of the same process with empty messages: it
// measures the time of the slowest of a hundred calls, and by how much the counts of the goroutines
// differ.
func BenchmarkFair(b *testing.B) {
	const callers = 16
	open := func(addr string) (*hg.Class, *hg.Context) {
		cls, err := hg.Open(addr, hg.Config{})
		require.NoError(b, err)
		hctx, err := cls.NewContext()
		require.NoError(b, err)
		return cls, hctx
	}
	server, sctx := open("tcp://127.0.0.1:0")
	_, err := server.Register("nothing", func(r hg.Request) error { return r.RespondRaw(nil, nil) })
	require.NoError(b, err)
	stop := make(chan struct{})
	var driver sync.WaitGroup
	driver.Go(func() {
		_ = sctx.Wait(b.Context(), func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
	})
	client, cctx := open("tcp://")
	id, err := client.Register("nothing", nil)
	require.NoError(b, err)
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, callers)
	var all sync.WaitGroup
	b.ResetTimer()
	for i := range took {
		all.Go(func() {
			h, err := cctx.Create(server.Addr(), id)
			if err != nil {
				b.Error(err)
				return
			}
			defer h.Close()
			for left.Add(-1) >= 0 {
				begun := time.Now()
				if err := h.Call(b.Context(), nil, nil); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(begun))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	most, least := 0, b.N
	for _, t := range took {
		most, least = max(most, len(t)), min(least, len(t))
	}
	sorted := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(float64(sorted[len(sorted)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(sorted[len(sorted)*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(float64(most)/float64(max(least, 1)), "busiest/laziest")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	require.NoError(b, client.Shutdown(b.Context()))
	close(stop)
	sctx.Wake()
	driver.Wait()
	require.NoError(b, server.Shutdown(b.Context()))
}
