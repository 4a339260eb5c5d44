package udp

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/netroute"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

const (
	localSize = 60 << 10 // size in bytes of a datagram to a peer on this machine
	// jumbo is the size in bytes of the largest datagram probed for on the path to another machine.
	// It is an MTU of 9000 less the IP and UDP headers.
	jumbo = 8972
	// finTimeout limits how long a context that is closing waits for its peers to acknowledge the
	// end of their associations. Together with the time that a release lingers, it stays below the
	// time that package na allows for closing.
	finTimeout = 200 * time.Millisecond
)

// A contextCarrier implements carrier.Carrier for one context. It connects the context's protocol
// machine to a shared socket. The endpoint's lock guards the machine and all fields that are
// neither atomic nor constant. Only the goroutine that has set sending uses out and slices.
type contextCarrier struct {
	head        frame.Header // header of the frame being handled
	d           *domain
	e           carrier.Core
	id          uint8 // number of the context
	m           *arq.Machine
	shared      *sharedSocket
	sock        socket       // socket of shared when the context was opened
	due         atomic.Int64 // time at which the machine has work; 0 if it has none
	sendPending atomic.Bool  // the machine has packets not caused by Flush, which the next Poll sends

	shut bool
	// peers whose associations ended with unconfirmed messages since Shut, and the number of
	// messages
	unconfirmed struct{ peers, messages int }

	conns         map[netip.AddrPort]*conn // connections with TLS by conn.name; nil without TLS
	pathFrames    []pathFrame              // path frames to be sent
	orphanCheckAt time.Duration            // time of the next removeOrphansLocked

	sending bool // a goroutine is in flush; it collects packets again before it returns
	out     outbox
	failed  []failedDial  // dials that have failed since the last Poll
	in      []bulkPlacing // bulk data of the batch being handled by handleDatagrams
	slices  [][]byte      // scratch space for sealPackets
	scratch []byte        // scratch space for Frame
	pieces  []*bulkPiece  // free list
}

// A failedDial is a dial that failed immediately. It is reported by the next Poll, because Dial
// must not fail a session.
type failedDial struct {
	p   *peer
	err error
}

// errFull is the error of a dial when the machine cannot create another association.
var errFull = codes.WithText(codes.ErrUnreachable, "too many udp peers in this context; close some, or use another context")

// A peer connects a session of package na to its association in package arq. It is guarded by the
// endpoint's lock.
type peer struct {
	c      *contextCarrier
	link   carrier.Session // nil if the session has been closed
	a      *arq.Assoc
	conn   *conn  // nil without TLS
	remote string // peer's address as text
	up     bool
	credit uint32        // credit in the last frame sent
	part   *partialFrame // received frame that spans several packets; nil if there is none
}

// A partialFrame is a frame of which some packets have been received.
type partialFrame struct {
	h    frame.Header
	buf  []byte
	left int // number of missing bytes
}

// partialFrames is shared by all peers, so that a peer that has sent a large frame does not retain
// the memory for it.
var partialFrames = sync.Pool{New: func() any { return &partialFrame{} }}

// A bulkPiece is a piece of bulk data in flight. It returns to the free list when the machine has
// no more packets of it and none of its packets is being sent.
type bulkPiece struct {
	v        carrier.View
	lent     int   // number of packets being sent
	released bool  // the machine has no more packets of the piece
	p        *peer // receiver; set together with released
}

// newPieceLocked returns a piece for v, from the free list if possible.
func (c *contextCarrier) newPieceLocked(v carrier.View) *bulkPiece {
	last := len(c.pieces) - 1
	if last < 0 {
		return &bulkPiece{v: v}
	}
	pc := c.pieces[last]
	c.pieces = c.pieces[:last]
	pc.v = v
	return pc
}

// dropPieceLocked returns pc to the free list and reports its view as sent, if the machine has
// released pc and none of its packets is being sent.
func (c *contextCarrier) dropPieceLocked(pc *bulkPiece) {
	if !pc.released || pc.lent > 0 {
		return
	}
	if l := pc.p.link; l != nil {
		l.Sent(pc.v)
	}
	if *pc = (bulkPiece{}); len(c.pieces) < maxPieces {
		c.pieces = append(c.pieces, pc)
	}
}

// maxPieces limits the length of the free list of bulkPieces.
const maxPieces = 64

var (
	_ carrier.Carrier  = (*contextCarrier)(nil)
	_ carrier.Finisher = (*contextCarrier)(nil)
	_ arq.Upper        = (*contextCarrier)(nil)
	_ carrier.Writer   = (*peer)(nil)
	_ carrier.Prover   = (*peer)(nil)

	_ carrier.Locator = (*peer)(nil)
)

func (d *domain) newCarrier(e carrier.Core) (carrier.Carrier, error) {
	c := &contextCarrier{d: d, e: e, id: uint8(e.ID()), shared: d.shared}
	if c.shared == nil {
		c.shared = &sharedSocket{class: d.class, open: d.open, guard: d.guard, now: d.now}
	}
	if err := c.shared.bind(); err != nil {
		return nil, err
	}
	c.sock = c.shared.sock
	c.m = arq.New(arq.Config{
		Overhead: c.overhead(), Proven: d.guard != nil,
		Profile: d.profile, Ack: d.ack, Context: c.id, Session: func() uint64 { return d.session.Add(1) }, Rand: func(b []byte) { _, _ = rand.Read(b) },
		WrongVersion: func(oldest, newest uint8) []byte {
			_, err := frame.Agree("udp packets", frame.Range{Oldest: uint16(oldest), Newest: uint16(newest)}, frame.Range{Oldest: arq.OldestVersion, Newest: arq.Version})
			return frame.ByeOf(err).Words()
		},
		DialRetries: c.sock.retriesRefused(), FinTimeout: finTimeout,
		MaxPeers: d.peers,
		Receive:  func() int { return int(c.shared.room.Load()) / 4 * 3 },
	}, c)
	if d.guard != nil {
		c.conns = map[netip.AddrPort]*conn{}
	}
	if err := c.shared.addContext(c); err != nil {
		c.shared.removeContext(c)
		return nil, codes.WithText(codes.ErrIO, err.Error())
	}
	return c, nil
}

// overhead returns the number of bytes that TLS adds to a packet.
func (c *contextCarrier) overhead() int {
	if c.d.guard == nil {
		return 0
	}
	return overhead
}

// pathOf returns the largest datagram size worth probing for on the path to an address.
func pathOf(to netip.Addr) arq.Path {
	if to.IsLoopback() || inet.IsLocal(to) {
		return arq.Path{Size: localSize, Local: true}
	}
	return arq.Path{Size: jumbo}
}

// Dial implements carrier.Carrier.
func (c *contextCarrier) Dial(l carrier.Session) {
	ap, _ := inet.Parse(scheme, l.Name()) // already parsed by Check
	zone := ap.Addr().Zone()
	ap = netroute.NameZone(ap)
	p := &peer{c: c, link: l}
	p.setRemote(ap)
	l.SetConn(p)
	if why := undialableReason(ap.Addr(), zone); why != "" {
		c.failed = append(c.failed, failedDial{p, codes.WithText(codes.ErrUnreachable, why)})
		c.pollSoon()
		return
	}
	if c.d.guard != nil {
		c.dialTLSLocked(p, ap)
		return
	}
	var err error
	if p.a, err = c.m.Dial(c.d.now(), ap, uint8(l.Target()), pathOf(ap.Addr()), p); err != nil {
		c.failed = append(c.failed, failedDial{p, errFull})
	}
	c.pollSoon()
}

// undialableReason returns the reason why no single process can be reached at ip, or "" if one can.
// zone is the zone of ip before NameZone looked it up. Without this check the system would choose
// an interface and send. Any answer would come from another address, so the dial would only time
// out.
func undialableReason(ip netip.Addr, zone string) string {
	switch {
	case ip.IsMulticast():
		return "cannot dial a multicast address"
	case !ip.Is6() || !ip.IsLinkLocalUnicast() || ip.Zone() != "":
		return ""
	case zone != "":
		return "zone " + zone + " is no interface of this machine"
	}
	return "a link-local address needs a zone, as in [fe80::1%eth0]"
}

// pollSoon makes the next Poll send, and wakes the background poller. While callbacks of the
// context are waiting to run, there may be no goroutine calling Progress.
func (c *contextCarrier) pollSoon() {
	c.sendPending.Store(true)
	c.e.PollSoon()
	c.e.FlushSoon()
}

// Flush implements carrier.Carrier.
func (c *contextCarrier) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if p, _ := l.Conn().(*peer); p != nil {
			p.pull()
		}
	}
	c.flush()
}

// pull pulls messages and then bulk data from the session, up to the space in the window.
func (p *peer) pull() {
	if p.up && p.a.Up() && p.link != nil {
		p.link.Pull(carrier.Messages, p)
	}
	if p.up && p.a.Up() && p.link != nil {
		p.link.Pull(carrier.Bulk, p)
	}
}

// Room implements carrier.Writer.
func (p *peer) Room() (whole, piece int) {
	whole, piece = p.a.Room(p.c.d.now())
	return min(whole, frame.MaxWhole), min(piece, carrier.PieceSize)
}

// Frame implements carrier.Writer.
func (p *peer) Frame(h *frame.Header, payload []byte) {
	b := h.Append(p.c.scratch[:0], payload)
	p.c.scratch = b
	p.a.Frame(b[:h.Size()], b[h.Size():], h.Kind == frame.Unexpected || h.Kind == frame.Expected)
	if p.credit = h.Credit; h.Kind == frame.Put || h.Kind == frame.Body {
		p.a.Barrier()
	}
}

// Piece implements carrier.Writer. A changed credit is sent first, in a separate frame. Otherwise
// it would be lost if the memory is withdrawn, because a packet of bulk data then becomes void.
func (p *peer) Piece(h *frame.Header, v carrier.View) {
	if h.Credit != p.credit {
		p.Frame(&frame.Header{Kind: frame.Credit, Context: h.Context, Credit: h.Credit}, nil)
	}
	var front [arq.FrontSize]byte
	le := binary.LittleEndian
	le.PutUint64(front[:], h.Op)
	le.PutUint64(front[8:], h.Tag)
	le.PutUint32(front[16:], h.Credit)
	le.PutUint16(front[20:], h.Context)
	front[22] = h.Flags
	p.a.Piece(&front, p.c.newPieceLocked(v), v.Len())
}

// Cut implements carrier.Carrier. A session that is closed in an orderly way sends bye and waits
// for it to be acknowledged. Any other session is closed immediately.
func (c *contextCarrier) Cut(l carrier.Session, bye frame.Bye) {
	p, _ := l.Conn().(*peer)
	l.SetConn(nil)
	if p == nil {
		return
	}
	if p.link = nil; p.a == nil {
		if p.conn != nil {
			p.conn.cancel()
		}
		return
	}
	if bye.Code == codes.ErrClosed && p.up {
		p.a.Detach()
		p.a.Finish(c.d.now(), bye.Words())
	} else {
		p.a.Cut(bye.Words())
	}
	c.pollSoon()
}

// Poll implements carrier.Carrier.
func (c *contextCarrier) Poll(now time.Duration) time.Duration {
	due := time.Duration(c.due.Load())
	if c.sendPending.Swap(false) || due != 0 && now >= due {
		c.runDue(now)
		due = time.Duration(c.due.Load())
	}
	return due
}

// runDue reports failed dials, runs the machine's expired timers, and sends.
func (c *contextCarrier) runDue(now time.Duration) {
	c.e.Lock()
	defer c.e.UnlockInput()
	failed := c.failed
	c.failed = nil
	for _, f := range failed {
		if f.p.link != nil {
			f.p.link.Fail(f.err)
		}
	}
	c.m.Poll(now)
	c.removeOrphansLocked(now)
	c.flush()
}

// Finish implements carrier.Finisher.
func (c *contextCarrier) Finish() { c.m.Finish() }

// Shut implements carrier.Carrier.
func (c *contextCarrier) Shut() {
	c.shut = true
	c.m.Shut()
}

// Lingering implements carrier.Carrier.
func (c *contextCarrier) Lingering(time.Duration) bool {
	c.e.Lock()
	defer c.e.Pause()
	return c.m.Lingering() || c.sendPending.Load() || c.sending
}

// Release implements carrier.Carrier. It logs messages that peers have not confirmed. Their
// operations have already completed, so the loss cannot be reported as an error.
func (c *contextCarrier) Release() {
	c.shared.removeContext(c)
	if n := c.unconfirmed; n.peers > 0 {
		c.d.log.Warn("udp: context closed before peers acknowledged all data", "peers", n.peers, "messages", n.messages)
	}
}
