package mercury

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// A conn is a connection that is set up. One goroutine reads it; any goroutine that has something to send writes it;
// see write.go.
type conn struct {
	node   *Node
	nc     net.Conn
	poller *nonblockingIO // for writes; nil if nc does not support it
	name   netip.AddrPort // of the peer: its IP address, and the port that it has announced
	addr   string         // the text of name
	self   netip.AddrPort // address of this node for the peer
	pid    uint32         // of the peer

	ctx    context.Context // canceled when the connection ends
	cancel context.CancelFunc
	done   <-chan struct{} // ctx.Done()
	wake   chan struct{}   // wakes writeLoop

	reader *connReader // used by readLoop

	verifier hgwire.Verifier // of the checksums of the peer

	mu         sync.Mutex     // guards the fields below, except those that the writer uses
	err        error          // why the connection has ended; nil if it has not
	out        []byte         // messages to write
	spare      []byte         // the other buffer for out
	acksToSend int            // acknowledgements of writes
	jobs       []*dataMessage // messages to write after out
	job        *dataMessage   // the message that is being written
	writing    bool           // a goroutine writes: it is the writer
	nextID     uint8
	roomFreed  chan struct{} // closed when out has room again; nil if no call waits for that

	// The writer uses these fields without the lock.
	unwritten []byte           // rest of the last write
	staged    *[stageSize]byte // the buffer of unwritten; nil if that is part of out

	firstTag       uint32 // of calls of this side; does not change
	lastCall       uint32 // the last tag is firstTag plus this
	calls          map[uint32]*pendingCall
	pendingReads   fifo[*chunkOp] // in the order of their responses
	pendingWrites  fifo[*chunkOp] // in the order of their acknowledgements
	lentOut        lentBodies
	activeHandlers int        // goroutines in runHandlers
	queuedRequests []*Request // requests beyond Config.MaxActive
	sums           checksumState
	probing        chan struct{} // closed when the probe has ended; nil if there is none
}

// A fifo is a queue. It releases the memory of popped elements.
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

// newConn returns a connection over nc with the peer name, which has sent s. self is the address of this node for the
// peer.
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

// start starts the goroutines of c, which end with the connection.
func (c *conn) start() {
	go c.writeLoop()
	go c.readLoop()
}

// tryWrite writes as many bytes as the socket accepts without blocking.
func (c *conn) tryWrite(b []byte) (int, error) {
	if c.poller == nil {
		return 0, nil
	}
	n, _, err := c.poller.transfer(buffer{b: b}, false)
	return n, err
}

// fail closes the connection, and ends all its operations with err. It may be called more than once; the first err
// counts.
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
	c.node.removeConn(c) // before the peer sees the end, because it may connect again at once
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
