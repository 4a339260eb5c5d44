package udp

import (
	"errors"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"net/netip"
	"strconv"
	"syscall"
)

// A socket sends datagrams, and passes received ones to the shared socket. There are two
// implementations: a pollSocket is read by the contexts' pollers, and a goroutineSocket by its own
// goroutine.
type socket interface {
	// localAddr returns the address to which the socket is bound.
	localAddr() netip.AddrPort
	// bufferSize returns the size of the receive buffer in bytes.
	bufferSize() int
	// watch makes the poller of c also read the socket, until unwatch. The caller of watch must
	// hold the shared socket's lock, and the caller of unwatch must not.
	watch(c *contextCarrier) error
	unwatch(c *contextCarrier)
	// send sends the datagrams of o in order, and may lose some. It records in o those that the
	// system refuses to send, and retains no reference to the datagrams. It may be called
	// concurrently, without holding any lock.
	send(o *outbox)
	// retriesRefused returns the maximum number of times to repeat an unanswered dial, or 0 to
	// repeat it until its timeout. It is nonzero if the system does not report that no socket is
	// bound to the peer's port.
	retriesRefused() int
	// close closes the socket. The caller must not hold any lock. After close returns, the shared
	// socket receives no datagrams.
	close()
}

// An outboundDatagram is a datagram to be sent.
type outboundDatagram struct {
	b        []byte
	to       netip.AddrPort
	conn     *conn // connection whose keys seal the datagram; nil without TLS
	via      uint8 // source address, as a number in sharedSocket.localAddrs; 0 means any
	fragment bool  // may be larger than the path MTU; see splitOversized
	again    bool  // was sent before
}

// bufferSize is the size in bytes requested for each of the system's two socket buffers. The system
// may grant less.
const bufferSize = 4 << 20

// bindError returns the error for a socket that could not be opened. The error contains the address
// as specified by the program.
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

// addrText returns a listening address as the program would specify it. It is ":port" for every
// address of the machine.
func addrText(where netip.AddrPort) string {
	if where.Addr().IsValid() {
		return where.String()
	}
	return ":" + strconv.Itoa(int(where.Port()))
}
