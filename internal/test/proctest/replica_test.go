//go:build unix

package proctest

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var echoes = qs.Define[int, int]("echo", qs.Idempotent())

// TestFrozenReplica checks a service whose first of two processes stops, continues, and is killed,
// under load. No call fails, and it gets calls again when it has continued.
func TestFrozenReplica(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		one, two := tr.startTarget(t, ""), tr.startTarget(t, "")
		n, err := qs.Open(tr.origin, qs.Config{PeerTimeout: 2 * time.Second, ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}})
		require.NoError(t, err)
		defer func() { require.NoError(t, n.Close()) }()
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		to, err := n.Peer(ctx, one.Addr, two.Addr)
		require.NoError(t, err)

		var over atomic.Bool
		var calls atomic.Int64
		var all sync.WaitGroup
		for range 4 { // callers
			all.Go(func() {
				for i := 0; !over.Load(); i++ {
					if out, err := echoes.Call(ctx, to, i); err != nil || out != i {
						t.Errorf("call %d: got %d and error %v", i, out, err)
						return
					}
					calls.Add(1)
					_ = n.HG().Sleep(ctx, time.Millisecond)
				}
			})
		}
		until := func(what string, done func() bool) {
			t.Helper()
			for !done() {
				require.NoError(t, ctx.Err(), what)
				require.NoError(t, n.HG().Sleep(ctx, 10*time.Millisecond))
			}
		}
		at := func(p *process) func() bool { return func() bool { return to.Addr().String() == p.Addr } }
		more := func() bool {
			was := calls.Load()
			until("calls go on", func() bool { return calls.Load() > was+100 })
			return true
		}
		more()
		one.stop()
		until("calls go to the other", at(two))
		more()
		one.signal(syscall.SIGCONT)
		until("calls come back", at(one))
		more()
		one.kill()
		until("calls go to the other", at(two))
		more()
		over.Store(true)
		all.Wait()
	})
}
