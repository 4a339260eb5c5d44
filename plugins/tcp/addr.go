package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// names is what a class knows about addresses. Carriers embed it: Check and Resolve are theirs.
type names struct {
	self     string         // canonical or private name of the class
	bound    netip.AddrPort // where it listens; zero when it does not
	resolver Resolver
}

// canonical returns the one name of an address.
func canonical(ap netip.AddrPort) string {
	return prefix + netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

// parseName reads a canonical name.
func parseName(name string) (netip.AddrPort, error) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return netip.AddrPort{}, notValid(name, "is not a tcp address")
	}
	if strings.HasPrefix(rest, "@") {
		return netip.AddrPort{}, na.WithText(na.ErrUnreachable,
			"address "+name+" names a process that does not listen: only answers on the session that it made reach it")
	}
	ap, err := netip.ParseAddrPort(rest)
	switch {
	case err != nil:
		return ap, notValid(name, "is not an IP address with a port; give host names to Lookup")
	case ap.Port() == 0:
		return ap, notValid(name, "has port 0, want 1 to 65535")
	case ap.Addr().IsUnspecified():
		return ap, notValid(name, "names every address of a machine; name one")
	case canonical(ap) != name:
		return ap, notValid(name, "is not in its canonical form "+canonical(ap)+", which Lookup gives")
	}
	return ap, nil
}

func notValid(name, why string) error { return na.WithText(na.ErrInvalid, "address "+name+" "+why) }

// Check implements engine.Names.
func (n *names) Check(name string) error {
	_, err := parseName(name)
	return err
}

// Resolve implements engine.Names. Numeric addresses are done at once, host names in a goroutine that ends with
// cancel, as soon as the resolver obeys its context.
func (n *names) Resolve(text string, done func(name string, err error)) (cancel func()) {
	if text == n.self {
		done(text, nil)
		return nil
	}
	host, port, err := splitName(text)
	if err != nil {
		done("", err)
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		done(n.resolved(text, ip, port))
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		ip, err := n.find(ctx, host)
		switch {
		case ctx.Err() != nil: // nobody listens any more
		case err != nil:
			done("", err)
		default:
			done(n.resolved(text, ip, port))
		}
	}()
	return stop
}

// find looks up a host name.
func (n *names) find(ctx context.Context, host string) (netip.Addr, error) {
	ips, err := n.resolver.LookupNetIP(ctx, "ip", host)
	switch {
	case err != nil:
		return netip.Addr{}, na.WithText(na.ErrNoEntry, fmt.Sprintf("host %s was not found: %s", host, lookupReason(err)))
	case len(ips) == 0:
		return netip.Addr{}, na.WithText(na.ErrNoEntry, fmt.Sprintf("host %s has no address", host))
	}
	return preferred(ips).Unmap(), nil
}

// splitName reads "tcp://host:port".
func splitName(text string) (host string, port uint16, err error) {
	rest, ok := strings.CutPrefix(text, prefix)
	switch {
	case !ok:
		return "", 0, notValid(text, "is not a tcp address")
	case strings.HasPrefix(rest, "@"):
		return "", 0, na.WithText(na.ErrNoEntry,
			"address "+text+" names a process that does not listen: only answers on the session that it made reach it")
	}
	const want = ", want tcp://host:port or tcp://[IPv6 address]:port"
	host, service, err := net.SplitHostPort(rest)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) {
			return "", 0, notValid(text, "is not complete: "+bad.Err+want)
		}
		return "", 0, notValid(text, "is not complete"+want)
	}
	if host == "" {
		return "", 0, notValid(text, "names no host"+want)
	}
	p, err := strconv.ParseUint(service, 10, 16)
	if err != nil || p == 0 {
		return "", 0, notValid(text, fmt.Sprintf("has port %q, want a number from 1 to 65535", service))
	}
	return host, uint16(p), nil
}

// resolved returns the canonical name of an address that text led to; our own has one name whichever way it is written.
func (n *names) resolved(text string, ip netip.Addr, port uint16) (string, error) {
	ip = ip.Unmap()
	if ip.IsUnspecified() {
		return "", notValid(text, "names every address of a machine; name one")
	}
	if n.isSelf(ip, port) {
		return n.self, nil
	}
	return canonical(netip.AddrPortFrom(ip, port)), nil
}

// isSelf tells whether a connection to ip and port would come in at the own listening socket.
func (n *names) isSelf(ip netip.Addr, port uint16) bool {
	switch at := n.bound.Addr(); {
	case !n.bound.IsValid() || port != n.bound.Port():
		return false
	case !at.IsUnspecified():
		return ip == at
	case at.Is4() && !ip.Is4():
		return false
	}
	return isLocal(ip)
}

// preferred chooses among the addresses of a host: the first IPv4 one, else the first, as net.Listen does.
func preferred(ips []netip.Addr) netip.Addr {
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip
		}
	}
	return ips[0]
}

// lookupReason is the text of a failed lookup without the name, which the caller prints.
func lookupReason(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Err
	}
	return err.Error()
}

// isLocal tells whether ip is an address of this machine.
func isLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || slices.Contains(machine(), ip.WithZone(""))
}

// machine returns the addresses of this machine.
func machine() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	return addrsOf(all)
}

func addrsOf(all []net.Addr) []netip.Addr {
	var ips []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			ips = append(ips, p.Addr().Unmap())
		}
	}
	return ips
}

// verified tells whether the peer at remote may be taken for the one that listens at the name listen: its machine is
// the same. local is our side of its connection.
func verified(listen string, local, remote netip.Addr) bool {
	ap, err := parseName(listen)
	if err != nil {
		return false
	}
	local, remote = local.Unmap(), remote.Unmap()
	if ap.Addr() == remote {
		return true
	}
	// A process of this machine comes from any of its addresses.
	return (remote.IsLoopback() || remote == local) && isLocal(ap.Addr())
}
