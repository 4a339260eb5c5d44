package udp

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A sharedSocket is a socket together with the contexts that use it. A class that listens has one
// sharedSocket for all its contexts, so that the class has a single address. If the class does not
// listen, each context has its own sharedSocket. When the last context has been removed, the socket
// is closed, and the system then answers peers with ICMP port unreachable.
//
// The poller of any of the contexts reads the socket. routeDatagrams then passes each datagram to
// the handleDatagrams method of the context that the datagram is addressed to.
type sharedSocket struct {
	at    netip.AddrPort
	open  func(netip.AddrPort, *sharedSocket) (socket, error)
	guard *tlsAcceptor // nil without TLS
	now   func() time.Duration
	class carrier.Class
	room  atomic.Int64 // size of the socket's receive buffer in bytes, divided by the number of contexts

	// mu guards the fields up to fragments. It is held while datagrams are read and handled by
	// their contexts, so that the datagrams stay in order. An endpoint's lock may be acquired while
	// mu is held.
	mu       sync.Mutex
	sock     socket               // nil if closed
	contexts [256]*contextCarrier // contexts by number; nil if there is none
	n        int                  // number of contexts
	lastConn *conn                // connection of the last packet
	// hints holds the notices in the current batch saying that a peer does not know a connection.
	hints     []inboundDatagram
	fragments assembler
	// hasBulk reports whether bulk data has arrived since the socket was opened. Packets of a class with
	// TLS do not set it, because the system cannot tell which of them carry bulk data.
	hasBulk bool
	// hadMessage reports whether a message has arrived since the last read of bulk data.
	hadMessage bool

	// table guards byID and byPeer, which hold the connections with TLS by this side's and by the
	// peer's connection ID. No lock is acquired while table is held.
	table  sync.RWMutex
	byID   map[uint64]*conn
	byPeer map[uint64]*conn

	// localAddrs holds the local addresses to which datagrams were sent. via is an index into it
	// plus 1.
	localAddrs atomic.Pointer[[]netip.Addr]
}

// An inboundDatagram is a received datagram. Its memory is valid only until routeDatagrams returns.
type inboundDatagram struct {
	b    []byte
	from netip.AddrPort
	via  uint8 // destination address, as a number in localAddrs; 0 if unknown
	p    arq.Packet
	to   *contextCarrier // nil for all contexts
	conn *conn           // nil without TLS
}

// bind opens the socket if it is not open.
func (d *sharedSocket) bind() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sock != nil {
		return nil
	}
	if d.sock, err = d.open(d.at, d); err == nil {
		d.at = d.sock.localAddr()
	}
	return err
}

// addContext starts delivery of datagrams to c.
func (d *sharedSocket) addContext(c *contextCarrier) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts[c.id] = c
	d.n++
	d.setBufferShareLocked()
	return d.sock.watch(c)
}

// removeContext stops delivery of datagrams to c. No datagrams are passed to c after removeContext
// has returned.
func (d *sharedSocket) removeContext(c *contextCarrier) {
	d.mu.Lock()
	c.leaving = true
	d.mu.Unlock()
	c.sock.unwatch(c)
	d.mu.Lock()
	d.contexts[c.id] = nil
	if d.guard != nil {
		d.removeConnsOf(c)
	}
	d.n--
	d.setBufferShareLocked()
	d.mu.Unlock()
	d.close()
}

// close closes the socket if no contexts remain.
func (d *sharedSocket) close() {
	d.mu.Lock()
	var s socket
	if d.n == 0 {
		s, d.sock = d.sock, nil
	}
	d.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// setBufferShareLocked sets d.room to each context's share of the receive buffer. d.mu must be
// held.
func (d *sharedSocket) setBufferShareLocked() { d.room.Store(int64(d.sock.bufferSize() / max(1, d.n))) }

// routeDatagrams passes datagrams to their contexts. It handles the datagrams in order, so that an
// association's last message is handled before a RESET. It retains no reference to their memory.
// The caller must hold d.mu.
func (d *sharedSocket) routeDatagrams(in []inboundDatagram) {
	n := 0
	for i := range in {
		a := &in[i]
		failpoint.Read(a.b)
		if len(a.b) > 0 && a.b[0] == fragmentByte && !d.fragments.addFragment(a) {
			continue
		}
		var err error
		switch {
		case d.guard == nil:
			if a.p, err = arq.Parse(a.b); err != nil {
				d.replyNoTLS(a)
				continue
			}
			d.hasBulk = d.hasBulk || a.p.Bulk()
		case !d.filterDatagram(a):
			continue
		case !isPathFrame(a.b):
			if a.p, err = arq.ParseProven(a.b); err != nil {
				continue
			}
		}
		a.p.Via = a.via
		switch a.to = nil; {
		case a.conn != nil:
			a.to = a.conn.c
		case a.p.Context() >= 0:
			a.to = d.contextFor(a.p.Context())
		}
		if n < i {
			in[n] = *a
		}
		n++
	}
	in = in[:n]
	if raceflag.Enabled {
		raceOrder.Load()
	}
	for i, j := 0, 0; i < len(in); i = j {
		for j = i + 1; j < len(in) && in[j].to == in[i].to; j++ {
		}
		if c := in[i].to; c != nil {
			c.handleDatagrams(in[i:j])
		} else {
			d.forEachContext(func(c *contextCarrier) { c.handleDatagrams(in[i:j]) })
		}
	}
	if len(d.hints) > 0 {
		for i := range d.hints {
			d.hints[i].conn.c.onUnknownConn(&d.hints[i])
		}
		clear(d.hints)
		d.hints = d.hints[:0]
	}
}

// poisonMemory overwrites the memory of a datagram that routeDatagrams has handled. It is called
// only when the race detector is enabled. Code that wrongly retains a reference to the memory then
// fails in every test, and not only when another datagram happens to overwrite the memory.
func poisonMemory(b []byte) {
	for i := range b {
		b[i] = 0xDB
	}
}

// contextFor returns the context with the given number. If there is no such context, contextFor
// returns another one, whose machine then answers the packet. The caller must hold d.mu.
func (d *sharedSocket) contextFor(id int) (to *contextCarrier) {
	if to = d.contexts[id]; to == nil {
		d.forEachContext(func(c *contextCarrier) { to = c })
	}
	return to
}

func (d *sharedSocket) forEachContext(f func(c *contextCarrier)) {
	for _, c := range d.contexts {
		if c != nil {
			f(c)
		}
	}
}

// localAddrIndex returns the number of a local address, assigning one if necessary. It returns 0 if
// the address is not known or if 255 addresses already have numbers. The caller must hold d.mu.
func (d *sharedSocket) localAddrIndex(at netip.Addr) uint8 {
	if !at.IsValid() {
		return 0
	}
	var homes []netip.Addr
	if p := d.localAddrs.Load(); p != nil {
		homes = *p
	}
	i := slices.Index(homes, at)
	if i < 0 && len(homes) < 255 {
		i = len(homes)
		// This is a separate variable because taking the address of homes would cause an allocation
		// for every datagram.
		longer := append(slices.Clip(homes), at)
		d.localAddrs.Store(&longer)
	}
	return uint8(i + 1)
}

// localAddr returns the local address with the given number, or the zero Addr for 0.
func (d *sharedSocket) localAddr(via uint8) netip.Addr {
	if via == 0 {
		return netip.Addr{}
	}
	return (*d.localAddrs.Load())[via-1]
}

// raceOrder is modified by every send and read by every receive when the race detector is enabled.
// It shows the race detector that a datagram exchanged within this process is sent before it is
// received.
var raceOrder atomic.Int64
