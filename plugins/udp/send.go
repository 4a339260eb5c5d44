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

const (
	turnBytes   = 256 << 10 // maximum number of bytes sent in one turn of flush; the last datagram may exceed it
	turnPackets = 64        // maximum number of datagrams sent in one turn of flush
)

// An outbox holds the datagrams sent in one turn of flush.
type outbox struct {
	slab     []byte             // memory of the datagrams; nil outside flush
	list     []outboundDatagram // contiguous in slab, in order
	bulk     []bulkLoan
	fragment bool               // list contains a datagram that may exceed the path MTU
	large    []outboundDatagram // datagrams that the system refused with EMSGSIZE
	unsent   []sendFailure
}

// A sendFailure is a datagram that the system did not send, with the error. ICMP errors in response
// to earlier datagrams are not included.
type sendFailure struct {
	outboundDatagram
	err error
}

// noteFailure records that the system did not send d, so that the machine drops the peer. It
// ignores errors that may be transient, such as a full buffer; the datagram then counts as lost. If
// a datagram larger than the base size is too large for the path, the machine only reduces its
// datagram size.
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

// unsentError returns the error for a dial whose packets the system does not send.
func unsentError(err error) error { return codes.WithText(codes.ErrUnreachable, "send: "+err.Error()) }

// freeSlabs is the free list of slabs, which are 320 KiB each. Stale entries of an outbox may still
// point into one.
var freeSlabs = make(chan []byte, max(4, runtime.GOMAXPROCS(0)))

// takeMemory sets the slab of o.
func (o *outbox) takeMemory() {
	select {
	case o.slab = <-freeSlabs:
	default:
		o.slab = make([]byte, turnBytes+arq.MaxSize+arq.HeadSize+overhead)
	}
}

// releaseMemory releases the slab of o.
func (o *outbox) releaseMemory() {
	select {
	case freeSlabs <- o.slab:
	default:
	}
	o.slab = nil
}

// A bulkLoan is user memory being read for one datagram of bulk data. No lock is held while it is
// read, so the view cannot be revoked until the loan has been returned.
type bulkLoan struct {
	pc         *bulkPiece
	o          arq.Out
	i          int  // index in outbox.list
	unreadable bool // the memory could not be read
}

// flush sends the machine's packets, in turns. It is called with the endpoint's lock held and
// returns with it held, but copies and sends without it. Other goroutines can meanwhile add
// packets, which are sent in the next turn.
func (c *contextCarrier) flush() {
	if c.sending {
		return
	}
	c.sending = true
	c.out.takeMemory()
	// One goroutine sends for all peers of the context. Datagrams to several peers are thus sent in
	// one system call, in the order in which the machine produced them.
	for c.collectPacketsLocked() {
		c.sendUnlocked()
		c.endLoansLocked()
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

// sendUnlocked sends the packets that collectPacketsLocked has collected. It is called with the
// endpoint's lock held and returns with it held, but releases it while sending.
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

// collectPacketsLocked moves packets from the machine to the outbox, and reports whether there are
// any. It copies messages, and borrows the memory of bulk data for sealPackets to copy. With TLS it
// leaves space around each packet for the header and the tag.
func (c *contextCarrier) collectPacketsLocked() bool {
	o := &c.out
	o.list, o.bulk = o.list[:0], o.bulk[:0]
	// Datagrams are contiguous, so that those of the same size to the same peer can be sent as a
	// train, which the kernel splits (UDP_SEGMENT).
	now, front, back, at := c.d.now(), 0, 0, 0
	if c.conns != nil {
		front, back, at = protectHead, protect.TagSize, c.collectPathFramesLocked()
	}
	for at < turnBytes && len(o.list) < turnPackets {
		from := at + front
		p, ok := c.m.Next(now, o.slab[from:from+arq.HeadSize:from+arq.HeadSize])
		if !ok {
			break
		}
		d := outboundDatagram{to: p.To, via: p.Via, fragment: p.Fragment, again: p.Again}
		o.fragment = o.fragment || p.Fragment
		if c.conns != nil {
			if d.conn = c.conns[p.To]; d.conn == nil {
				continue // the last message of an association whose connection has been removed
			}
			d.to, d.via = d.conn.to, d.conn.via
		}
		if p.Ref != nil {
			pc := p.Ref.(*bulkPiece)
			// The memory was withdrawn in the meantime. The packet is sent without data, so that
			// there is no gap in the packet numbers.
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
// their total size.
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

// sealPackets copies the borrowed bulk data into its datagrams and adds the checksums. With TLS it
// instead encrypts every datagram. It must be called without the endpoint's lock. A datagram whose
// memory cannot be read (SIGBUS) is left without a valid checksum or tag, so that no receiver
// accepts it.
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
		if l.o.Again { // the peer may have acknowledged the data, so the owner may already be writing to the memory
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

// endLoansLocked returns the borrowed user memory, and passes the turn's failures to the machine.
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

// A bulkPlacing is received bulk data, with the memory that it is to be copied to.
type bulkPlacing struct {
	p       *peer
	v       carrier.View
	payload []byte
}

// handleDatagrams handles received datagrams and sends any packets produced in response. The caller
// must hold the shared socket's lock, and must not hold the endpoint's.
func (c *contextCarrier) handleDatagrams(in []inboundDatagram) {
	c.e.Lock()
	defer c.e.UnlockInput()
	now := c.d.now()
	for i := range in {
		a := &in[i]
		if a.conn == nil {
			c.m.Receive(now, a.from, &a.p)
		} else if c.checkSourceLocked(now, a) {
			c.m.Receive(now, a.conn.name, &a.p)
		}
	}
	if len(c.in) > 0 {
		c.copyIn()
		for i := range c.in {
			c.in[i].p.onPlaced(c.in[i].v)
		}
		clear(c.in)
		c.in = c.in[:0]
	}
	c.flush()
}

// copyIn copies received bulk data to user memory. It is called with the endpoint's lock held and
// returns with it held, but releases it while copying.
func (c *contextCarrier) copyIn() {
	c.e.Pause()
	defer c.e.Lock()
	for i := range c.in {
		c.in[i].v.CopyIn(0, c.in[i].payload)
	}
}

// onRefused handles the system's report that no socket is bound to the address to. Because ICMP
// messages can be forged, only a dial fails immediately. An established association probes the peer
// instead. The caller must hold the shared socket's lock, and must not hold the endpoint's.
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
