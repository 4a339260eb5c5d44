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
	turnBytes   = 256 << 10 // that are sent in one go, at most so much and one datagram
	turnPackets = 64
)

// An outbox is the datagrams that are sent in one go.
type outbox struct {
	slab   []byte             // one of slabs while somebody sends, else nil
	list   []outboundDatagram // one behind the other in slab
	bulk   []bulkLoan
	long   bool               // one of list is sent in fragments
	large  []outboundDatagram // that the system has refused
	unsent []sendFailure
}

// A sendFailure is why the system has not sent a datagram: an error of its own, not what somebody has answered to an earlier one.
type sendFailure struct {
	outboundDatagram
	err error
}

// noteFailure notes that the system has not sent d. Room that it has not now it has later.
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

// unsentError is the error of a dial that the system does not send.
func unsentError(err error) error { return codes.WithText(codes.ErrUnreachable, "send: "+err.Error()) }

// slabs are those of nobody who sends, 320 KiB each. What an outbox has listed before may point into one.
var slabs = make(chan []byte, max(4, runtime.GOMAXPROCS(0)))

// takeMemory gives o memory for datagrams.
func (o *outbox) takeMemory() {
	select {
	case o.slab = <-slabs:
	default:
		o.slab = make([]byte, turnBytes+arq.MaxSize+arq.HeadSize+overhead)
	}
}

// releaseMemory gives it back.
func (o *outbox) releaseMemory() {
	select {
	case slabs <- o.slab:
	default:
	}
	o.slab = nil
}

// A bulkLoan is memory that is lent for one datagram.
type bulkLoan struct {
	pc   *bulkPiece
	o    arq.Out
	i    int // in list
	gone bool
}

// flush sends what the machine has. Locked at its beginning and at its end, not while it copies and sends: what others add
// meanwhile goes with the next turn, and they need not wait.
func (c *contextCarrier) flush() {
	if c.sending {
		return
	}
	c.sending = true
	c.out.takeMemory()
	// One goroutine sends for all peers of the context: datagrams of several go in one system call, and in the order of the machine.
	for c.collectPackets() {
		c.sendUnlocked()
		c.endLoans()
	}
	c.out.releaseMemory()
	c.sending = false
	due, _ := c.m.Deadline()
	if len(c.conns) > 0 && (due == 0 || c.lookAt < due) {
		due = max(c.lookAt, 1)
	}
	if old := c.due.Swap(int64(due)); due != 0 && (old == 0 || int64(due) < old) {
		c.e.PollSoon()
	}
}

// sendUnlocked sends what gather has taken, without the lock. Locked at its beginning and its end.
func (c *contextCarrier) sendUnlocked() {
	c.e.Pause()
	defer c.e.Lock()
	c.sealPackets()
	if c.out.long {
		c.out.splitOversized()
	}
	if raceflag.Enabled {
		passed.Add(1)
	}
	c.sock.send(&c.out)
}

// collectPackets takes packets from the machine, and reports whether there are any. Messages are copied; bulk data is lent. With TLS each has
// room around it for what protects it. Locked.
func (c *contextCarrier) collectPackets() bool {
	o := &c.out
	o.list, o.bulk = o.list[:0], o.bulk[:0]
	// Datagrams stand one behind the other: those of one size to one peer leave as a train, cut up by the kernel (UDP_SEGMENT).
	now, front, back, at := c.d.now(), 0, 0, 0
	if c.conns != nil {
		front, back, at = protectHead, protect.TagSize, c.gatherNotes()
	}
	for at < turnBytes && len(o.list) < turnPackets {
		from := at + front
		p, ok := c.m.Next(now, o.slab[from:from+arq.HeadSize:from+arq.HeadSize])
		if !ok {
			break
		}
		d := outboundDatagram{to: p.To, via: p.Via, fragment: p.Fragment, again: p.Again}
		o.long = o.long || p.Fragment
		if c.conns != nil {
			if d.conn = c.conns[p.To]; d.conn == nil {
				continue // last words, and the connection is gone
			}
			d.to, d.via = d.conn.to, d.conn.via
		}
		if p.Ref != nil {
			pc := p.Ref.(*bulkPiece)
			if !pc.v.Borrow() { // taken back since; the number goes without it
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

// gatherNotes takes what connections say, at the beginning of the slab, and returns where that ends. Locked.
func (c *contextCarrier) gatherNotes() (at int) {
	o := &c.out
	for i := range c.notes {
		n := &c.notes[i]
		b := o.slab[at : at+overhead+noteSize]
		b[protectHead] = n.kind
		copy(b[protectHead+1:], n.data[:])
		o.list = append(o.list, outboundDatagram{b: b, to: n.to, via: n.via, conn: n.k})
		at += len(b)
	}
	clear(c.notes)
	c.notes = c.notes[:0]
	return at
}

// sealPackets copies what was lent and adds its checksum. With TLS it seals every datagram instead, which needs no checksum. One whose memory
// cannot be read is left damaged, so that no receiver accepts it.
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
		if l.o.Again { // the peer may have it, and the owner write there by now
			gather = memfault.GatherAgain
		}
		_, ok := gather(b[len(b)-l.o.N:], c.slices)
		l.gone = !ok
		clear(c.slices)
		switch {
		case l.gone && d.conn != nil:
			d.conn = nil // what is there may be another's, and is not sent
			clear(d.b)
		case !l.gone && d.conn == nil:
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

// endLoans ends the loans. Locked.
func (c *contextCarrier) endLoans() {
	o := &c.out
	for i := range o.bulk {
		l := &o.bulk[i]
		if l.pc.v.Return(); l.gone {
			l.pc.v.Fault()
		}
		l.pc.lent--
		c.dropPiece(l.pc)
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

// A bulkPlacing is bulk data that has come, and where it goes.
type bulkPlacing struct {
	p       *peer
	v       carrier.View
	payload []byte
}

// handleDatagrams takes in datagrams. With the shared socket's lock, without the endpoint's.
func (c *contextCarrier) handleDatagrams(in []inboundDatagram) {
	c.e.Lock()
	defer c.e.UnlockInput()
	now := c.d.now()
	for i := range in {
		a := &in[i]
		if a.conn == nil {
			c.m.Receive(now, a.from, &a.p)
		} else if c.checkSource(now, a) {
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

// copyIn copies bulk data to where it goes, without the lock. Locked at its beginning and its end.
func (c *contextCarrier) copyIn() {
	c.e.Pause()
	defer c.e.Lock()
	for i := range c.in {
		c.in[i].v.CopyIn(0, c.in[i].payload)
	}
}

// onRefused is called when the system says that nobody receives at to. With the shared socket's lock, without the endpoint's.
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
