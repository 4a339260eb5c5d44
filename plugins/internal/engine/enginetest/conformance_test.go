package enginetest_test

import (
	"fmt"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine/enginetest"
)

func network[P na.Plugin](open func(seed uint64) P) natest.Maker {
	return func(testing.TB) natest.Network {
		n := open(1)
		return natest.Network{
			Listen: func(i int) string { return fmt.Sprintf("%s://host%d", n.Scheme(), i) }, Origin: n.Scheme() + "://",
			Nobody: n.Scheme() + "://nobody", Pending: n.Scheme() + "://pending", Plugins: []na.Plugin{n},
		}
	}
}

// The rules hold over every network that the seam allows.
func TestConformance(t *testing.T) { natest.TestPlugin(t, network(enginetest.New), nil) }

func TestLoose(t *testing.T) { natest.TestPlugin(t, network(Loose), nil) }

func TestSlots(t *testing.T) { natest.TestPlugin(t, network(Slots), nil) }
