package mercury

import (
	"net"
	"runtime/debug"
	"sync/atomic"
)

// failpoint, if set, is called with the bytes received from a peer before they are handled. It is set only by tests.
var failpoint atomic.Pointer[func(b []byte)]

// callFailpoint calls failpoint if it is set.
func callFailpoint(b []byte) {
	if f := failpoint.Load(); f != nil {
		(*f)(b)
	}
}

// Panics returns the number of panics in this package, excluding those in handlers, that were caused by data from
// peers. Each of them has closed the connection to the peer and logged the stack. Please report them.
func (n *Node) Panics() int64 { return n.panics.Load() }

// recordPanic counts and logs a recovered panic. It returns the error with which to close the connection.
func (n *Node) recordPanic(v any, peer string) error {
	n.panics.Add(1)
	n.logger().Error("mercury: panic while handling data from a peer; connection closed, please report it",
		"peer", peer, "panic", v, "stack", string(debug.Stack()))
	return errorf(ErrPeerLost, "%v: panic while handling data from the peer: %v", ErrPeerLost, v)
}

// rescue recovers from a panic in a goroutine that handles data from the peer of c, and closes c. It must be deferred.
// No lock may be held when it runs.
func (c *conn) rescue() {
	if v := recover(); v != nil {
		c.fail(c.node.recordPanic(v, c.addr))
	}
}

// rescueSetup is like rescue for a connection that is being set up. It stores the error in *err.
func (n *Node) rescueSetup(nc net.Conn, err *error) {
	if v := recover(); v != nil {
		*err = n.recordPanic(v, nc.RemoteAddr().String())
	}
}
