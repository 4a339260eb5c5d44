package qs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	deadlineSleep  = qs.Define[time.Duration, bool]("deadline/sleep") // reports whether its ctx has a deadline
	deadlineStream = qs.DefineStream[int, int]("deadline/stream")     // items, one each ten minutes
)

// TestDeadlineBeyondTheWire checks a call with more time than the 2^32-1 us that a request can
// carry, 71 minutes: it runs until its own deadline, and its handler has none: the caller ends it
// when the time is up.
func TestDeadlineBeyondTheWire(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	ended := make([]error, 0, 4) // why the contexts of handlers have ended
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		deadlineSleep.Handle(n, func(ctx context.Context, d time.Duration) (bool, error) {
			_, bounded := ctx.Deadline()
			err := n.Sleep(ctx, d)
			if err != nil {
				ended = append(ended, err)
			}
			return bounded, err
		})
		deadlineStream.Handle(n, func(ctx context.Context, items int, send func(int) error) error {
			for i := range items {
				if err := n.Sleep(ctx, 10*time.Minute); err != nil {
					return err
				}
				if err := send(i); err != nil {
					return err
				}
			}
			return nil
		})
		_ = n.Serve(serving)
	})
	w.Go("client", func() {
		defer stop()
		n := simulated(t, w, "sim://", qs.Config{CallTimeout: 2 * time.Hour})
		defer func() { require.NoError(t, n.Close()) }()
		p := peer(t, n, "sim://server")
		call := func(timeout, work time.Duration) (bool, time.Duration, error) {
			ctx, cancel := context.Background(), func() {}
			if timeout > 0 {
				ctx, cancel = n.WithTimeout(ctx, timeout)
			}
			defer cancel()
			begun := w.Now()
			bounded, err := deadlineSleep.Call(ctx, p, work)
			return bounded, w.Now() - begun, err
		}
		for _, c := range []struct {
			timeout time.Duration
			bounded bool
		}{{0, false}, {70 * time.Minute, true}, {72 * time.Minute, false}, {2 * time.Hour, false}, {1<<63 - 1, false}} {
			bounded, _, err := call(c.timeout, time.Minute)
			require.NoError(t, err, "timeout %v", c.timeout)
			require.Equal(t, c.bounded, bounded, "timeout %v: the handler has a deadline", c.timeout)
		}
		for _, timeout := range []time.Duration{0, 2 * time.Hour} { // 0: Config.CallTimeout
			_, took, err := call(timeout, 80*time.Minute)
			require.NoError(t, err, "timeout %v, after %v", timeout, took)
			_, took, err = call(timeout, 3*time.Hour)
			require.ErrorIs(t, err, qs.ErrTimeout, "timeout %v", timeout)
			require.Equal(t, 2*time.Hour, took.Round(time.Second), "timeout %v", timeout)
		}
		w.Sleep(time.Second)
		require.Len(t, ended, 2, "handlers whose context ended with the deadline")

		ctx, cancel := n.WithTimeout(context.Background(), 3*time.Hour)
		defer cancel()
		items := 0
		for _, err := range deadlineStream.Call(ctx, p, 12) {
			require.NoError(t, err, "after %d items", items)
			items++
		}
		require.Equal(t, 12, items)
	})
	require.NoError(t, w.Run(100*time.Hour))
}
