package netroute

import (
	"net"
	"net/netip"
	"slices"
)

// OneFamily returns the addresses of one family, as IPv4 addresses where they are mapped to IPv6: the IPv4 ones, unless there are none or
// this machine has a route only to an IPv6 one. It may change ips.
func OneFamily(ips []netip.Addr) []netip.Addr { return oneFamily(ips, hasRoute) }

func oneFamily(ips []netip.Addr, hasRoute func(netip.Addr) bool) []netip.Addr {
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	four := slices.IndexFunc(ips, netip.Addr.Is4)
	six := slices.IndexFunc(ips, netip.Addr.Is6)
	if four < 0 || six < 0 {
		return ips
	}
	if !hasRoute(ips[four]) && hasRoute(ips[six]) {
		return slices.DeleteFunc(ips, netip.Addr.Is4)
	}
	return slices.DeleteFunc(ips, netip.Addr.Is6)
}

// hasRoute reports whether the system would send to ip. It does not block.
func hasRoute(ip netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 9)))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
