package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/libp2p/go-reuseport"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

// listen binds the address with which the class was opened and sets the class's canonical name. If the class does not
// listen, it returns nil without an error.
func (d *domain) listen(rest string) (*net.TCPListener, error) {
	if rest == "" {
		return nil, nil
	}
	where, err := d.names.Where(rest)
	if err != nil {
		return nil, err
	}
	l := d.opts.Listener
	if l == nil {
		if l, err = bind(where, d.opts.Control); err != nil {
			return nil, bindError(where, err)
		}
	} else if err := checkListenerAddr(l, where); err != nil {
		return nil, err
	}
	d.names.Bound = inet.Unmapped(l.Addr().(*net.TCPAddr).AddrPort())
	if d.opts.ReusePort {
		if err := d.enablePortSharing(l); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	ap := d.names.Bound
	switch {
	case d.opts.Advertise != "":
		ap, _ = parseAdvertise(d.opts.Advertise, ap.Port()) // validate has already checked that it can be parsed
	case ap.Addr().IsUnspecified():
		ap = netip.AddrPortFrom(inet.Outward(ap.Addr()), ap.Port())
	}
	d.names.Self = inet.Canonical(scheme, ap)
	return l, nil
}

// checkListenerAddr returns an error if l, which is Options.Listener, does not listen at the address with which the
// class was opened.
func checkListenerAddr(l *net.TCPListener, where netip.AddrPort) error {
	at := inet.Unmapped(l.Addr().(*net.TCPAddr).AddrPort())
	if where.Port() != 0 && where.Port() != at.Port() || where.IsValid() && !where.Addr().IsUnspecified() && where.Addr() != at.Addr() {
		return codes.WithText(codes.ErrInvalid, fmt.Sprintf("tcp: options: Listener is at %v, but the class is opened at %v", at, where))
	}
	return nil
}

// bind returns a socket that listens at where. If where is invalid, the socket listens at every address of the machine.
func bind(where netip.AddrPort, control func(network, address string, c syscall.RawConn) error) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: control, KeepAlive: -1}
	lc.SetMultipathTCP(false)
	network, text := "tcp", fmt.Sprintf(":%d", where.Port())
	if where.IsValid() {
		text = where.String()
	}
	if where.Addr().Is4() {
		network = "tcp4" // with "tcp", 0.0.0.0 would include IPv6
	}
	l, err := lc.Listen(context.Background(), network, text)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// enablePortSharing allows further sockets of the same user to listen on the port of l, which was bound exclusively. If
// a second server is started by mistake, binding the port therefore still fails, unless it also uses ReusePort.
func (d *domain) enablePortSharing(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err == nil {
		err = reuseport.Control("tcp", "", raw)
	}
	if err != nil {
		return codes.WithText(codes.ErrUnsupported, "share the listening port: "+secure.Innermost(err))
	}
	return nil
}

// bindSibling returns a further socket that listens at the same address as the first.
func (d *domain) bindSibling() (net.Listener, error) {
	l, err := bind(d.names.Bound, func(network, address string, c syscall.RawConn) error {
		if f := d.opts.Control; f != nil {
			if err := f(network, address, c); err != nil {
				return err
			}
		}
		return reuseport.Control(network, address, c)
	})
	if err != nil {
		return nil, bindError(d.names.Bound, err)
	}
	return l, nil
}

// bindError returns err, which occurred while binding where, with the corresponding error code.
func bindError(where netip.AddrPort, err error) error {
	code := codes.ErrIO
	switch {
	case isErrno(err, syscall.EADDRINUSE, 10048):
		code = codes.ErrAddrInUse
	case isErrno(err, syscall.EADDRNOTAVAIL, 10049):
		code = codes.ErrAddrInvalid
	case isErrno(err, syscall.EACCES, 10013):
		code = codes.ErrPermission
	}
	text := where.String()
	if !where.IsValid() {
		text = fmt.Sprintf("port %d", where.Port())
	}
	return codes.WithText(code, fmt.Sprintf("listen on %s: %s", text, secure.Innermost(err)))
}

// isErrno reports whether err is an errno that has the value unix on Unix and the value windows on Windows.
func isErrno(err error, unix, windows syscall.Errno) bool {
	if runtime.GOOS == "windows" {
		unix = windows
	}
	return errors.Is(err, unix)
}

// parseAdvertise parses Options.Advertise, which is an IP address with an optional port. The port defaults to port.
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
		return ap, errors.New("cannot dial a wildcard address")
	}
	return ap, nil
}
