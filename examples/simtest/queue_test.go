package simtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const workers, each = 3, 5

// TestQueue checks three workers that take the jobs of a queue in a world, and that a seed replays
// the run.
func TestQueue(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		require.Equal(t, takeAll(t, seed), takeAll(t, seed), "seed %d", seed)
	}
}

// takeAll returns the hash of what happened in the world.
func takeAll(t *testing.T, seed uint64) uint64 {
	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Faults{Jitter: 5 * time.Millisecond}})
	defer w.Close()
	cfg := qs.Config{HG: hg.Config{NA: hg.NetConfig{Plugins: []hg.Plugin{w.Plugin()}}}}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("server", func() {
		node, err := qs.Open("sim://server", cfg)
		require.NoError(t, err)
		(&Queue{}).Handle(serving, node, workers*each, time.Second)
		_ = node.Serve(serving)
	})
	var taken []int // one coroutine runs at a time
	for i := range workers {
		w.Go(fmt.Sprint("worker", i), func() {
			w.Sleep(time.Millisecond)
			node, err := qs.Open("sim://", cfg)
			require.NoError(t, err)
			defer node.Close()
			queue, err := node.Peer(serving, "sim://server")
			require.NoError(t, err)
			for range each {
				job, err := Take.Call(serving, queue, fmt.Sprint(i))
				require.NoError(t, err)
				taken = append(taken, job)
			}
			if len(taken) == workers*each {
				stop()
			}
		})
	}
	require.NoError(t, w.Run(time.Hour), "seed %d", seed)
	slices.Sort(taken)
	for i := range workers * each {
		require.Equal(t, i, taken[i], "seed %d", seed)
	}
	return w.Hash()
}

// TestQueueOverTCP checks the same service with goroutines.
func TestQueueOverTCP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	serving, stop := context.WithCancel(ctx)
	(&Queue{}).Handle(serving, node, workers*each, time.Microsecond)
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(serving) }()
	client, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer client.Close()
	queue, err := client.Peer(ctx, node.Addr().String())
	require.NoError(t, err)
	var taken []int
	for range workers * each {
		job, err := Take.Call(ctx, queue, "one")
		require.NoError(t, err)
		taken = append(taken, job)
	}
	require.True(t, slices.IsSorted(taken))
	stop()
	require.NoError(t, <-ended)
}
