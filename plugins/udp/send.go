package udp

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/protect"
)

const turnPackets = 64 // maximum number of datagrams sent in one turn of flush

// An outbox holds the datagrams that one turn of flush sends.
type outbox struct {
	slab     []byte             // memory of the datagrams; nil outside flush
	list     []outboundDatagram // contiguous in slab, in order
	bulk     []bulkLoan
	fragment bool               // whether list contains a datagram that may exceed the path MTU
	large    []outboundDatagram // datagrams that the system refused with EMSGSIZE
	unsent   []sendFailure
}

// A sendFailure records a datagram that the system did not send, and the system's error. ICMP
// errors caused by earlier datagrams are not recorded.
type sendFailure struct {
	outboundDatagram
	err error
}

// noteFailure records that the system did not send d because of err. endLoansLocked then reports
// the failure to the machine. noteFailure ignores errors that may be transient, such as a full
// buffer, and the datagram then counts as lost. A datagram larger than the base size that is too
// large for the path is recorded in o.large, so that the machine only reduces its datagram size.
func (o *outbox) noteFailure(d outboundDatagram, err error) {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM), errors.Is(err, net.ErrClosed):
		return
	case errors.Is(err, syscall.EMSGSIZE):
		if o.large = append(o.large, d); len(d.b) > arq.BaseSize+overhead {
			return
		}
	}
	o.unsent = append(o.unsent, sendFailure{d, err})
}

// unsentError returns the error for a dial whose packets the system refuses to send with err.
func unsentError(err error) error { return codes.WithText(codes.ErrUnreachable, "send: "+err.Error()) }

// freeSlabs is the free list of outbox slabs, which are 320 KiB each. Unused entries of an outbox's
// list may still point into a free slab.
var freeSlabs = make(chan []byte, max(4, runtime.GOMAXPROCS(0)))

// takeMemory sets o.slab, reusing a slab from the free list if possible.
func (o *outbox) takeMemory() {
	select {
	case o.slab = <-freeSlabs:
	default:
		o.slab = make([]byte, turnBytes+arq.MaxSize+arq.HeadSize+overhead)
	}
}

// releaseMemory returns o.slab to the free list.
func (o *outbox) releaseMemory() {
	select {
	case freeSlabs <- o.slab:
	default:
	}
	o.slab = nil
}

// A bulkLoan is user memory that is borrowed while one datagram of bulk data is copied from it. The
// memory is read without holding a lock. Its view cannot be revoked until the loan has been
// returned.
type bulkLoan struct {
	pc         *bulkPiece
	o          arq.Out
	i          int  // index in outbox.list
	unreadable bool // whether reading the memory has failed
}

// flush sends the machine's packets in turns of limited size. The caller must hold the endpoint's
// lock. flush releases the lock while it copies and sends, and reacquires it before returning.
// Packets that other goroutines add in the meantime are sent in the next turn.
//
// If datagrams are waiting to be read after a turn, flush leaves the rest to the next Poll, so that
// the leader reads them while there is bulk data to send. The same is true if once is set, which
// means that a message has arrived. The leader then runs its callback, which may send an answer,
// before the rest of the bulk data is sent.
func (c *contextCarrier) flush(once bool) {
	if c.sending {
		return
	}
	c.sending = true
	c.out.takeMemory()
	// One goroutine sends for all peers of the context, so that one system call sends datagrams to
	// several peers, in the order in which the machine produced them.
	if once {
		c.turn.reset()
	}
	for c.collectPacketsLocked(c.turn.bytes()) {
		c.turn.grow()
		c.sendUnlocked()
		c.endLoansLocked()
		if c.m.Pending() && (once || c.sock.hasInput()) {
			c.afterCallbacks.Store(once)
			c.sendPending.Store(true)
			c.e.PollSoon()
			break
		}
	}
	c.out.releaseMemory()
	c.sending = false
	due, _ := c.m.Deadline()
	if len(c.conns) > 0 && (due == 0 || c.orphanCheckAt < due) {
		due = max(c.orphanCheckAt, 1)
	}
	if old := c.due.Swap(int64(due)); due != 0 && (old == 0 || int64(due) < old) {
		c.e.PollSoon()
	}
}

// sendUnlocked sends the packets that collectPacketsLocked has collected. The caller must hold the
// endpoint's lock. sendUnlocked releases the lock while sending, and reacquires it before
// returning.
func (c *contextCarrier) sendUnlocked() {
	c.e.Pause()
	defer c.e.Lock()
	c.sealPackets()
	if c.out.fragment {
		c.out.splitOversized()
	}
	if raceflag.Enabled {
		raceOrder.Add(1)
	}
	c.sock.send(&c.out)
}

// collectPacketsLocked fills the outbox with packets from the machine, until they have at least most
// bytes, and reports whether there are any. It copies messages immediately, but only borrows the
// memory of bulk data, which sealPackets copies. With TLS it leaves space before each packet for the header and after it for
// the tag. The endpoint's lock must be held.
func (c *contextCarrier) collectPacketsLocked(most int) bool {
	o := &c.out
	o.list, o.bulk = o.list[:0], o.bulk[:0]
	// The datagrams are contiguous, so that consecutive datagrams of the same size to the same peer
	// can be sent as a train, which the kernel splits (UDP_SEGMENT).
	now, front, back, at := c.d.now(), 0, 0, 0
	if c.conns != nil {
		front, back, at = protectHead, protect.TagSize, c.collectPathFramesLocked()
	}
	for at < most && len(o.list) < turnPackets {
		from := at + front
		p, ok := c.m.Next(now, o.slab[from:from+arq.HeadSize:from+arq.HeadSize])
		if !ok {
			break
		}
		d := outboundDatagram{to: p.To, via: p.Via, fragment: p.Fragment, again: p.Again}
		o.fragment = o.fragment || p.Fragment
		if c.conns != nil {
			if d.conn = c.conns[p.To]; d.conn == nil {
				continue // a packet of an association whose connection has been removed
			}
			d.to, d.via = d.conn.to, d.conn.via
		}
		if p.Ref != nil {
			pc := p.Ref.(*bulkPiece)
			// If the memory has been withdrawn, the packet is sent without data, so that there is
			// no gap in the packet numbers.
			if !pc.v.Borrow() {
				c.m.Void(&p)
			} else {
				pc.lent++
				o.bulk = append(o.bulk, bulkLoan{pc: pc, o: p, i: len(o.list)})
			}
		}
		n := copy(o.slab[from:], p.Head)
		n += copy(o.slab[from+n:], p.Body)
		d.b = o.slab[at : from+n+p.N+back]
		o.list = append(o.list, d)
		at += len(d.b)
	}
	return len(o.list) > 0
}

// collectPathFramesLocked writes the queued path frames to the beginning of the slab and returns
// their total size. The endpoint's lock must be held.
func (c *contextCarrier) collectPathFramesLocked() (at int) {
	o := &c.out
	for i := range c.pathFrames {
		n := &c.pathFrames[i]
		b := o.slab[at : at+overhead+pathFrameSize]
		b[protectHead] = n.kind
		copy(b[protectHead+1:], n.data[:])
		o.list = append(o.list, outboundDatagram{b: b, to: n.to, via: n.via, conn: n.k})
		at += len(b)
	}
	clear(c.pathFrames)
	c.pathFrames = c.pathFrames[:0]
	return at
}

// sealPackets copies the borrowed bulk data into its datagrams. It then encrypts every datagram or,
// without TLS, adds checksums to those with bulk data. If reading user memory fails (SIGBUS),
// sealPackets leaves the datagram without a valid checksum or tag, so that no receiver accepts it.
// The caller must not hold the endpoint's lock.
func (c *contextCarrier) sealPackets() {
	for i := range c.out.bulk {
		l := &c.out.bulk[i]
		d := &c.out.list[l.i]
		b := d.b
		if d.conn != nil {
			b = b[protectHead : len(b)-protect.TagSize]
		}
		c.slices = carrier.Slices(c.slices[:0], l.pc.v, l.o.At, l.o.N, math.MaxInt)
		gather := memfault.Gather
		if l.o.Again { // the peer may already have acknowledged the data, and the owner may be writing to the memory
			gather = memfault.GatherAgain
		}
		_, ok := gather(b[len(b)-l.o.N:], c.slices)
		l.unreadable = !ok
		clear(c.slices)
		switch {
		case l.unreadable && d.conn != nil:
			d.conn = nil // send zeros: this part of the slab may hold another peer's data
			clear(d.b)
		case !l.unreadable && d.conn == nil:
			l.o.Head = b[:len(b)-l.o.N]
			l.o.Seal(b[len(b)-l.o.N:])
		}
	}
	if c.conns != nil {
		for i := range c.out.list {
			d := &c.out.list[i]
			if d.conn == nil {
				continue
			}
			if d.conn.shortHeader(d.b); d.conn.sealer.Seal(d.b, shortSize) != nil {
				clear(d.b)
			}
		}
	}
}

// endLoansLocked returns the borrowed user memory, and reports to the machine the datagrams that
// the system refused to send. The endpoint's lock must be held.
func (c *contextCarrier) endLoansLocked() {
	o := &c.out
	for i := range o.bulk {
		l := &o.bulk[i]
		if l.pc.v.Return(); l.unreadable {
			l.pc.v.Fault()
		}
		l.pc.lent--
		c.dropPieceLocked(l.pc)
	}
	clear(o.bulk)
	for _, d := range o.large {
		if d.conn != nil {
			c.m.TooLarge(d.conn.name, len(d.b)-overhead)
		} else {
			c.m.TooLarge(d.to, len(d.b))
		}
	}
	clear(o.large)
	o.large = o.large[:0]
	for _, f := range o.unsent {
		if f.conn != nil {
			c.m.Unsendable(f.conn.name, f.err)
		} else {
			c.m.Unsendable(f.to, f.err)
		}
	}
	clear(o.unsent)
	o.unsent = o.unsent[:0]
}

// A bulkPlacing is received bulk data and the user memory to which copyIn must copy it.
type bulkPlacing struct {
	p       *peer
	v       carrier.View
	payload []byte
}

// handleDatagrams handles received datagrams and sends the packets that the machine produces in
// response. The caller must hold the shared socket's lock, and must not hold the endpoint's.
func (c *contextCarrier) handleDatagrams(in []inboundDatagram) {
	c.e.Lock()
	defer c.e.UnlockInput()
	now, before := c.d.now(), c.e.Messages()
	for i := range in {
		a := &in[i]
		if a.conn == nil {
			c.m.Receive(now, a.from, &a.p)
		} else if c.checkSourceLocked(now, a) {
			c.m.Receive(now, a.conn.name, &a.p)
		}
	}
	once := c.e.Messages() != before
	if len(c.in) > 0 {
		c.copyIn()
		for i := range c.in {
			c.in[i].p.onPlaced(c.in[i].v)
		}
		clear(c.in)
		c.in = c.in[:0]
	}
	if once {
		c.shared.hadMessage = true
	}
	c.flush(once)
}

// copyIn copies the received bulk data in c.in to user memory. The caller must hold the endpoint's
// lock. copyIn releases the lock while copying, and reacquires it before returning.
func (c *contextCarrier) copyIn() {
	c.e.Pause()
	defer c.e.Lock()
	for i := range c.in {
		c.in[i].v.CopyIn(0, c.in[i].payload)
	}
}

// onRefused handles the system's report that no socket is bound to the address to. The report
// results from an ICMP message, which can be forged. Therefore only a dial fails immediately, and
// an established association probes the peer instead. The caller must hold the shared socket's
// lock, and must not hold the endpoint's.
func (c *contextCarrier) onRefused(to netip.AddrPort) {
	c.e.Lock()
	defer c.e.UnlockInput()
	if c.conns == nil {
		c.m.Refused(c.d.now(), to)
	}
	for name, k := range c.conns {
		switch {
		case k.to != to:
		case k.p != nil && k.p.a == nil:
			k.cancel()
		default:
			c.m.Refused(c.d.now(), name)
		}
	}
}
