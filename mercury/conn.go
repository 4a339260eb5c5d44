package mercury

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// A conn is an established connection. One goroutine reads from it. Any goroutine that has something to send may write
// to it (see flushLocked).
type conn struct {
	node   *Node
	nc     net.Conn
	poller *nonblockingIO // used for writes; nil if nc does not support it
	name   netip.AddrPort // the peer's IP address, and the port that it announced
	addr   string         // text form of name
	self   netip.AddrPort // this node's address as seen by the peer
	pid    uint32         // the peer's process ID

	ctx    context.Context // canceled when the connection is closed
	cancel context.CancelFunc
	done   <-chan struct{} // ctx.Done()
	wake   chan struct{}   // has one slot; wakes writeLoop

	reader *connReader // used only by readLoop

	verifier hgwire.Verifier // verifies the peer's checksums

	mu         sync.Mutex     // guards the fields below, except those used only by the writer
	err        error          // reason why the connection was closed; nil while it is open
	out        []byte         // messages to write
	spare      []byte         // second buffer, swapped with out
	acksToSend int            // number of write acknowledgements to send
	jobs       []*dataMessage // messages to write after out
	job        *dataMessage   // the message being written
	writing    bool           // a goroutine, called the writer, is writing
	nextID     uint8
	roomFreed  chan struct{} // closed when out has room again; nil if no call is waiting for that

	// The writer uses these fields without holding the lock.
	unwritten []byte           // remainder of the last write
	staged    *[stageSize]byte // the buffer that contains unwritten; nil if unwritten is part of out

	firstTag       uint32 // first tag for calls made by this side; immutable
	lastCall       uint32 // last tag minus firstTag
	calls          map[uint32]*pendingCall
	pendingReads   fifo[*chunkOp] // in the order in which their responses arrive
	pendingWrites  fifo[*chunkOp] // in the order in which their acknowledgements arrive
	lentOut        lentBodies
	activeHandlers int        // number of goroutines in runHandlers
	queuedRequests []*Request // requests that exceed Config.MaxActive
	sums           checksumState
	probing        chan struct{} // closed when the probe has completed; nil if there is none
}

// A fifo is a queue. It does not retain popped elements.
type fifo[T any] struct{ q []T }

func (f *fifo[T]) push(v T) { f.q = append(f.q, v) }

func (f *fifo[T]) pop() (v T, ok bool) {
	if len(f.q) == 0 {
		return v, false
	}
	v = f.q[0]
	var zero T
	f.q[0] = zero
	f.q = f.q[1:]
	if len(f.q) == 0 {
		f.q = nil
	}
	return v, true
}

// newConn returns a connection over nc. name is the peer's address, self is this node's address as seen by the peer,
// and s is the set-up message that the peer sent. The caller must call start.
func (n *Node) newConn(nc net.Conn, name, self netip.AddrPort, s xnet.Setup) *conn {
	c := &conn{node: n, nc: nc, name: name, addr: addrText(name), self: self, pid: s.PID,
		wake: make(chan struct{}, 1), calls: map[uint32]*pendingCall{}, firstTag: firstTag}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.done = c.ctx.Done()
	c.reader = &connReader{conn: c, buf: make([]byte, readSize)}
	c.poller, c.reader.poller = newNonblockingIO(nc)
	switch n.cfg.Checksums {
	case On:
		c.sums = sumsOn
	case Off:
		c.sums = sumsOff
	}
	return c
}

// start starts the goroutines of c, which exit when the connection is closed.
func (c *conn) start() {
	go c.writeLoop()
	go c.readLoop()
}

// tryWrite writes as many bytes of b as the socket accepts without blocking, and returns their number. It writes
// nothing if nc does not support nonblocking writes.
func (c *conn) tryWrite(b []byte) (int, error) {
	if c.poller == nil {
		return 0, nil
	}
	n, _, err := c.poller.transfer(buffer{b: b}, false)
	return n, err
}

// fail closes the connection and fails all its operations with err. It may be called more than once. Only the first
// call has an effect.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls, reads, writes, jobs, lent, queued := c.calls, c.pendingReads.q, c.pendingWrites.q, c.jobs, c.lentOut, c.queuedRequests
	c.job, c.calls, c.pendingReads.q, c.pendingWrites.q, c.jobs, c.lentOut, c.queuedRequests = nil, nil, nil, nil, nil, lentBodies{}, nil
	c.signalRoomLocked()
	for _, ops := range [][]*chunkOp{reads, writes} {
		for _, o := range ops {
			o.transfer.endLocked(err)
		}
	}
	for _, j := range jobs {
		if j.op != nil {
			j.op.transfer.endLocked(err)
		}
	}
	c.mu.Unlock()
	c.node.removeConn(c) // before the peer sees the close, because it may reconnect immediately
	_ = c.nc.Close()
	c.cancel()
	for _, k := range calls {
		k.complete(nil, &Error{Fate: MaybeRan, Err: err})
	}
	for _, l := range lent.bodies {
		l.region.Close()
	}
	for _, r := range queued {
		c.node.chargeBudget(-int64(len(r.in)))
	}
}
