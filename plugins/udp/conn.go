package udp

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/protect"
)

// A conn is what protects the packets of one association: the keys, and where the peer is. arq knows it by a name that looks like an
// address and never changes: what a change of address means, it need not know.
type conn struct {
	c        *contextCarrier
	id, peer uint64 // of the connection: ours, the peer's
	name     netip.AddrPort
	p        *peer // that dials; nil: the peer has dialed
	cancel   context.CancelFunc
	in       chan []byte // packets of the handshake

	over      atomic.Bool // the handshake has ended, well or not
	up        atomic.Bool // opener and the others are there
	opener    *protect.Opener
	sealer    *protect.Sealer // used by the goroutine that sends for the contextCarrier
	proof     *secure.Proof
	confirmed sync.Once // the peer has shown that it has all of the handshake
	done      chan struct{}

	// Guarded by the endpoint's lock.
	to    netip.AddrPort
	via   uint8
	shown netip.AddrPort // that p.remote is of
	alone bool           // the last look has found no association
	probe struct {
		to   netip.AddrPort // where the peer seems to be now
		data [8]byte
		next time.Duration // no other challenge before
	}
}

// serials are the names of connections.
var serials atomic.Uint64

func newConn(c *contextCarrier, id, peer uint64, to netip.AddrPort, via uint8) (*conn, context.Context) {
	a := [16]byte{0: 1} // 100::/64, where nobody is
	binary.BigEndian.PutUint64(a[8:], serials.Add(1))
	k := &conn{
		c: c, id: id, peer: peer, name: netip.AddrPortFrom(netip.AddrFrom16(a), 0), to: to, via: via,
		in: make(chan []byte, 32), done: make(chan struct{}),
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	k.cancel = cancel
	c.shared.addConn(k)
	return k, ctx
}

// confirmAccepted ends the handshake of who has listened.
func (k *conn) confirmAccepted() { k.confirmed.Do(func() { close(k.done) }) }

// newGuest begins the handshake with a peer whose address is proven. With the shared socket's lock.
func (d *sharedSocket) newGuest(a *inboundDatagram, h *longHeader) *conn {
	c := d.contextFor(int(h.to >> 56))
	if c == nil {
		return nil
	}
	it := d.guard.admitHandshake(a.from.Addr(), d.now())
	if it == nil {
		return nil
	}
	d.guard.useToken(h.token, d.now())
	k, ctx := newConn(c, h.to, h.from, a.from, a.via)
	d.guard.mu.Lock()
	it.end = k.cancel
	d.guard.mu.Unlock()
	go func() {
		defer d.guard.removeHandshake(it)
		runAccept(ctx, k, func() { d.guard.noteWaiting(it, d.now()) })
	}()
	return k
}

// dialTLS begins the handshake of a dial. Locked.
func (c *contextCarrier) dialTLS(p *peer, to netip.AddrPort) {
	k, ctx := newConn(c, newID(c.id), uint64(p.link.Target())<<56, to, 0)
	k.p, p.conn = p, k
	c.conns[k.name] = k
	go runDial(ctx, k, p.link.Name(), p.link.Host())
}

// onDialEnd ends the handshake of a dial.
func (k *conn) onDialEnd(err error) {
	c := k.c
	c.e.Lock()
	defer c.e.UnlockInput()
	p := k.p
	if err != nil || p.link == nil {
		delete(c.conns, k.name)
		c.shared.removeConn(k)
		if away, ok := errors.AsType[noTLSAlert](err); p.link != nil && ok {
			p.link.Refused(away.bye)
		} else if p.link != nil {
			p.link.Fail(err)
		}
		return
	}
	if p.a, err = c.m.Dial(c.d.now(), k.name, uint8(p.link.Target()), pathOf(k.to.Addr()), p); err != nil {
		c.failed = append(c.failed, failedDial{p, errFull})
	}
	c.pollSoon()
}

// onAcceptEnd ends the handshake of a peer that has dialed.
func (k *conn) onAcceptEnd() {
	c := k.c
	c.e.Lock()
	defer c.e.UnlockInput()
	if !c.shut {
		c.conns[k.name] = k
		c.pollSoon()
	}
}

// onHandshakeEnd is called when the handshake has. Nothing that comes late is kept.
func (k *conn) onHandshakeEnd() {
	k.cancel()
	k.over.Store(true)
	for {
		select {
		case <-k.in:
		default:
			return
		}
	}
}

// lookEvery is how often it is looked which connections have no association any more. The second time they are forgotten.
const lookEvery = 2 * time.Second

// forgetUnknown forgets them. Locked.
func (c *contextCarrier) forgetUnknown(now time.Duration) {
	if len(c.conns) == 0 || now < c.lookAt {
		return
	}
	c.lookAt = now + lookEvery
	for name, k := range c.conns {
		switch {
		case !k.over.Load() || c.m.Has(name): // the association follows the handshake
			k.alone = false
		case k.alone:
			delete(c.conns, name)
			c.shared.removeConn(k)
		default:
			k.alone = true
		}
	}
}

// onUnknownConn is called when k's peer says that it has no such connection, which everybody on the way can say. With the shared socket's lock, without
// the endpoint's.
func (c *contextCarrier) onUnknownConn(a *inboundDatagram) {
	c.e.Lock()
	defer c.e.UnlockInput()
	if k := a.conn; k.to == a.from && k.up.Load() {
		c.m.Refused(c.d.now(), k.name)
		c.pollSoon()
	}
}

func isNote(b []byte) bool { return b[0] == challenge || b[0] == response }

// A connNote is what a connection says that is not of arq.
type connNote struct {
	k    *conn
	kind byte
	data [8]byte
	to   netip.AddrPort
	via  uint8
}

const (
	mostNotes      = 64 // that wait
	noteSize       = 1 + 8
	challengeEvery = 20 * time.Millisecond
)

// checkSource looks at where a packet of k came from, and reports whether it is for arq. Locked.
func (c *contextCarrier) checkSource(now time.Duration, a *inboundDatagram) bool {
	k := a.conn
	kind, data := a.b[0], [8]byte{}
	ours := isNote(a.b)
	if ours {
		if len(a.b) != noteSize {
			return false
		}
		copy(data[:], a.b[1:])
	}
	pr := &k.probe
	switch {
	case kind == challenge:
		c.handleNote(connNote{k, response, data, a.from, a.via})
	case kind == response:
		if pr.to == a.from && subtle.ConstantTimeCompare(pr.data[:], data[:]) == 1 {
			k.to, k.via, pr.to = a.from, a.via, netip.AddrPort{}
		}
		return false
	}
	if a.from != k.to && (pr.to != a.from || now >= pr.next) {
		if pr.to != a.from {
			binary.BigEndian.PutUint64(pr.data[:], randomUint64())
		}
		pr.to, pr.next = a.from, now+challengeEvery
		c.handleNote(connNote{k, challenge, pr.data, a.from, a.via})
	}
	return !ours
}

func (c *contextCarrier) handleNote(n connNote) {
	if len(c.notes) < mostNotes {
		c.notes = append(c.notes, n)
	}
}

// sendOne sends a single datagram. It returns why the system does not, if that may be so again.
func sendOne(s socket, b []byte, to netip.AddrPort, via uint8) error {
	if raceflag.Enabled {
		passed.Add(1)
	}
	o := &outbox{list: []outboundDatagram{{b: b, to: to, via: via}}}
	if s.send(o); len(o.unsent) > 0 {
		return o.unsent[0].err
	}
	return nil
}

// sendOne is post from a goroutine that may outlive the socket, whose descriptor may be another's then.
func (d *sharedSocket) sendOne(b []byte, to netip.AddrPort, via uint8) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sock == nil {
		return nil
	}
	return sendOne(d.sock, b, to, via)
}

// Proof implements carrier.Prover.
func (p *peer) Proof() carrier.Proof {
	if p.conn == nil || p.conn.proof == nil { // no TLS, or its handshake is not over
		return carrier.Proof{}
	}
	return p.conn.proof.Who
}

// Remote implements carrier.Locator.
func (p *peer) Remote() string {
	if k := p.conn; k != nil && k.to != k.shown { // the peer has moved
		k.shown = k.to
		p.setRemote(k.to)
	}
	return p.remote
}

// setRemote notes the address of the peer, as it is shown to people.
func (p *peer) setRemote(at netip.AddrPort) {
	p.remote = netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// shortHeader is the header of the short packets to the peer.
func (k *conn) shortHeader(b []byte) {
	b[0] = 0x40
	binary.BigEndian.PutUint64(b[1:], k.peer)
}
