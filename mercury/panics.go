package mercury

import (
	"net"
	"runtime/debug"
	"sync/atomic"
)

// failpoint, if not nil, is called with what a peer has sent. Only tests set it.
var failpoint atomic.Pointer[func(b []byte)]

func read(b []byte) {
	if f := failpoint.Load(); f != nil {
		(*f)(b)
	}
}

// Panics counts the panics of the package itself over what peers had sent. Each has cost the peer its connection, and its stack is in the log:
// please report it.
func (n *Node) Panics() int64 { return n.panics.Load() }

// caught counts and logs a panic that has been recovered, and returns the error of the connection.
func (n *Node) caught(v any, peer string) error {
	n.panics.Add(1)
	n.log().Error("mercury: a panic while the bytes of a peer were handled: its connection is cut, please report it",
		"peer", peer, "panic", v, "stack", string(debug.Stack()))
	return errorf(ErrPeerLost, "%v: a defect of this side: it panicked while it handled what the peer had sent: %v", ErrPeerLost, v)
}

// rescue ends a panic of a goroutine that handles what the peer of c has sent. It is deferred, where no lock is held.
func (c *conn) rescue() {
	if v := recover(); v != nil {
		c.fail(c.n.caught(v, c.addr))
	}
}

// rescueSetup is rescue where there is no connection yet.
func (n *Node) rescueSetup(nc net.Conn, err *error) {
	if v := recover(); v != nil {
		*err = n.caught(v, nc.RemoteAddr().String())
	}
}
