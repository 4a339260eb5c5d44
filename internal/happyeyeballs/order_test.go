package happyeyeballs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func addrs(texts ...string) (ips []netip.Addr) {
	for _, text := range texts {
		ips = append(ips, netip.MustParseAddr(text))
	}
	return ips
}

// TestOrder checks that the families take turns, the resolver's first address is the first.
func TestOrder(t *testing.T) {
	for name, c := range map[string]struct{ in, want []netip.Addr }{
		"one":         {addrs("192.0.2.1"), addrs("192.0.2.1")},
		"one family":  {addrs("192.0.2.1", "192.0.2.2"), addrs("192.0.2.1", "192.0.2.2")},
		"IPv6 first":  {addrs("2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"), addrs("2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2")},
		"IPv4 first":  {addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"), addrs("192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3")},
		"mapped":      {addrs("::ffff:192.0.2.1", "2001:db8::1"), addrs("192.0.2.1", "2001:db8::1")},
		"twice":       {addrs("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"), addrs("192.0.2.1")},
		"two zones":   {addrs("fe80::1%a", "fe80::1%b"), addrs("fe80::1%a", "fe80::1%b")},
		"no address":  {nil, []netip.Addr{}},
		"second more": {addrs("192.0.2.1", "2001:db8::1", "2001:db8::2"), addrs("192.0.2.1", "2001:db8::1", "2001:db8::2")},
	} {
		require.Equal(t, c.want, Order(c.in), name)
	}
}

// TestGroups checks that each address of the first family is grouped with one of the other, all of
// them are in a group, and no group has a single address.
func TestGroups(t *testing.T) {
	groups := func(all ...[]netip.Addr) [][]netip.Addr { return all }
	for name, c := range map[string]struct {
		in   []netip.Addr
		want [][]netip.Addr
	}{
		"none":       {nil, [][]netip.Addr{}},
		"one family": {addrs("192.0.2.1", "192.0.2.2"), groups(addrs("192.0.2.1"), addrs("192.0.2.2"))},
		"as many": {addrs("192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"),
			groups(addrs("192.0.2.1", "2001:db8::1"), addrs("192.0.2.2", "2001:db8::2"))},
		"fewer": {addrs("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1"),
			groups(addrs("2001:db8::1", "192.0.2.1"), addrs("2001:db8::2", "192.0.2.1"), addrs("2001:db8::3", "192.0.2.1"))},
		"more": {addrs("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8::3"),
			groups(addrs("192.0.2.1", "2001:db8::1", "2001:db8::3"), addrs("192.0.2.2", "2001:db8::2"))},
	} {
		require.Equal(t, c.want, Groups(c.in), name)
	}
}
