package sm_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
)

// place is a directory of names for a test: its path is short enough for the address of a socket.
func place(t testing.TB) string {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestConformance(t *testing.T) {
	network := func(t testing.TB, opts sm.Options) natest.Network {
		opts.Dir = place(t)
		return natest.Network{
			Listen:     func(n int) string { return fmt.Sprintf("sm://n%d-*", n) },
			Origin:     "sm://",
			Nobody:     "sm://nobody",
			Plugins:    []na.Plugin{sm.New(opts)},
			Concurrent: true,
			Assisted:   !opts.Unassisted,
		}
	}
	run := func(t *testing.T, opts sm.Options) {
		natest.TestPlugin(t, func(t testing.TB) natest.Network { return network(t, opts) }, nil)
	}
	t.Run("assisted", func(t *testing.T) { run(t, sm.Options{}) })
	t.Run("unassisted", func(t *testing.T) { run(t, sm.Options{Unassisted: true}) })
}
