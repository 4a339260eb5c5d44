package qs_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A hostsResolver is a resolver of hosts that cannot be compared.
type hostsResolver map[string]netip.Addr

func (h hostsResolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return []netip.Addr{h[host]}, nil
}

// TestResolverOfPlugin checks that a node whose plugin has a resolver of hosts, or Config.TCP,
// looks up hosts with that.
func TestResolverOfPlugin(t *testing.T) {
	known := hostsResolver{"kv.example": netip.MustParseAddr("127.0.0.9")}
	plugins := func(p na.Plugin) (cfg qs.Config) {
		cfg.HG.NA.Plugins = []na.Plugin{p}
		return cfg
	}
	for name, c := range map[string]struct {
		scheme string
		cfg    qs.Config
	}{
		"udp plugin": {"udp", plugins(udp.New(udp.Options{Resolver: known}))},
		"tcp plugin": {"tcp", plugins(tcp.New(tcp.Options{Resolver: known}))},
		"tcp config": {"tcp", qs.Config{TCP: tcp.Options{Resolver: known}}},
	} {
		t.Run(name, func(t *testing.T) {
			node := open(t, c.scheme+"://", c.cfg)
			p, err := node.Peer(testContext(t), c.scheme+"://kv.example:9000")
			require.NoError(t, err)
			require.Contains(t, p.Addr().String(), "127.0.0.9:9000")
		})
	}
}
