package debug

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// BenchmarkWatched measures calls to a server without a page, to one that counts its calls, and to
// one whose page is requested every second.
func BenchmarkWatched(b *testing.B) {
	for _, how := range []string{"not", "counted", "shown"} {
		b.Run(how, func(b *testing.B) {
			var cfg qs.Config
			page := &Page{}
			if how != "not" {
				page.Attach(&cfg)
			}
			server, err := qs.Open("tcp://127.0.0.1:0", cfg)
			require.NoError(b, err)
			getKey.Handle(server, func(_ context.Context, in int) (int, error) { return in, nil })
			ctx, stop := context.WithCancel(context.Background())
			var all sync.WaitGroup
			all.Go(func() { _ = server.Serve(ctx) })
			if how == "shown" {
				all.Go(func() {
					for tick := time.NewTicker(time.Second); ; {
						select {
						case <-tick.C:
							page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
						case <-ctx.Done():
							return
						}
					}
				})
			}
			client, err := qs.Open("tcp://", qs.Config{})
			require.NoError(b, err)
			to, err := client.Peer(ctx, server.Addr().String())
			require.NoError(b, err)
			b.SetParallelism(32)
			b.ResetTimer()
			before := cpuTime()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := getKey.Call(ctx, to, 1); err != nil {
						b.Error(err)
					}
				}
			})
			b.StopTimer()
			reportCPU(b, before)
			require.NoError(b, client.Close())
			stop()
			all.Wait()
		})
	}
}

// reportCPU reports the processor time that the process has used since before: a measure that is
// valid on a shared machine, too.
func reportCPU(b *testing.B, before time.Duration) {
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}
