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

// TestZone checks that a zone is a name or a number, and one address is written in one way.
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
