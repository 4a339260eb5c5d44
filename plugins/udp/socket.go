package udp

import (
	"errors"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"net/netip"
	"strconv"
	"syscall"
)

// A socket sends datagrams, and passes received ones to the shared socket. It has two
// implementations: pollSocket is read by the pollers of the contexts, goroutineSocket by a
// goroutine of its own.
type socket interface {
	// localAddr returns the address that the socket is bound to.
	localAddr() netip.AddrPort
	// bufferSize returns the size of the receive buffer in bytes.
	bufferSize() int
	// watch makes the poller of c read the socket too, until unwatch. The caller of watch holds the
	// shared socket's lock, that of unwatch does not.
	watch(c *contextCarrier) error
	unwatch(c *contextCarrier)
	// send sends the datagrams of o in order, and may lose some. It adds those that the system
	// refuses to o, and keeps no reference to them. Several goroutines may call it at once; they
	// hold no lock.
	send(o *outbox)
	// retriesRefused limits how often an unanswered dial is repeated; 0 means until its timeout. It
	// is not 0 where the system does not report that no socket is bound to the peer's port.
	retriesRefused() int
	// close closes the socket. The caller holds no lock. The shared socket gets no datagram after
	// close has returned.
	close()
}

// An outboundDatagram is a datagram to be sent.
type outboundDatagram struct {
	b        []byte
	to       netip.AddrPort
	conn     *conn // the connection whose keys seal it; nil: there is no TLS
	via      uint8 // the local address to send from, by its number in sharedSocket.localAddrs; 0: any
	fragment bool  // it may be larger than the path carries: see splitOversized
	again    bool  // it was sent before
}

// bufferSize is the size that is requested for each of the system's two buffers, in bytes. The
// system may give less.
const bufferSize = 4 << 20

// bindError returns the error of a socket that cannot be opened. It names the address as the
// program has given it.
func bindError(where netip.AddrPort, err error) error {
	code := codes.ErrIO
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		code = codes.ErrAddrInUse
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		code = codes.ErrAddrInvalid
	case errors.Is(err, syscall.EACCES):
		code = codes.ErrPermission
	}
	what := "open a socket"
	if where != (netip.AddrPort{}) {
		what = "listen on " + addrText(where)
	}
	return codes.WithText(code, what+": "+err.Error())
}

// addrText returns an address in the form in which it is given to listen on: ":port" for every
// address of the machine.
func addrText(where netip.AddrPort) string {
	if where.Addr().IsValid() {
		return where.String()
	}
	return ":" + strconv.Itoa(int(where.Port()))
}
