package mercury

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Lookup replaces the host name in addr, for example "ofi+tcp://node7:4000", with an IPv4 address. The name may also be
// that of a network interface of this machine. An address with a numeric host is returned unchanged. Lookup may block
// in the system's resolver. Calls accept only numeric addresses, so that they never block there.
//
// The error is ErrInvalid if addr is not an address, and ErrUnreachable if the name has no IPv4 address. If ctx is
// done, the error matches the cause of ctx.
func Lookup(ctx context.Context, addr string) (string, error) {
	if a, err := parseAddr(addr); err == nil {
		return addrText(a), nil
	}
	rest, ok := strings.CutPrefix(addr, scheme)
	host, port, err := net.SplitHostPort(rest)
	if _, numeric := netip.ParseAddr(host); !ok || err != nil || host == "" || numeric == nil {
		_, err := parseAddr(addr)
		return "", err
	}
	ip, ok := interfaceAddr(host)
	if !ok {
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		switch {
		case ctx.Err() != nil:
			return "", contextError(ctx, "lookup of "+host)
		case err != nil:
			return "", errorf(ErrUnreachable, "mercury: lookup %s: %v", host, err)
		case len(all) == 0:
			return "", errorf(ErrUnreachable, "mercury: lookup %s: no IPv4 address", host)
		}
		ip = all[0].Unmap()
	}
	a, err := parseAddr(scheme + net.JoinHostPort(ip.String(), port))
	if err != nil {
		return "", err
	}
	return addrText(a), nil
}

// interfaceAddr returns the first IPv4 address of the named network interface.
func interfaceAddr(name string) (netip.Addr, bool) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, false
	}
	all, err := i.Addrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && err == nil {
			if ip, ok := netip.AddrFromSlice(n.IP.To4()); ok {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}
