package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestOpenWithoutPlugin checks that a class that a coroutine opens without the plugin of its World
// is refused with an error that names the plugin, and that others are not refused.
func TestOpenWithoutPlugin(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	opened := 0
	open := func(addr string, cfg na.Config) error {
		cls, err := na.Open(addr, cfg)
		if err == nil {
			opened++
			require.NoError(t, cls.Close())
		}
		return err
	}
	w.Go("coroutine", func() {
		w.Sleep(time.Second)
		for _, addr := range []string{"sim://", "sim://plugin-test"} {
			err := open(addr, na.Config{})
			require.ErrorIs(t, err, na.ErrInvalid)
			require.EqualError(t, err, "na: open "+addr+": a coroutine of a sim.World needs the plugin of that World: "+
				"add World.Plugin() to na.Config.Plugins (with package qs: Config.HG.NA.Plugins); see docs/guide/testing.md")
			require.NoError(t, open(addr, na.Config{Plugins: []na.Plugin{w.Plugin()}}))
		}
		w.Spawn(func() { require.ErrorIs(t, open("sim://", na.Config{}), na.ErrInvalid) })
		w.Sleep(time.Second)
	})
	require.NoError(t, w.Run(time.Minute))
	require.Equal(t, 2, opened)
	require.NoError(t, open("sim://plugin-test", na.Config{}), "outside of a coroutine")
}
