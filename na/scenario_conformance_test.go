package na_test

import (
	"fmt"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

// TestConformance checks that the rules hold over a network with everything that the contract of
// carriers allows.
func TestConformance(t *testing.T) {
	if raceflag.Enabled && !long.On { // one goroutine at a time
		return
	}
	natest.TestPlugin(t, func(testing.TB) natest.Network {
		return natest.Network{
			Listen: func(i int) string { return fmt.Sprint("loose://host", i) }, Origin: "loose://",
			Nobody: "loose://nobody", Pending: "loose://pending", Plugins: []na.Plugin{newLooseNetwork(1)},
		}
	}, nil)
}
