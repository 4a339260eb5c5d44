package sim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestForeignGoroutine checks that with CheckGoroutines a goroutine of go, or of context.AfterFunc,
// that waits or spawns in a world while a coroutine runs panics with the name of the coroutine;
// coroutines that are spawned, and those that are killed, do not.
func TestForeignGoroutine(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 7, CheckGoroutines: true})
	defer w.Close()
	var panics []any
	spawned := 0
	w.Go("node", func() {
		for _, call := range []func(){func() { w.Sleep(time.Second) }, func() { w.Spawn(func() {}) }} {
			w.Sleep(time.Second)
			over := make(chan any)
			run := func() {
				defer func() { over <- recover() }()
				call()
			}
			go run()
			panics = append(panics, <-over)
			ctx, cancel := context.WithCancel(context.Background())
			context.AfterFunc(ctx, run)
			cancel()
			panics = append(panics, <-over)
			w.Spawn(func() {
				w.Sleep(time.Second)
				spawned++
			})
		}
	})
	w.Go("killed", func() {
		defer w.Sleep(time.Second)
		w.Sleep(time.Hour)
	})
	w.After(time.Second, func() { w.Kill("killed") })
	require.NoError(t, w.Run(2*time.Hour))
	require.Equal(t, 2, spawned)
	require.Len(t, panics, 4)
	for _, s := range panics {
		require.Contains(t, fmt.Sprint(s), "sim: seed 7: goroutine ")
		require.Contains(t, fmt.Sprint(s), " called outside the world while coroutine node ran: ")
	}
}
