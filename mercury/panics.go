package mercury

import (
	"net"
	"runtime/debug"
	"sync/atomic"
)

// failpoint, if not nil, is called with the bytes of a peer before they are handled. Only tests set it.
var failpoint atomic.Pointer[func(b []byte)]

// callFailpoint calls failpoint.
func callFailpoint(b []byte) {
	if f := failpoint.Load(); f != nil {
		(*f)(b)
	}
}

// Panics returns the number of panics of this package, not of handlers, caused by the bytes of peers. Each has closed
// the connection of the peer, and its stack is in the log: please report it.
func (n *Node) Panics() int64 { return n.panics.Load() }

// recordPanic counts and logs a recovered panic, and returns the error of the connection.
func (n *Node) recordPanic(v any, peer string) error {
	n.panics.Add(1)
	n.logger().Error("mercury: panic while handling data from a peer; connection closed, please report it",
		"peer", peer, "panic", v, "stack", string(debug.Stack()))
	return errorf(ErrPeerLost, "%v: panic while handling data from the peer: %v", ErrPeerLost, v)
}

// rescue recovers from a panic of a goroutine that handles the bytes of the peer of c, and closes c. It must be
// deferred where no lock is held.
func (c *conn) rescue() {
	if v := recover(); v != nil {
		c.fail(c.node.recordPanic(v, c.addr))
	}
}

// rescueSetup is rescue for a connection that is being set up.
func (n *Node) rescueSetup(nc net.Conn, err *error) {
	if v := recover(); v != nil {
		*err = n.recordPanic(v, nc.RemoteAddr().String())
	}
}
