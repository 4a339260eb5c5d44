package udp

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A socket is where a context's datagrams come in and go out. It has two forms: one in the poller of the context, and one that
// a goroutine reads.
type socket interface {
	// addr returns what it is bound to.
	addr() netip.AddrPort
	// start has the socket give c what arrives, until close.
	start(c *carrier) error
	// send sends one datagram, or loses it. It keeps nothing of b. Called with the endpoint locked.
	send(b []byte, to netip.AddrPort)
	// retries is how often a dial is repeated that nobody answers, 0: as often as there is time. It is bounded where the system
	// does not say that nobody receives at a port.
	retries() int
	// close gives the port back. Called without the lock; c is not called afterwards.
	close()
}

// bufferSize is what is asked of the system for each direction, in bytes. It may give less.
const bufferSize = 4 << 20

// bindError says why a socket cannot be had.
func bindError(where netip.AddrPort, err error) error {
	code := na.ErrIO
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		code = na.ErrAddrInUse
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		code = na.ErrAddrInvalid
	case errors.Is(err, syscall.EACCES):
		code = na.ErrPermission
	}
	return na.WithText(code, "listen on "+where.String()+": "+err.Error())
}
