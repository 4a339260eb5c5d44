package udp_test

import (
	"context"
	"net/netip"
	"runtime"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// silentResolver is a resolver that never answers.
type silentResolver struct{}

func (silentResolver) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func network(opts udp.Options) natest.Maker {
	opts.Resolver = silentResolver{}
	return func(testing.TB) natest.Network {
		host := natest.OwnHost()
		return natest.Network{
			Listen:     func(int) string { return "udp://" + host + ":0" },
			Origin:     "udp://",
			Nobody:     "udp://" + host + ":9",
			Pending:    "udp://silent:9000",
			Invalid:    "udp://127.0.0.1",
			Plugins:    []na.Plugin{udp.New(opts)},
			Concurrent: true,
			Assisted:   !opts.Unassisted,
			Datagrams:  true,
		}
	}
}

// withoutTCPRules leaves out, in a short run, the rules that tcp keeps with the same code.
func withoutTCPRules(mk natest.Maker) natest.Maker {
	return func(t testing.TB) natest.Network {
		n := mk(t)
		n.Carrier = !long.On
		return n
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	variants := map[string]natest.Maker{}
	if raceflag.Enabled || long.On || runtime.GOOS != "linux" { // it has a goroutine more, and all else is the same: the run with the race detector has it
		variants["portable"] = withoutTCPRules(network(udp.Options{Portable: true}))
	}
	if !raceflag.Enabled || long.On {
		variants["polled"] = withoutTCPRules(network(udp.Options{}))
	}
	if long.On && runtime.GOOS == "linux" {
		variants["unassisted"] = network(udp.Options{Unassisted: true})
	}
	if !raceflag.Enabled || long.On {
		variants["tls"] = withoutTCPRules(network(udp.Options{TLS: mutualTLS()}))
	}
	if long.On {
		variants["tls-portable"] = network(udp.Options{TLS: mutualTLS(), Portable: true})
	}
	natest.TestVariants(t, variants)
}

// TestFrozen checks the rules about a context that is neither driven nor assisted.
func TestFrozen(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return
	}
	assisted, alone := network(udp.Options{})(t), network(udp.Options{Unassisted: true})
	natest.TestRest(t, alone, assisted)
	natest.Cover(t, assisted, alone(t))
}

// eachSocket runs a test over every kind of socket.
func eachSocket(t *testing.T, test func(t *testing.T, opts udp.Options)) {
	t.Run("polled", func(t *testing.T) { test(t, udp.Options{}) })
	t.Run("portable", func(t *testing.T) { test(t, udp.Options{Portable: true}) })
}
