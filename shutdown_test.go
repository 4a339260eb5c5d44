package quicksilver_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
)

// TestShutdownUnderCalls: goroutines call while their Node is shut down. Nothing is cut off, each call has run or is refused, and so
// Shutdown has nothing to say.
func TestShutdownUnderCalls(t *testing.T) {
	t.Parallel()
	s := server(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
	})
	for range 30 {
		c, err := qs.Open("tcp://", qs.Config{})
		require.NoError(t, err)
		to := peer(t, c, s.Addr().String())
		var callers sync.WaitGroup
		var made atomic.Int64
		for range 4 {
			callers.Go(func() {
				for {
					if _, err := repeat.Call(within(t), to, "x"); err != nil {
						if qs.FateOf(err) != qs.NotRun {
							t.Errorf("a call was cut off: %v", err)
						}
						return
					}
					made.Add(1)
				}
			})
		}
		for made.Load() < 200 {
			runtime.Gosched()
		}
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		require.NoError(t, c.Shutdown(ctx))
		stop()
		callers.Wait()
	}
}
