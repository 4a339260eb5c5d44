package udp

import (
	"errors"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"net/netip"
	"strconv"
	"syscall"
)

// A socket sends datagrams, and passes received ones to the shared socket. There are two
// implementations: pollSocket, which the contexts' pollers read, and goroutineSocket, which a
// dedicated goroutine reads.
type socket interface {
	// localAddr returns the address to which the socket is bound.
	localAddr() netip.AddrPort
	// bufferSize returns the size of the system's receive buffer in bytes.
	bufferSize() int
	// watch makes the poller of c read the socket until unwatch is called. The caller of watch must
	// hold the shared socket's lock. The caller of unwatch must not hold it.
	watch(c *contextCarrier) error
	unwatch(c *contextCarrier)
	// send sends the datagrams in o.list in order. Some may be lost. It records in o the datagrams
	// that the system refuses to send, and retains no reference to any of them. It is safe for
	// concurrent use and must be called without holding any lock.
	send(o *outbox)
	// retriesRefused returns the maximum number of times to repeat an unanswered dial, or 0 to
	// repeat it until the dial times out. The result is nonzero if the socket cannot detect that no
	// socket is bound to the peer's port.
	retriesRefused() int
	// hasInput reports whether datagrams other than bulk data are waiting for a poller to read them.
	// It is safe for concurrent use.
	hasInput() bool
	// close closes the socket. The caller must not hold any lock. After close has returned, no more
	// datagrams are passed to the shared socket.
	close()
}

// An outboundDatagram is a datagram to be sent.
type outboundDatagram struct {
	b        []byte
	to       netip.AddrPort
	conn     *conn // connection whose keys seal the datagram; nil without TLS
	via      uint8 // source address, as a number in sharedSocket.localAddrs; 0 means any
	fragment bool  // whether the datagram may exceed the path MTU; see splitOversized
	again    bool  // whether the datagram is a retransmission
}

// bufferSize is the size in bytes requested for each of the system's two socket buffers. The system
// may grant less.
const bufferSize = 4 << 20

// bindError returns an error for a failure to open a socket on where. The error contains the
// address as the program specified it.
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

// addrText formats a listening address as a program would specify it. The result is ":port" if the
// socket is bound to all of the machine's addresses.
func addrText(where netip.AddrPort) string {
	if where.Addr().IsValid() {
		return where.String()
	}
	return ":" + strconv.Itoa(int(where.Port()))
}
