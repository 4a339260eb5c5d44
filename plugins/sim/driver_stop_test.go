package sim_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestDriverStopsDuringClockCheck checks that of two goroutines that drive contexts, one stops
// while the other checks whether the clock may advance to the first's deadline: it then advances to
// its own.
func TestDriverStopsDuringClockCheck(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	ctxs := make([]*na.Context, 2)
	for i, name := range []string{"sim://a", "sim://b"} {
		cls, err := na.Open(name, na.Config{Plugins: []na.Plugin{w.Plugin()}})
		require.NoError(t, err)
		ctxs[i], err = cls.NewContext()
		require.NoError(t, err)
	}
	for range 5000 {
		var both sync.WaitGroup
		for i, c := range ctxs {
			both.Go(func() {
				for range 1 + i {
					_ = c.Progress(time.Duration(1+i) * time.Microsecond)
				}
			})
		}
		both.Wait()
	}
}
