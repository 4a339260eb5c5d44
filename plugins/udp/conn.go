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

// A conn is a connection with TLS. It holds the keys that protect the packets of one association,
// and the peer's current address. The field name identifies the connection to package arq. It has
// the form of an address but never changes, so that arq need not handle changes of the peer's
// address.
type conn struct {
	c        *contextCarrier
	id, peer uint64 // connection IDs chosen by this side and by the peer
	name     netip.AddrPort
	p        *peer // peer being dialed; nil if the peer dialed
	cancel   context.CancelFunc
	in       chan []byte // received handshake packets

	handshakeDone atomic.Bool // whether the handshake has completed or failed
	up            atomic.Bool // whether opener, sealer and proof are set
	opener        *protect.Opener
	sealer        *protect.Sealer // used by the goroutine that sends for c
	proof         *secure.Proof
	confirmed     sync.Once // closes done
	// done is closed when a short packet has shown that the peer has completed the handshake.
	done chan struct{}

	// The fields below are guarded by the endpoint's lock.
	to         netip.AddrPort
	via        uint8
	remoteAddr netip.AddrPort // address that p.remote represents as text
	orphaned   bool           // whether the last call to removeOrphansLocked found no association
	probe      struct {       // path validation in progress (RFC 9000, Section 8.2)
		to   netip.AddrPort // source address of the peer's latest packets
		data [8]byte
		next time.Duration // earliest time for another challenge
	}
}

// connSerial is the number of conns created so far. It makes their names unique.
var connSerial atomic.Uint64

func newConn(c *contextCarrier, id, peer uint64, to netip.AddrPort, via uint8) (*conn, context.Context) {
	a := [16]byte{0: 1} // 100::/64, the discard prefix (RFC 6666): never the address of a peer
	binary.BigEndian.PutUint64(a[8:], connSerial.Add(1))
	k := &conn{
		c: c, id: id, peer: peer, name: netip.AddrPortFrom(netip.AddrFrom16(a), 0), to: to, via: via,
		in: make(chan []byte, 32), done: make(chan struct{}),
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	k.cancel = cancel
	c.shared.addConn(k)
	return k, ctx
}

// confirmAccepted completes the handshake on the listening side. It is called when the peer has
// sent a packet protected with the application keys.
func (k *conn) confirmAccepted() { k.confirmed.Do(func() { close(k.done) }) }

// acceptConn starts the handshake with a dialing peer that has sent a valid token. It returns nil
// if the context that the peer has dialed no longer exists, or if there are too many half-open
// connections. The caller must hold the shared socket's lock.
func (d *sharedSocket) acceptConn(a *inboundDatagram, h *longHeader) *conn {
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
	it.cancel = k.cancel
	d.guard.mu.Unlock()
	go func() {
		defer d.guard.removeHandshake(it)
		runAccept(ctx, k, func() { d.guard.noteWaiting(it, d.now()) })
	}()
	return k
}

// dialTLSLocked starts the TLS handshake for the dial of p at address to. The endpoint's lock must
// be held.
func (c *contextCarrier) dialTLSLocked(p *peer, to netip.AddrPort) {
	k, ctx := newConn(c, newID(c.id), uint64(p.link.Target())<<56, to, 0)
	k.p, p.conn = p, k
	c.conns[k.name] = k
	go runDial(ctx, k, p.link.Name(), p.link.Host())
}

// onDialEnd handles the result of a dial's handshake. If err is nil, it starts the association.
// Otherwise it fails the session with err.
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

// onAcceptEnd registers k, a connection that the peer dialed, with its context. It is called when
// the keys are available.
func (k *conn) onAcceptEnd() {
	c := k.c
	c.e.Lock()
	defer c.e.UnlockInput()
	if !c.shut {
		c.conns[k.name] = k
		c.pollSoon()
	}
}

// onHandshakeEnd releases the resources of the handshake and discards the handshake packets that
// have not been read.
func (k *conn) onHandshakeEnd() {
	k.cancel()
	k.handshakeDone.Store(true)
	for {
		select {
		case <-k.in:
		default:
			return
		}
	}
}

// orphanCheckInterval is the interval between calls to removeOrphansLocked.
const orphanCheckInterval = 2 * time.Second

// removeOrphansLocked removes each connection that had no association in this check and in the one
// before. The endpoint's lock must be held.
func (c *contextCarrier) removeOrphansLocked(now time.Duration) {
	if len(c.conns) == 0 || now < c.orphanCheckAt {
		return
	}
	c.orphanCheckAt = now + orphanCheckInterval
	for name, k := range c.conns {
		switch {
		case !k.handshakeDone.Load() || c.m.Has(name): // during the handshake there is no association yet
			k.orphaned = false
		case k.orphaned:
			delete(c.conns, name)
			c.shared.removeConn(k)
		default:
			k.orphaned = true
		}
	}
}

// onUnknownConn handles a notice that the peer does not know the connection. Because the notice is
// not authenticated, onUnknownConn only makes the machine probe the peer. The caller must hold the
// shared socket's lock, and must not hold the endpoint's.
func (c *contextCarrier) onUnknownConn(a *inboundDatagram) {
	c.e.Lock()
	defer c.e.UnlockInput()
	if k := a.conn; k.to == a.from && k.up.Load() {
		c.m.Refused(c.d.now(), k.name)
		c.pollSoon()
	}
}

// isPathFrame reports whether the payload of a short packet is a path challenge or response, rather
// than an arq packet.
func isPathFrame(b []byte) bool { return b[0] == challenge || b[0] == response }

// A pathFrame is a path challenge or response to be sent.
type pathFrame struct {
	k    *conn
	kind byte
	data [8]byte
	to   netip.AddrPort
	via  uint8
}

const (
	maxPathFrames     = 64 // maximum number of queued path frames of a context; further ones are dropped
	pathFrameSize     = 1 + 8
	challengeInterval = 20 * time.Millisecond
)

// checkSourceLocked checks the source address of a packet received on the connection k, and handles
// the packet if it is a path frame. It reports whether the packet is an arq packet. A packet from
// an address other than k.to starts validation of the path to that address. When the peer answers
// the challenge from the new address, k.to is set to it (RFC 9000, Section 8.2). The endpoint's
// lock must be held.
func (c *contextCarrier) checkSourceLocked(now time.Duration, a *inboundDatagram) bool {
	k := a.conn
	kind, data := a.b[0], [8]byte{}
	ours := isPathFrame(a.b)
	if ours {
		if len(a.b) != pathFrameSize {
			return false
		}
		copy(data[:], a.b[1:])
	}
	pr := &k.probe
	switch {
	case kind == challenge:
		c.queuePathFrame(pathFrame{k, response, data, a.from, a.via})
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
		pr.to, pr.next = a.from, now+challengeInterval
		c.queuePathFrame(pathFrame{k, challenge, pr.data, a.from, a.via})
	}
	return !ours
}

// queuePathFrame queues n to be sent by the next flush. It drops n if maxPathFrames are already
// queued.
func (c *contextCarrier) queuePathFrame(n pathFrame) {
	if len(c.pathFrames) < maxPathFrames {
		c.pathFrames = append(c.pathFrames, n)
	}
}

// sendOne sends a single datagram. It returns the system's error if another attempt would also
// fail, and otherwise nil; see outbox.noteFailure.
func sendOne(s socket, b []byte, to netip.AddrPort, via uint8) error {
	if raceflag.Enabled {
		raceOrder.Add(1)
	}
	o := &outbox{list: []outboundDatagram{{b: b, to: to, via: via}}}
	if s.send(o); len(o.unsent) > 0 {
		return o.unsent[0].err
	}
	return nil
}

// sendOne sends a single datagram, unless the socket is closed. It holds d.mu while sending.
// Without that lock, a handshake's goroutine, which may outlive the socket, could send on a
// descriptor that the system has reused.
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
	if p.conn == nil || p.conn.proof == nil { // no TLS, or the handshake has not completed
		return carrier.Proof{}
	}
	return p.conn.proof.Who
}

// Remote implements carrier.Locator.
func (p *peer) Remote() string {
	if k := p.conn; k != nil && k.to != k.remoteAddr { // the peer's address has changed
		k.remoteAddr = k.to
		p.setRemote(k.to)
	}
	return p.remote
}

// setRemote sets p.remote, the text form of the peer's address.
func (p *peer) setRemote(at netip.AddrPort) {
	p.remote = netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// shortHeader writes the header of a short packet to the peer at the beginning of b.
func (k *conn) shortHeader(b []byte) {
	b[0] = 0x40
	binary.BigEndian.PutUint64(b[1:], k.peer)
}
