package simtest

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var seed = flag.Uint64("seed", 0, "run this seed only")

func TestMain(m *testing.M) { leak.Main(m) }

// TestCounter checks minutes of a bad network, several times, in a second.
func TestCounter(t *testing.T) {
	t.Parallel()
	if *seed != 0 {
		run(t, *seed)
		return
	}
	seeds := uint64(30)
	if long.On {
		seeds = 3000
	}
	for s := uint64(1); s <= seeds; s++ {
		run(t, s)
	}
	require.Equal(t, run(t, 7), run(t, 7), "a seed does the same again")
}

// run counts with three clients in a world, and returns the hash of everything that happened there.
func run(t *testing.T, seed uint64) uint64 {
	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Faults{
		Jitter: 5 * time.Millisecond, Loss: 0.05, Reset: 0.01,
		Partition: 0.005, PartitionFor: 3 * time.Second, Pause: 0.002, PauseFor: time.Second,
	}})
	defer w.Close()
	open := func(addr string, client ...qs.Interceptor) *qs.Node {
		cfg := qs.Config{PeerTimeout: time.Second, ClientInterceptors: client}
		cfg.HG.NA = hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}
		node, err := qs.Open(addr, cfg)
		require.NoError(t, err)
		return node
	}
	counter, clients, want := &Counter{}, 3, 0
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("server", func() { // a coroutine of the world, on a machine of that name
		node := open("sim://server")
		counter.Handle(node)
		_ = node.Serve(serving)
	})
	for i := range clients {
		w.Go(fmt.Sprint("client", i), func() {
			node := open("sim://", qs.Retry(qs.RetryPolicy{Attempts: 100, ProgressTimeout: time.Second, BudgetRatio: -1}))
			defer node.Close()
			ctx, cancel := w.WithTimeout(context.Background(), time.Hour) // of virtual time
			defer cancel()
			server, err := node.Peer(ctx, "sim://server")
			require.NoError(t, err)
			for k := range 10 {
				_, err := Add.Call(ctx, server, Addition{fmt.Sprint(i, "/", k), k + 1})
				require.NoError(t, err, "seed %d", seed)
				want += k + 1 // one coroutine runs at a time
				w.Sleep(time.Second)
			}
			if clients--; clients == 0 {
				stop()
			}
		})
	}
	require.NoError(t, w.Run(2*time.Hour), "replay with -seed=%d", seed)
	require.Equal(t, want, counter.Sum(), "replay with -seed=%d", seed)
	return w.Hash()
}
