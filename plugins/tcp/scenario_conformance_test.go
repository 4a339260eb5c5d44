package tcp_test

import (
	"context"
	"net/netip"
	"runtime"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// silentResolver is a resolver that never answers.
type silentResolver struct{}

func (silentResolver) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func network(t testing.TB, opts tcp.Options) natest.Network {
	opts.Resolver = silentResolver{}
	host := natest.OwnHost()
	return natest.Network{
		Listen:     func(int) string { return "tcp://" + host + ":0" },
		Origin:     "tcp://",
		Nobody:     "tcp://" + closedPort(t),
		Pending:    "tcp://silent:9000",
		Invalid:    "tcp://127.0.0.1",
		Plugins:    []na.Plugin{tcp.New(opts)},
		Concurrent: true,
		Assisted:   !opts.Unassisted,
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	opts := map[string]tcp.Options{}
	if raceflag.Enabled || long.On || runtime.GOOS != "linux" { // it has more goroutines: the run with the race detector has it
		opts["portable"] = tcp.Options{Portable: true}
	}
	if runtime.GOOS == "linux" && (!raceflag.Enabled || long.On) { // hg and bulk go over this one
		opts["epoll"] = tcp.Options{}
	}
	if long.On && runtime.GOOS == "linux" {
		opts["unassisted"] = tcp.Options{Unassisted: true}
	}
	cfg := mutualTLS(t)
	cfg.ServerName = "127.0.0.1"
	if !raceflag.Enabled || long.On { // the tests of TLS and those of hg and bulk have its goroutines
		opts["tls-epoll"] = tcp.Options{TLS: cfg}
	}
	if long.On { // the same packets, and no goroutine more than without TLS; hg and bulk go over it, too
		opts["tls-portable"] = tcp.Options{TLS: cfg, Portable: true}
	}
	variants := map[string]natest.Maker{}
	for name, o := range opts {
		variants[name] = func(t testing.TB) natest.Network {
			n := network(t, o)
			_, all := opts["epoll"]
			n.Carrier = all && name != "epoll" && !long.On
			return n
		}
	}
	natest.TestVariants(t, variants)
}

// TestFrozen checks the rules about a context that neither a goroutine nor the background poller drives.
func TestFrozen(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return
	}
	assisted, alone := network(t, tcp.Options{}), network(t, tcp.Options{Unassisted: true})
	natest.TestRest(t, func(t testing.TB) natest.Network { return network(t, tcp.Options{Unassisted: true}) }, assisted)
	natest.Cover(t, assisted, alone)
}
