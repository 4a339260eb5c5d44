package udp_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// silent is a resolver that answers nobody.
type silent struct{}

func (silent) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestConformance(t *testing.T) {
	network := func(t testing.TB, opts udp.Options) natest.Network {
		nc, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		nobody := nc.LocalAddr().String()
		_ = nc.Close()
		opts.Resolver = silent{}
		return natest.Network{
			Listen:     func(int) string { return "udp://127.0.0.1:0" },
			Origin:     "udp://",
			Nobody:     "udp://" + nobody,
			Pending:    "udp://silent:9000",
			Plugins:    []na.Plugin{udp.New(opts)},
			Concurrent: true,
			Assisted:   !opts.Unassisted,
		}
	}
	run := func(t *testing.T, opts udp.Options) {
		natest.TestPlugin(t, func(t testing.TB) natest.Network { return network(t, opts) }, nil)
	}
	each(t, run)
	if na.PollerSupported {
		t.Run("unassisted", func(t *testing.T) { run(t, udp.Options{Unassisted: true}) })
		natest.Cover(t, network(t, udp.Options{}), network(t, udp.Options{Unassisted: true}))
	}
}

// each runs a test over every kind of socket.
func each(t *testing.T, test func(t *testing.T, opts udp.Options)) {
	t.Run("polled", func(t *testing.T) { test(t, udp.Options{}) })
	t.Run("portable", func(t *testing.T) { test(t, udp.Options{Portable: true}) })
}
