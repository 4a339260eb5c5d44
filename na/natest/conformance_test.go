package natest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

func tcp(testing.TB) natest.Network {
	return natest.Network{
		Listen: func(int) string { return "tcp://127.0.0.1:0" }, Origin: "tcp://", Nobody: "tcp://127.0.0.1:1",
		Concurrent: true, Assisted: true,
	}
}

func simulated(testing.TB) natest.Network {
	w := sim.NewWorld(sim.Config{Seed: 1, Level: sim.LevelB, NoAssist: true, Latency: 20 * time.Microsecond})
	return natest.Network{
		Listen: func(n int) string { return fmt.Sprint("sim://node", n) }, Origin: "sim://", Nobody: "sim://nobody",
		Pending: "sim://far", Plugins: []na.Plugin{w.Plugin()},
	}
}

func TestTCP(t *testing.T) { natest.TestPlugin(t, tcp, nil) }

func TestSim(t *testing.T) { natest.TestPlugin(t, simulated, nil) }

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range natest.Names() {
		require.False(t, seen[name], "two rules are called %s", name)
		require.Regexp(t, "^[A-Z][A-Za-z]+$", name)
		seen[name] = true
	}
	require.Greater(t, len(seen), 60)
}
