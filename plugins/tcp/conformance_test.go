package tcp_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// silent is a resolver that answers nobody.
type silent struct{}

func (silent) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, opts tcp.Options) {
		opts.Resolver = silent{}
		natest.TestPlugin(t, func(t testing.TB) natest.Network {
			return natest.Network{
				Listen:     func(int) string { return "tcp://127.0.0.1:0" },
				Origin:     "tcp://",
				Nobody:     "tcp://" + closedPort(t),
				Pending:    "tcp://silent:9000",
				Plugins:    []na.Plugin{tcp.New(opts)},
				Concurrent: true,
				Assisted:   true,
			}
		}, nil)
	})
}
