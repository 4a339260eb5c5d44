package load

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// measurePause loads, in virtual time, a node that stops once for a second. set completes the configuration.
func measurePause(t *testing.T, set func(*Config)) (res Result) {
	t.Helper()
	const seed = 1
	w := sim.NewWorld(sim.Config{Seed: seed, PollCost: 20 * time.Microsecond})
	defer w.Close()
	open := func(addr string) *hg.Class {
		class, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}})
		require.NoError(t, err)
		return class
	}
	over := false
	w.Go("server", func() {
		class := open("sim://server")
		hctx, err := class.NewContext()
		require.NoError(t, err)
		served := 0
		_, err = class.Register("work", func(h hg.Request) error {
			if served++; served == 150 {
				w.Sleep(time.Second)
			}
			return h.Respond("done", nil)
		})
		require.NoError(t, err)
		for !over {
			_ = hctx.Progress(100 * time.Millisecond)
			hctx.Trigger(0)
		}
		_ = class.Close()
	})
	w.Go("client", func() {
		defer func() { over = true }()
		w.Sleep(time.Millisecond)
		cfg := Config{Class: open("sim://"), Nodes: []string{"sim://server"}, Method: "work", Inputs: [][]byte{encode(t, "hello")},
			Concurrency: 1, Connections: 1, Timeout: time.Minute}
		set(&cfg)
		var err error
		res, err = Run(context.Background(), cfg)
		require.NoError(t, err)
		_ = cfg.Class.Close()
	})
	require.NoError(t, w.Run(time.Hour), "seed %d", seed)
	require.Equal(t, int64(1200), res.Succeeded)
	require.InDelta(t, 1e6, res.Latency.Max, 20e3)
	return res
}

// TestPauseCountsAsLatency checks 1,200 calls at 300 a second, and a pause of a second: in an open
// loop 300 of them are due during the pause, and their latencies decrease linearly from a second to
// zero. In a closed loop one call spans the pause, and no percentile shows it.
func TestPauseCountsAsLatency(t *testing.T) {
	t.Parallel()
	requireRamp := func(l Latencies) { // a quarter of the calls is on the ramp: percentile p has waited (p-75)/25 of a second
		t.Helper()
		require.Less(t, l.P50, 1e3)
		require.InDelta(t, 600e3, l.P90, 10e3)
		require.InDelta(t, 960e3, l.P99, 10e3)
		require.InDelta(t, 996e3, l.P999, 10e3)
		require.InDelta(t, 125e3, l.Mean, 5e3, "the area under the ramp over all calls")
	}
	hidden := func(l Latencies) {
		t.Helper()
		require.Less(t, l.P999, 1e3)
		require.InDelta(t, 833, l.Mean, 200, "one second over all calls")
	}

	res := measurePause(t, func(c *Config) { c.Count, c.Rate, c.Concurrency = 1200, 300, 2000 })
	requireRamp(res.Latency)
	requireRamp(*res.Service) // all were sent when they were due

	res = measurePause(t, func(c *Config) { c.Count, c.Rate = 1200, 300 })
	requireRamp(res.Latency)
	hidden(*res.Service) // one was in flight, and the others waited on this side

	res = measurePause(t, func(c *Config) { c.Count = 1200 })
	hidden(res.Latency)
	require.Nil(t, res.Service)
}
