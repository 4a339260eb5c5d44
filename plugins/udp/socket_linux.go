package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A polled is a socket whose calls do not wait; it is in the poller of the context.
type polled struct {
	fd    int
	bound netip.AddrPort
	six   bool

	c  *carrier // nil before start
	id na.PollID
	in []byte
}

var _ na.Pollable = (*polled)(nil)

const mode = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// openPolled binds a socket; an address without an IP is every address of the machine.
func openPolled(where netip.AddrPort) (socket, error) {
	s := &polled{six: !where.Addr().Is4()}
	var err error
	if s.six {
		s.fd, err = unix.Socket(unix.AF_INET6, mode, 0)
		s.six = err != unix.EAFNOSUPPORT || where.Addr().IsValid()
	}
	if !s.six {
		s.fd, err = unix.Socket(unix.AF_INET, mode, 0)
	}
	if err != nil {
		return nil, bindError(where, err)
	}
	if err := s.prepare(where); err != nil {
		_ = unix.Close(s.fd)
		return nil, bindError(where, err)
	}
	return s, nil
}

func (s *polled) prepare(where netip.AddrPort) error {
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize)
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	if s.six {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err := unix.Bind(s.fd, s.sockaddr(where)); err != nil {
		return err
	}
	sa, err := unix.Getsockname(s.fd)
	s.bound = addrPort(sa)
	return err
}

func (s *polled) addr() netip.AddrPort { return s.bound }

func (s *polled) start(c *carrier) (err error) {
	s.c, s.in = c, make([]byte, arq.MaxSize)
	s.id, err = c.e.Context().Poller().Add(s.fd, s)
	return err
}

// burst is how many datagrams are read before what they cause is sent.
const burst = 64

// Ready implements na.Pollable.
func (s *polled) Ready(_, failed bool) {
	if failed {
		s.readErrors()
	}
	for range burst {
		n, sa, err := unix.Recvfrom(s.fd, s.in, 0)
		if err == unix.EINTR || err == unix.ECONNREFUSED {
			continue
		}
		if err != nil {
			break
		}
		s.c.receive(s.in[:n], addrPort(sa))
	}
	s.c.received()
}

// readErrors empties the queue of errors, which are answers to datagrams that were sent.
func (s *polled) readErrors() {
	var oob [256]byte
	for {
		_, n, _, to, err := unix.Recvmsg(s.fd, nil, oob[:], unix.MSG_ERRQUEUE)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if refused(oob[:n]) {
			s.c.refused(addrPort(to))
		}
	}
}

// refused reports whether control messages say that nobody receives at a port.
func refused(oob []byte) bool {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range all {
		four := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		six := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (four || six) && len(m.Data) >= 4 { // a struct sock_extended_err begins with the error
			return unix.Errno(binary.NativeEndian.Uint32(m.Data)) == unix.ECONNREFUSED
		}
	}
	return false
}

// send implements socket. The error of an earlier datagram may come up first.
func (s *polled) send(b []byte, to netip.AddrPort) {
	sa := s.sockaddr(to)
	if unix.Sendto(s.fd, b, 0, sa) == unix.ECONNREFUSED {
		_ = unix.Sendto(s.fd, b, 0, sa)
	}
}

func (s *polled) retries() int { return 0 }

func (s *polled) close() {
	if s.c != nil {
		s.c.e.Context().Poller().Remove(s.fd, s.id)
	}
	_ = unix.Close(s.fd)
}

func (s *polled) sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if !s.six {
		sa := &unix.SockaddrInet4{Port: int(ap.Port())}
		if ip := ap.Addr().Unmap(); ip.Is4() {
			sa.Addr = ip.As4()
		}
		return sa
	}
	sa := &unix.SockaddrInet6{Port: int(ap.Port())}
	if ap.Addr().IsValid() {
		sa.Addr = ap.Addr().As16()
	}
	return sa
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
