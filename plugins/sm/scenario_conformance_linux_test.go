package sm_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
)

// socketPlace is a directory of names for a test: its path is short enough for the address of a socket.
func listener(t testing.TB) string {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func network(opts sm.Options) natest.Maker {
	return func(t testing.TB) natest.Network {
		opts := opts
		opts.Dir = listener(t)
		return natest.Network{
			Listen:     func(n int) string { return fmt.Sprintf("sm://n%d-*", n) },
			Origin:     "sm://",
			Nobody:     "sm://nobody",
			Invalid:    "sm://no/name",
			Plugins:    []na.Plugin{sm.New(opts)},
			Concurrent: true,
			Assisted:   !opts.Unassisted,
			Carrier:    !long.On, // tcp keeps the other rules with the same code
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	variants := map[string]natest.Maker{"assisted": network(sm.Options{})}
	if long.On {
		variants["unassisted"] = network(sm.Options{Unassisted: true})
	}
	natest.TestVariants(t, variants)
}

// TestFrozen checks the rules about a context that is neither driven nor assisted.
func TestFrozen(t *testing.T) {
	t.Parallel()
	natest.TestRest(t, network(sm.Options{Unassisted: true}), network(sm.Options{})(t))
}
