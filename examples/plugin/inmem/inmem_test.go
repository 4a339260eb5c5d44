package inmem_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.org/plugin/inmem"
	"example.org/plugin/tour"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

// TestConformance runs the suite that every plugin passes.
func TestConformance(t *testing.T) {
	natest.TestPlugin(t, func(testing.TB) natest.Network {
		return natest.Network{
			Listen:     func(n int) string { return fmt.Sprintf("mem://node%d", n) },
			Origin:     "mem://",
			Nobody:     "mem://nobody",
			Plugins:    []na.Plugin{inmem.New()},
			Concurrent: true,
			Assisted:   true,
		}
	}, nil)
}

// TestTour runs both sides in this process, where Kill cuts the target off.
func TestTour(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	network := inmem.New()
	target, err := tour.Serve(network, "mem://target")
	require.NoError(t, err)
	require.NoError(t, tour.Run(ctx, network, target.Addr(), func() { network.Kill(target.Addr()) }))
	require.NoError(t, target.Close())
}
