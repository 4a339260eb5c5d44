package netroute

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestOneFamily: a machine with IPv6 alone reaches a host that has addresses of both families.
func TestOneFamily(t *testing.T) {
	addrs := func(texts ...string) (ips []netip.Addr) {
		for _, text := range texts {
			ips = append(ips, netip.MustParseAddr(text))
		}
		return ips
	}
	for _, c := range []struct {
		four, six bool // routes
		in, want  []netip.Addr
	}{
		{true, true, addrs("2001:db8::1", "192.0.2.1", "192.0.2.2"), addrs("192.0.2.1", "192.0.2.2")},
		{true, false, addrs("2001:db8::1", "192.0.2.1"), addrs("192.0.2.1")},
		{false, true, addrs("192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"), addrs("2001:db8::1", "2001:db8::2")},
		{false, false, addrs("2001:db8::1", "192.0.2.1"), addrs("192.0.2.1")},
		{false, false, addrs("2001:db8::1"), addrs("2001:db8::1")},
		{false, true, addrs("::ffff:192.0.2.1"), addrs("192.0.2.1")},
		{false, true, nil, nil},
	} {
		got := oneFamily(c.in, func(ip netip.Addr) bool { return ip.Is4() && c.four || ip.Is6() && c.six })
		require.Equal(t, c.want, got, "routes: IPv4 %v, IPv6 %v", c.four, c.six)
	}
	require.True(t, hasRoute(netip.MustParseAddr("127.0.0.1")))
}

// TestZone: a zone is a name or a number, and one address is written in one way.
func TestZone(t *testing.T) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifc := range all {
		index := uint32(ifc.Index)
		require.Equal(t, index, ZoneIndex(ifc.Name))
		require.Equal(t, index, ZoneIndex(strconv.Itoa(ifc.Index)))
		local := netip.MustParseAddr("fe80::1")
		require.Equal(t, local.WithZone(ifc.Name), WithZone(local, index))
		numbered := netip.AddrPortFrom(local.WithZone(strconv.Itoa(ifc.Index)), 7)
		require.Equal(t, netip.AddrPortFrom(local.WithZone(ifc.Name), 7), NameZone(numbered))
		for _, text := range []string{"2001:db8::1", "192.0.2.1", "::ffff:192.0.2.1", "::1"} {
			require.Equal(t, netip.MustParseAddr(text), WithZone(netip.MustParseAddr(text), index))
		}
	}
	require.Zero(t, ZoneIndex("no such interface"))
	require.Zero(t, ZoneIndex(""))
	require.Equal(t, "fe80::1%4000000000", WithZone(netip.MustParseAddr("fe80::1"), 4_000_000_000).String())
}
