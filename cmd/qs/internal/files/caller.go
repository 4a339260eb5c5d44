package files

import (
	"net/netip"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// clientOf names the client that a caller belongs to, whose limits its sessions share: the name in its verified certificate, else its
// machine, as far as its address tells. Of IPv6, where a machine has many addresses, it is the network of 64 bits.
func clientOf(c qs.Caller) string {
	if c.Secure && c.Name != "" {
		return "certificate " + c.Name
	}
	at, err := netip.ParseAddrPort(c.Remote)
	if err != nil {
		return c.Transport // a process of this machine, over sm
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
