package tcp_test

import (
	"context"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/long"
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

var ownHosts atomic.Uint32

// ownHost returns an address of this host that nobody else listens on, where there are enough of them: rules run beside each
// other, and one that dials a port which it has given back must not find the class of another rule there.
func ownHost() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := ownHosts.Add(1)
	return netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}).String()
}

func network(t testing.TB, opts tcp.Options) natest.Network {
	opts.Resolver = silent{}
	host := ownHost()
	return natest.Network{
		Listen:     func(int) string { return "tcp://" + host + ":0" },
		Origin:     "tcp://",
		Nobody:     "tcp://" + closedPort(t),
		Pending:    "tcp://silent:9000",
		Plugins:    []na.Plugin{tcp.New(opts)},
		Concurrent: true,
		Assisted:   !opts.Unassisted,
	}
}

func TestConformance(t *testing.T) {
	run := func(t *testing.T, opts tcp.Options) {
		natest.TestPlugin(t, func(t testing.TB) natest.Network { return network(t, opts) }, nil)
	}
	each(t, run)
	t.Run("tls", func(t *testing.T) {
		if racing.Enabled && !long.On { // the tests of TLS and those of hg and bulk have its goroutines
			return
		}
		each(t, func(t *testing.T, opts tcp.Options) {
			if opts.Portable && !long.On { // the same packets, and no goroutine more than without TLS; hg and bulk go over it, too
				return
			}
			opts.TLS = mutualTLS(t)
			opts.TLS.ServerName = "127.0.0.1"
			run(t, opts)
		})
	})
	if na.PollerSupported && long.On {
		t.Run("unassisted", func(t *testing.T) { run(t, tcp.Options{Unassisted: true}) })
	}
}

// TestFrozen checks the rules about a context that nobody drives, nor assists.
func TestFrozen(t *testing.T) {
	t.Parallel()
	if !na.PollerSupported {
		return
	}
	assisted, alone := network(t, tcp.Options{}), network(t, tcp.Options{Unassisted: true})
	natest.TestRest(t, func(t testing.TB) natest.Network { return network(t, tcp.Options{Unassisted: true}) }, assisted)
	natest.Cover(t, assisted, alone)
}
