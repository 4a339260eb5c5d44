package mercury

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// A conn is a connection that has been set up. One goroutine reads it; any goroutine with something to send writes it (write.go).
type conn struct {
	n    *Node
	nc   net.Conn
	try  *try           // writes; nil if that must wait
	name netip.AddrPort // of the peer: the address that it has, the port that it says
	addr string         // the same as text
	self netip.AddrPort // what the peer calls us
	pid  uint32

	ctx  context.Context // ends with the connection
	stop context.CancelFunc
	done <-chan struct{} // of ctx
	wake chan struct{}   // the writer is to write

	in *reader // of the goroutine read

	verifier hgwire.Verifier // of what comes

	mu      sync.Mutex
	err     error // why it ended
	out     []byte
	spare   []byte
	acks    int // to be sent
	jobs    []*job
	job     *job // whose message is partly in out
	writing bool
	nextID  uint8
	room    chan struct{} // closed when there is room in out again; nil if nobody waits

	rest  []byte // of the writer: what was not written
	stage *[stageSize]byte

	firstTag uint32 // of calls of this side; does not change
	lastCall uint32 // behind firstTag
	calls    map[uint32]*call
	reads    fifo[*op] // in the order of their answers
	writes   fifo[*op] // in the order of their acknowledgements
	lent     lentOutputs
	active   int        // handlers that run
	queue    []*Request // that wait for one to end
	sums     checksumState
	probing  chan struct{} // closed when the probe has ended; nil if there is none
}

// A fifo is a queue.
type fifo[T any] struct{ q []T }

func (f *fifo[T]) push(v T) { f.q = append(f.q, v) }

func (f *fifo[T]) pop() (v T, ok bool) {
	if len(f.q) == 0 {
		return v, false
	}
	v = f.q[0]
	var zero T
	f.q[0] = zero
	if f.q = f.q[1:]; len(f.q) == 0 {
		f.q = nil
	}
	return v, true
}

func (n *Node) newConn(nc net.Conn, name, self netip.AddrPort, s xnet.Setup) *conn {
	c := &conn{n: n, nc: nc, name: name, addr: addrText(name), self: self, pid: s.PID,
		wake: make(chan struct{}, 1), calls: map[uint32]*call{}, firstTag: firstTag}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.done = c.ctx.Done()
	c.in = &reader{c: c, buf: make([]byte, readSize)}
	c.try, c.in.try = newTries(nc)
	switch n.cfg.Checksums {
	case On:
		c.sums = sumsOn
	case Off:
		c.sums = sumsOff
	}
	return c
}

// begin starts the goroutines of c, which end when it does.
func (c *conn) begin() {
	go c.write()
	go c.read()
}

// tryWrite writes what the socket takes at once.
func (c *conn) tryWrite(b []byte) (int, error) {
	if c.try == nil {
		return 0, nil
	}
	n, _, err := c.try.move(place{b: b}, false)
	return n, err
}

// fail ends the connection and everything on it. It may be called more than once; the first err counts.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls, reads, writes, jobs, lent, queued := c.calls, c.reads.q, c.writes.q, c.jobs, c.lent, c.queue
	c.job, c.calls, c.reads.q, c.writes.q, c.jobs, c.lent, c.queue = nil, nil, nil, nil, nil, lentOutputs{}, nil
	c.makeRoom()
	for _, ops := range [][]*op{reads, writes} {
		for _, o := range ops {
			o.t.endLocked(err)
		}
	}
	for _, j := range jobs {
		if j.op != nil {
			j.op.t.endLocked(err)
		}
	}
	c.mu.Unlock()
	c.n.forget(c) // before the peer sees the end: it may connect again
	_ = c.nc.Close()
	c.stop()
	for _, k := range calls {
		k.end(nil, &Error{Fate: MaybeRan, Err: err})
	}
	for _, l := range lent.order {
		l.region.Close()
	}
	for _, r := range queued {
		c.n.charge(-int64(len(r.in)))
	}
}
