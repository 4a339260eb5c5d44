package enginetest_test

import (
	"fmt"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine/enginetest"
)

func network(testing.TB) natest.Network {
	return natest.Network{
		Listen: func(n int) string { return fmt.Sprintf("mem://host%d", n) }, Origin: "mem://", Nobody: "mem://nobody",
		Pending: enginetest.Pending, Plugins: []na.Plugin{enginetest.New(1)},
	}
}

func TestConformance(t *testing.T) { natest.TestPlugin(t, network, nil) }
