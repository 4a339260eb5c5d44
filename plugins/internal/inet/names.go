package inet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/happyeyeballs"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// Names resolves and validates the addresses of a transport for one class. It implements carrier.Names.
type Names struct {
	Scheme   string         // scheme of the transport, without "://"
	Self     string         // canonical or private name of the class
	Bound    netip.AddrPort // address on which the class listens; zero if it does not
	Resolver Resolver
	Certify  bool // peers must present certificates that are valid for the host by which they were looked up
}

// A Resolver looks up the addresses of a host. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Canonical returns the canonical name for ap, such as "tcp://10.0.0.7:9000".
func Canonical(scheme string, ap netip.AddrPort) string {
	return scheme + "://" + Unmapped(ap).String()
}

// Parse returns the address in name, a canonical name of the transport with the given scheme.
func Parse(scheme, name string) (netip.AddrPort, error) {
	rest, ok := strings.CutPrefix(name, scheme+"://")
	if !ok {
		return netip.AddrPort{}, notValid(name, "is not a "+scheme+" address")
	}
	if strings.HasPrefix(rest, "@") {
		return netip.AddrPort{}, codes.WithText(codes.ErrUnreachable,
			"address "+name+" is of a process that does not listen")
	}
	ap, err := netip.ParseAddrPort(rest)
	switch {
	case err != nil:
		return ap, notValid(name, "is not an IP address with a port; resolve host names with Lookup")
	case ap.Port() == 0:
		return ap, notValid(name, "has port 0, want 1 to 65535")
	case ap.Addr().IsUnspecified():
		return ap, notValid(name, "is a wildcard address")
	case Canonical(scheme, ap) != name:
		return ap, notValid(name, "is not in its canonical form "+Canonical(scheme, ap)+", which Lookup returns")
	}
	return ap, nil
}

func notValid(name, why string) error {
	return codes.WithText(codes.ErrInvalid, "address "+name+" "+why)
}

// maxAddresses is the maximum number of addresses of one host that a name may contain. All of them are dialed.
const maxAddresses = 8

// choice is the separator between addresses in a name that contains several.
const choice = "|"

// Expand implements carrier.Expander.
func (n *Names) Expand(name string) (all []string) {
	if !strings.Contains(name, choice) {
		return nil
	}
	for _, at := range strings.Split(strings.TrimPrefix(name, n.Scheme+"://"), choice) {
		all = append(all, n.Scheme+"://"+at)
	}
	return all
}

// Check implements carrier.Names.
func (n *Names) Check(name string) error {
	all := n.Expand(name)
	if all == nil {
		all = []string{name}
	}
	if len(all) > maxAddresses {
		return notValid(name, fmt.Sprintf("has %d addresses, the limit is %d", len(all), maxAddresses))
	}
	for _, one := range all {
		if _, err := Parse(n.Scheme, one); err != nil {
			return err
		}
	}
	return nil
}

// Resolve implements carrier.Names. Numeric addresses are resolved immediately. Host names are resolved on another
// goroutine. After cancel, that goroutine exits as soon as the resolver honors its context.
func (n *Names) Resolve(text string, done func(name string, err error)) (cancel func()) {
	if text == n.Self {
		done(text, nil)
		return nil
	}
	_, at, err := n.split(text)
	if err != nil {
		done("", err)
		return nil
	}
	if addrs, ok := numeric(at); ok {
		done(n.resolved(text, addrs))
		return nil
	}
	host, port := at[0].host, at[0].port
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		ips, err := n.find(ctx, host)
		switch {
		case ctx.Err() != nil: // the lookup was canceled
		case err != nil:
			done("", err)
		default:
			var addrs []netip.AddrPort
			for _, ip := range happyeyeballs.Order(ips) {
				addrs = append(addrs, netip.AddrPortFrom(ip, port))
			}
			done(n.resolved(text, addrs))
		}
	}()
	return stop
}

// Host implements carrier.Certifier.
func (n *Names) Host(text string) string {
	wanted, at, err := n.split(text)
	if err != nil || !n.Certify || text == n.Self {
		return ""
	}
	if wanted != "" {
		return wanted
	}
	if _, ok := numeric(at); ok {
		return "" // the certificate must be valid for the address itself
	}
	return strings.TrimSuffix(at[0].host, ".")
}

// Carries implements carrier.Certifier.
func (n *Names) Carries(id *carrier.Proof, name, host string) error {
	if !n.Certify || id == nil || !id.Secure {
		return nil
	}
	if len(id.Certificates) == 0 {
		return codes.WithText(codes.ErrPermission, "the peer presented no certificate")
	}
	if host == "" {
		host = HostOf(n.Scheme, name)
	}
	if c := id.Certificates[0]; c.VerifyHostname(host) != nil {
		return codes.WithText(codes.ErrPermission, fmt.Sprintf("the peer at %s is not %s: its certificate is %s", name, host, NotFor(c, host)))
	}
	return nil
}

// maxNamed is the maximum number of a certificate's names that an error text lists.
const maxNamed = 16

// NotFor returns a text that lists the names in c, a certificate that is not valid for host.
func NotFor(c *x509.Certificate, host string) string {
	return "valid for " + NamesIn(c) + ", not " + host
}

// NamesIn returns the DNS names, IP addresses and URIs for which c is valid, separated by commas.
func NamesIn(c *x509.Certificate) string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	switch n := len(names); {
	case n == 0:
		return fmt.Sprintf("only the common name %q, which is ignored", c.Subject.CommonName)
	case n > maxNamed:
		names = append(names[:maxNamed], fmt.Sprintf("%d more", n-maxNamed))
	}
	return strings.Join(names, ", ")
}

// HostOf returns the IP address in name, a canonical name, in the form used in certificates.
func HostOf(scheme, name string) string {
	ap, _ := Parse(scheme, name)
	return ap.Addr().WithZone("").String()
}

// find looks up host. If it returns no error, it returns at least one address.
func (n *Names) find(ctx context.Context, host string) ([]netip.Addr, error) {
	ips, err := n.Resolver.LookupNetIP(ctx, "ip", host)
	switch {
	case err != nil:
		return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("host %s was not found: %s", host, lookupReason(err)))
	case len(ips) == 0:
		return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("host %s has no address", host))
	}
	return ips, nil
}

// A target is a host name or IP address, with a port.
type target struct {
	host string
	port uint16
}

// split parses text, which is either "SCHEME://host:port" or a resolved address as printed. A resolved address has the
// form "SCHEME://wanted@IP:port", where wanted is the host name, or "SCHEME://IP:port|IP:port" if there are several.
func (n *Names) split(text string) (wanted string, at []target, err error) {
	rest, ok := strings.CutPrefix(text, n.Scheme+"://")
	switch {
	case !ok:
		return "", nil, notValid(text, "is not a "+n.Scheme+" address")
	case strings.HasPrefix(rest, "@"):
		return "", nil, notValid(text, "is of a process that does not listen")
	}
	wanted, list, both := strings.Cut(rest, "@")
	if !both {
		wanted, list = "", rest
	}
	for _, one := range strings.Split(list, choice) {
		t, err := n.splitOne(text, one)
		if err != nil {
			return "", nil, err
		}
		at = append(at, t)
	}
	if _, ok := numeric(at); !ok && len(at) > 1 {
		return "", nil, notValid(text, "has a host name among several addresses, want IP addresses")
	}
	if len(at) > maxAddresses {
		return "", nil, notValid(text, fmt.Sprintf("has %d addresses, the limit is %d", len(at), maxAddresses))
	}
	return wanted, at, nil
}

// splitOne parses one, the "host:port" of one of the addresses in text. text is used in error messages.
func (n *Names) splitOne(text, one string) (t target, err error) {
	want := fmt.Sprintf(", want %[1]s://host:port or %[1]s://[IPv6 address]:port", n.Scheme)
	host, service, err := net.SplitHostPort(one)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) {
			return t, notValid(text, "is not complete: "+bad.Err+want)
		}
		return t, notValid(text, "is not complete"+want)
	}
	if host == "" {
		return t, notValid(text, "has no host"+want)
	}
	p, err := strconv.ParseUint(service, 10, 16)
	if err != nil || p == 0 {
		return t, notValid(text, fmt.Sprintf("has port %q, want a number from 1 to 65535", service))
	}
	return target{host, uint16(p)}, nil
}

// numeric returns the addresses of the targets. ok is false if one of them has a host name.
func numeric(at []target) (addrs []netip.AddrPort, ok bool) {
	for _, t := range at {
		ip, err := netip.ParseAddr(t.host)
		if err != nil {
			return nil, false
		}
		addrs = append(addrs, netip.AddrPortFrom(ip, t.port))
	}
	return addrs, true
}

// resolved returns the canonical name for addrs, the addresses to which text was resolved, in order of preference. If
// the first address of its family is one of this process, the name is that of this process, in whichever form it was
// written. Any other address of this process is omitted, because this process is then not the one being looked up.
func (n *Names) resolved(text string, addrs []netip.AddrPort) (string, error) {
	var all []string
	var first [2]bool // whether an address of the family has been seen
	for _, ap := range addrs {
		ap = Unmapped(ap)
		if ap.Addr().IsUnspecified() {
			continue
		}
		family := &first[0]
		if ap.Addr().Is6() {
			family = &first[1]
		}
		switch {
		case n.isSelf(ap.Addr(), ap.Port()) && !*family:
			return n.Self, nil
		case n.isSelf(ap.Addr(), ap.Port()):
		case len(all) == 0:
			all = append(all, Canonical(n.Scheme, ap))
		case len(all) < maxAddresses:
			all = append(all, ap.String())
		}
		*family = true
	}
	if len(all) == 0 {
		return "", notValid(text, "is a wildcard address")
	}
	return strings.Join(all, choice), nil
}

// isSelf reports whether a connection to ip and port would reach the listener of this class.
func (n *Names) isSelf(ip netip.Addr, port uint16) bool {
	switch at := n.Bound.Addr(); {
	case !n.Bound.IsValid() || port != n.Bound.Port():
		return false
	case !at.IsUnspecified():
		return ip == at
	case at.Is4() && !ip.Is4():
		return false
	}
	return IsLocal(ip)
}

// lookupReason returns the text of a lookup error without the host name, which the caller prints.
func lookupReason(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Err
	}
	return err.Error()
}

// IsLocal reports whether ip is an address of this machine.
func IsLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || slices.Contains(machine(), ip.WithZone(""))
}

// machine returns the IP addresses of this machine.
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

// Verified reports whether the peer at the address remote may be identified with the process that listens at listen,
// because both are on the same machine. local is the local address of the connection, or zero.
func (n *Names) Verified(listen string, local, remote netip.Addr) bool {
	ap, err := Parse(n.Scheme, listen)
	if err != nil {
		return false
	}
	local, remote = local.Unmap(), remote.Unmap()
	if ap.Addr() == remote {
		return true
	}
	// A process on this machine may use any of the machine's addresses.
	return (remote.IsLoopback() || remote == local) && IsLocal(ap.Addr())
}

// Unmapped returns ap with an IPv4-mapped IPv6 address converted to IPv4.
func Unmapped(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
