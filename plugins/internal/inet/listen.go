package inet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// Where parses the "host:port" part of a listening address. host is an IP address, the name of an interface or host, or
// empty for every address of the machine.
func (n *Names) Where(rest string) (where netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(rest)
	if err != nil {
		return where, notValid(n.Scheme+"://"+rest,
			fmt.Sprintf("is not complete, want %[1]s://host:port, %[1]s://:port, or port 0 for any", n.Scheme))
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return where, notValid(n.Scheme+"://"+rest, fmt.Sprintf("has port %q, want a number from 0 to 65535", service))
	}
	ip, err := n.listenIP(host)
	return netip.AddrPortFrom(ip, uint16(port)), err
}

func (n *Names) listenIP(host string) (netip.Addr, error) {
	if host == "" {
		return netip.Addr{}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap(), nil
	}
	if ifc, err := net.InterfaceByName(host); err == nil {
		return addrOf(ifc)
	}
	ips, err := n.find(context.Background(), host)
	if err != nil {
		return netip.Addr{}, err
	}
	return preferIPv4(ips), nil
}

// preferIPv4 returns the first IPv4 address in ips or, if there is none, the first address. If a socket is bound to
// only one address, peers are more likely to reach an IPv4 address.
func preferIPv4(ips []netip.Addr) netip.Addr {
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip.Unmap()
		}
	}
	return ips[0]
}

// addrOf returns the first IPv4 address of ifc or, if it has none, its first address.
func addrOf(ifc *net.Interface) (netip.Addr, error) {
	all, err := ifc.Addrs()
	if ips := addrsOf(all); err == nil && len(ips) > 0 {
		ip := preferIPv4(ips)
		if ip.IsLinkLocalUnicast() && ip.Is6() {
			ip = ip.WithZone(ifc.Name)
		}
		return ip, nil
	}
	return netip.Addr{}, codes.WithText(codes.ErrAddrInvalid, "interface "+ifc.Name+" has no address")
}

// Outward returns the address to advertise to peers when the socket listens at every address. It is the address that
// the default route uses. If there is no such route, it is the first address that is reachable from outside the machine
// and its link or, failing that, a loopback address.
func Outward(wildcard netip.Addr) netip.Addr {
	fits := func(ip netip.Addr) bool {
		return ip.IsGlobalUnicast() && !ip.IsLinkLocalUnicast() && (ip.Is4() || wildcard.Is6())
	}
	// Connecting a datagram socket sends nothing. It only consults the routing table. These addresses are reserved for
	// documentation.
	for _, far := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		if c, err := net.Dial("udp", far); err == nil {
			ip := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			_ = c.Close()
			if fits(ip) {
				return ip
			}
		}
	}
	var six netip.Addr
	for _, ip := range machine() {
		switch {
		case !fits(ip):
		case ip.Is4():
			return ip
		case !six.IsValid():
			six = ip
		}
	}
	switch {
	case six.IsValid():
		return six
	case wildcard.Is4() || isLocal4():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// isLocal4 reports whether the machine has an IPv4 address.
func isLocal4() bool {
	for _, ip := range machine() {
		if ip.Is4() {
			return true
		}
	}
	return false
}
