package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"

	"github.com/libp2p/go-reuseport"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// listen binds the address that the class was opened with and settles its name; nil when there is none.
func (d *domain) listen(rest string) (*net.TCPListener, error) {
	if rest == "" {
		return nil, nil
	}
	where, err := d.listenAddr(rest)
	if err != nil {
		return nil, err
	}
	l, err := bind(where, nil)
	if err != nil {
		return nil, bindError(where, err)
	}
	d.names.bound = unmapped(l.Addr().(*net.TCPAddr).AddrPort())
	if d.opts.ReusePort {
		if err := d.openToSiblings(l); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	ap := d.names.bound
	switch {
	case d.opts.Advertise != "":
		ap, _ = parseAdvertise(d.opts.Advertise, ap.Port()) // validate has parsed it
	case ap.Addr().IsUnspecified():
		ap = netip.AddrPortFrom(outward(ap.Addr()), ap.Port())
	}
	d.names.self = canonical(ap)
	return l, nil
}

// listenAddr reads "host:port" of a listening address. host is an IP address, the name of an interface or of a host, or
// nothing for every address of the machine.
func (d *domain) listenAddr(rest string) (where netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(rest)
	if err != nil {
		return where, notValid(prefix+rest, "is not complete, want tcp://host:port, tcp://:port, or port 0 for any")
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return where, notValid(prefix+rest, fmt.Sprintf("has port %q, want a number from 0 to 65535", service))
	}
	ip, err := d.listenIP(host)
	return netip.AddrPortFrom(ip, uint16(port)), err
}

func (d *domain) listenIP(host string) (netip.Addr, error) {
	if host == "" {
		return netip.Addr{}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap(), nil
	}
	if ifc, err := net.InterfaceByName(host); err == nil {
		return addrOf(ifc)
	}
	return d.names.find(context.Background(), host)
}

// addrOf returns an address of an interface: the first IPv4 one, else the first.
func addrOf(ifc *net.Interface) (netip.Addr, error) {
	all, err := ifc.Addrs()
	if ips := addrsOf(all); err == nil && len(ips) > 0 {
		ip := preferred(ips)
		if ip.IsLinkLocalUnicast() && ip.Is6() {
			ip = ip.WithZone(ifc.Name)
		}
		return ip, nil
	}
	return netip.Addr{}, na.WithText(na.ErrAddrInvalid, "interface "+ifc.Name+" has no address")
}

// bind makes a listening socket; an address without an IP means every address of the machine.
func bind(where netip.AddrPort, control func(network, address string, c syscall.RawConn) error) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: control, KeepAlive: -1}
	lc.SetMultipathTCP(false)
	network, text := "tcp", fmt.Sprintf(":%d", where.Port())
	if where.IsValid() {
		text = where.String()
	}
	if where.Addr().Is4() {
		network = "tcp4" // else 0.0.0.0 would mean IPv6 too
	}
	l, err := lc.Listen(context.Background(), network, text)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// openToSiblings lets further sockets of the same user share the port of l, which was bound exclusively: a second
// server that is started by mistake is refused all the same, unless it asks to share.
func (d *domain) openToSiblings(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err == nil {
		err = reuseport.Control("tcp", "", raw)
	}
	if err != nil {
		return na.WithText(na.ErrUnsupported, "share the listening port: "+reason(err))
	}
	return nil
}

// bindSibling makes one more listening socket on the port of the first.
func (d *domain) bindSibling() (*net.TCPListener, error) {
	l, err := bind(d.names.bound, reuseport.Control)
	if err != nil {
		return nil, bindError(d.names.bound, err)
	}
	return l, nil
}

// bindError says why a listening socket cannot be had.
func bindError(where netip.AddrPort, err error) error {
	code := na.ErrIO
	switch {
	case isErrno(err, syscall.EADDRINUSE, 10048):
		code = na.ErrAddrInUse
	case isErrno(err, syscall.EADDRNOTAVAIL, 10049):
		code = na.ErrAddrInvalid
	case isErrno(err, syscall.EACCES, 10013):
		code = na.ErrPermission
	}
	text := where.String()
	if !where.IsValid() {
		text = fmt.Sprintf("port %d", where.Port())
	}
	return na.WithText(code, fmt.Sprintf("listen on %s: %s", text, reason(err)))
}

// isErrno tells whether err is an errno, which has a number of its own on Windows.
func isErrno(err error, unix, windows syscall.Errno) bool {
	if runtime.GOOS == "windows" {
		unix = windows
	}
	return errors.Is(err, unix)
}

// parseAdvertise reads Options.Advertise: an IP address, with port if it has none.
func parseAdvertise(text string, port uint16) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(text); err != nil {
			return ap, err
		}
		ap = netip.AddrPortFrom(ip, port)
	}
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), port)
	}
	if ap.Addr().IsUnspecified() {
		return ap, errors.New("a wildcard address cannot be dialled")
	}
	return ap, nil
}

// outward chooses the address to be told to peers when the socket listens on all of them: the one that the default
// route uses, else the first that is not confined to the machine or its link, else loopback.
func outward(wildcard netip.Addr) netip.Addr {
	fits := func(ip netip.Addr) bool {
		return ip.IsGlobalUnicast() && !ip.IsLinkLocalUnicast() && (ip.Is4() || wildcard.Is6())
	}
	// Connecting a datagram socket sends nothing: it asks the routing table. The addresses are reserved for examples.
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

// isLocal4 tells whether the machine speaks IPv4 at all.
func isLocal4() bool {
	for _, ip := range machine() {
		if ip.Is4() {
			return true
		}
	}
	return false
}

func unmapped(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
