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

// A sharedSocket is a socket and the contexts behind it: all those of a class that listens, so that it has one address; else one. With the
// last of them the socket is closed: then the system tells peers that nobody is there.
//
//	socket ─► read, by whoever leads one of the contexts ─► take: whose packet is it? ─► carrier.receive
type sharedSocket struct {
	at    netip.AddrPort
	open  func(netip.AddrPort, *sharedSocket) (socket, error)
	guard *tlsAcceptor // nil: there is no TLS
	now   func() time.Duration
	class carrier.Class
	room  atomic.Int64 // bytes of the socket's receive buffer for each context

	// mu guards what follows. It is held while datagrams are read and given to their contexts, so that they stay in order. An
	// endpoint may be locked under it.
	mu     sync.Mutex
	sock   socket               // nil: closed
	behind [256]*contextCarrier // by context; nil: it is not there, or not any more
	n      int                  // of them
	latest *conn                // that had a packet
	hints  []inboundDatagram    // that a peer has no such connection

	fragments assembler

	// table guards the connections with TLS, by the id that is ours, and by the peer's. Nothing is locked under it.
	table  sync.RWMutex
	byID   map[uint64]*conn
	byPeer map[uint64]*conn

	homes atomic.Pointer[[]netip.Addr] // the addresses of ours that datagrams have come to
}

// An inboundDatagram is a datagram that came in.
type inboundDatagram struct {
	b    []byte
	from netip.AddrPort
	via  uint8
	p    arq.Packet
	to   *contextCarrier // nil: all contexts
	conn *conn           // nil: there is no TLS
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

// addContext puts c behind the shared socket.
func (d *sharedSocket) addContext(c *contextCarrier) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind[c.id] = c
	d.n++
	d.bufferShare()
	return d.sock.watch(c)
}

// removeContext takes c away. Nothing is given to it afterwards.
func (d *sharedSocket) removeContext(c *contextCarrier) {
	c.sock.unwatch(c)
	d.mu.Lock()
	d.behind[c.id] = nil
	if d.guard != nil {
		d.strikeAll(c)
	}
	d.n--
	d.bufferShare()
	d.mu.Unlock()
	d.close()
}

// close closes the socket if no context is left.
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

func (d *sharedSocket) bufferShare() { d.room.Store(int64(d.sock.bufferSize() / max(1, d.n))) }

// routeDatagrams gives datagrams to their contexts, in order: last words come before a RESET. It keeps nothing of them. Called with mu held.
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
		case !d.filterDatagram(a):
			continue
		case !isNote(a.b):
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
		passed.Load()
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

// poisonMemory overwrites the memory of a datagram that route has returned from. It is called under the race detector only: a piece of one that was kept without a copy
// is wrong then in every test, and not only when the next datagram happens to come to the same place.
func poisonMemory(b []byte) {
	for i := range b {
		b[i] = 0xDB
	}
}

// contextFor returns context id, or for want of it any other: it answers that the packet is for nobody.
func (d *sharedSocket) contextFor(id int) (to *contextCarrier) {
	if to = d.behind[id]; to == nil {
		d.forEachContext(func(c *contextCarrier) { to = c })
	}
	return to
}

func (d *sharedSocket) forEachContext(f func(c *contextCarrier)) {
	for _, c := range d.behind {
		if c != nil {
			f(c)
		}
	}
}

// localAddrIndex returns the number of an address of ours, 0: it is not known, or one too many. With mu held.
func (d *sharedSocket) localAddrIndex(at netip.Addr) uint8 {
	if !at.IsValid() {
		return 0
	}
	var homes []netip.Addr
	if p := d.homes.Load(); p != nil {
		homes = *p
	}
	i := slices.Index(homes, at)
	if i < 0 && len(homes) < 255 {
		i = len(homes)
		longer := append(slices.Clip(homes), at) // a variable of its own: homes would be allocated for every datagram
		d.homes.Store(&longer)
	}
	return uint8(i + 1)
}

// localAddr returns the address with that number.
func (d *sharedSocket) localAddr(via uint8) netip.Addr {
	if via == 0 {
		return netip.Addr{}
	}
	return (*d.homes.Load())[via-1]
}

// passed says what the race detector does not know of datagrams within a process: they arrive after they were sent.
var passed atomic.Int64
