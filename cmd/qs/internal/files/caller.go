package files

import (
	"net/netip"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// clientOf returns the client that a caller belongs to. All sessions of a client share its limits. The client is the
// name in the verified certificate or, without one, the caller's machine as far as its address identifies it. For IPv6,
// where a machine has many addresses, it is the 64-bit network prefix.
func clientOf(c qs.Caller) string {
	if c.Secure && c.Name != "" {
		return "certificate " + c.Name
	}
	at, err := netip.ParseAddrPort(c.Remote)
	if err != nil {
		return c.Transport // a process on this machine, using sm
	}
	ip := at.Addr().Unmap()
	if ip.Is4() {
		return ip.String()
	}
	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return ip.String()
	}
	return network.String()
}
