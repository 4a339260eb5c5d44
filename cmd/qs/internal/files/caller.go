package files

import (
	"net/netip"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// clientOf returns the identity of a caller's client. All sessions of a client share its limits. The identity is the
// name in the verified certificate. Without a certificate it is the caller's IP address or, for IPv6, the 64-bit
// network prefix, because a machine may have many IPv6 addresses.
func clientOf(c qs.Caller) string {
	if c.Secure && c.Name != "" {
		return "certificate " + c.Name
	}
	at, err := netip.ParseAddrPort(c.Remote)
	if err != nil {
		return c.Transport // no IP address: the caller runs on this machine and uses sm
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
