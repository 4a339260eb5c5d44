package udp

import (
	"errors"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"net/netip"
	"strconv"
	"syscall"
)

// A socket is what sends datagrams, and gives the shared socket those that come in. It has two forms: one in the pollers of the contexts, and
// one that a goroutine reads.
type socket interface {
	// addr returns what it is bound to.
	localAddr() netip.AddrPort
	// room is the size of its receive buffer in bytes.
	bufferSize() int
	// watch has whoever leads c read too, until unwatch. With the shared socket's lock; unwatch without.
	watch(c *contextCarrier) error
	unwatch(c *contextCarrier)
	// send sends the list of datagrams in their order, or loses some. It keeps nothing of them, and notes which are larger than
	// the system sends. It is called by several goroutines at once, without a lock.
	send(o *outbox)
	// retries is how often a dial is repeated that nobody answers, 0: as often as there is time. It is bounded where the system
	// does not say that nobody receives at a port.
	retriesRefused() int
	// close gives the port back. Called without a lock; the shared socket is told nothing afterwards.
	close()
}

// A outboundDatagram is a datagram that goes out.
type outboundDatagram struct {
	b        []byte
	to       netip.AddrPort
	conn     *conn // whose packet it is, which is sealed; nil: there is no TLS
	via      uint8 // the address of ours that it leaves from, as the shared socket numbers them; 0: any
	fragment bool  // it may be larger than the path carries: see split
	again    bool  // it was sent before
}

// bufferSize is what is asked of the system for each direction, in bytes. It may give less.
const bufferSize = 4 << 20

// bindError says why a socket cannot be had. The address is named as the program gave it.
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

// addrText returns an address as it is given to listen on: an AddrPort without an IP, which is every address of the machine, is ":port".
func addrText(where netip.AddrPort) string {
	if where.Addr().IsValid() {
		return where.String()
	}
	return ":" + strconv.Itoa(int(where.Port()))
}
