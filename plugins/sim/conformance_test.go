package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

func TestConformance(t *testing.T) {
	network := func(cfg sim.Config) natest.Network {
		cfg.Seed = *seedFlag
		cfg.Latency = 20 * time.Microsecond
		return natest.Network{
			Listen: func(n int) string { return fmt.Sprint("sim://node", n) },
			Origin: "sim://", Nobody: "sim://nobody", Pending: "sim://far", Invalid: "sim://no/name",
			Plugins:    []na.Plugin{sim.NewWorld(cfg).Plugin()},
			Concurrent: cfg.Paced, Assisted: !cfg.NoAssist,
		}
	}
	var all []natest.Network
	for name, cfg := range map[string]sim.Config{
		"A":          {},
		"B":          {Level: sim.LevelB},
		"B-unserved": {Level: sim.LevelB, NoAssist: true},
		"A-paced":    {Paced: true},
	} {
		all = append(all, network(cfg))
		t.Run(name, func(t *testing.T) {
			mk := func(testing.TB) natest.Network { return network(cfg) }
			switch rest := cfg.Paced || cfg.NoAssist; {
			case raceflag.Enabled && !cfg.Paced && !long.On: // one goroutine at a time
			case rest && !raceflag.Enabled && !long.On:
				natest.TestRest(t, mk, network(sim.Config{}))
			default:
				natest.TestPlugin(t, mk, nil)
			}
		})
	}
	natest.Cover(t, all...)
}
