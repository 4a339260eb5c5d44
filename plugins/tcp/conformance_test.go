package tcp_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/racing"
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
	network := func(t testing.TB, opts tcp.Options) natest.Network {
		opts.Resolver = silent{}
		return natest.Network{
			Listen:     func(int) string { return "tcp://127.0.0.1:0" },
			Origin:     "tcp://",
			Nobody:     "tcp://" + closedPort(t),
			Pending:    "tcp://silent:9000",
			Plugins:    []na.Plugin{tcp.New(opts)},
			Concurrent: true,
			Assisted:   !opts.Unassisted,
		}
	}
	run := func(t *testing.T, opts tcp.Options) {
		natest.TestPlugin(t, func(t testing.TB) natest.Network { return network(t, opts) }, nil)
	}
	each(t, run)
	t.Run("tls", func(t *testing.T) {
		each(t, func(t *testing.T, opts tcp.Options) {
			if racing.Enabled && opts.Portable { // no goroutine more than without TLS
				return
			}
			opts.TLS = mutualTLS(t)
			run(t, opts)
		})
	})
	if na.PollerSupported {
		t.Run("unassisted", func(t *testing.T) { run(t, tcp.Options{Unassisted: true}) })
		natest.Cover(t, network(t, tcp.Options{}), network(t, tcp.Options{Unassisted: true}))
	}
}
