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
	// jumbo is the size in bytes of the largest datagram probed for on the path to another machine:
	// 9000, the MTU for jumbo frames, less the sizes of the IP and UDP headers.
	jumbo = 8972
	// finTimeout limits how long a closing context waits for peers to acknowledge the end of their
	// associations. The sum of finTimeout and the time for which an association lingers is less
	// than the time that package na allows for closing.
	finTimeout = 200 * time.Millisecond
)

// A contextCarrier implements carrier.Carrier for one context. It connects the context's protocol
// machine to a shared socket. The endpoint's lock guards the machine and all fields that are
// neither atomic nor constant. Only the goroutine that has set sending may use out and slices.
type contextCarrier struct {
	head        frame.Header // header of the frame being handled
	d           *domain
	e           carrier.Core
	id          uint8 // number of the context
	m           *arq.Machine
	shared      *sharedSocket
	sock        socket       // socket that shared had when the context was opened
	leaving     bool         // reports whether the context no longer watches sock; guarded by shared.mu
	due         atomic.Int64 // time of the machine's next deadline; 0 if it has none
	sendPending atomic.Bool  // whether the next Poll must send packets that were not produced by Flush
	// afterCallbacks reports whether the next Poll must return at once, because callbacks may be ready.
	afterCallbacks atomic.Bool

	shut bool
	// peers whose associations ended with unconfirmed messages since Shut, and the number of
	// messages
	unconfirmed struct{ peers, messages int }

	conns         map[netip.AddrPort]*conn // connections with TLS by conn.name; nil without TLS
	pathFrames    []pathFrame              // path frames to be sent
	orphanCheckAt time.Duration            // time of the next call to removeOrphansLocked

	turn    bulkTurn
	sending bool // whether a goroutine is in flush; that goroutine also sends packets added in the meantime
	out     outbox
	failed  []failedDial  // dials that have failed since the last Poll
	in      []bulkPlacing // bulk data of the batch being handled by handleDatagrams
	slices  [][]byte      // scratch space for sealPackets
	scratch []byte        // scratch space for Frame
	pieces  []*bulkPiece  // free list
}

// A failedDial is a dial that failed immediately. The next Poll reports the failure, because Dial
// must not fail a session.
type failedDial struct {
	p   *peer
	err error
}

// errFull is reported for a dial when the machine has the maximum number of associations.
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
	part   *partialFrame // frame of which only some packets have been received; nil if there is none
}

// A partialFrame is a frame that spans several packets, of which only some have been received.
type partialFrame struct {
	h    frame.Header
	buf  []byte
	left int // number of missing bytes
}

// partialFrames is a pool of partialFrames shared by all peers, so that a peer that has sent a
// large frame does not keep the memory for it.
var partialFrames = sync.Pool{New: func() any { return &partialFrame{} }}

// A bulkPiece is a piece of bulk data in flight. It is returned to the free list when the machine
// has released it and none of its packets is being sent.
type bulkPiece struct {
	v        carrier.View
	lent     int   // number of packets being sent
	released bool  // whether the machine has no more packets of the piece to send
	p        *peer // receiver; set together with released
}

// newPieceLocked returns a bulkPiece for v, reusing one from the free list if possible. The
// endpoint's lock must be held.
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

// dropPieceLocked reports the view of pc as sent and returns pc to the free list. It does nothing
// unless the machine has released pc and none of its packets is being sent. The endpoint's lock
// must be held.
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

// pathOf returns the Path to an address: whether it is on this machine, and the largest datagram
// size worth probing for.
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

// undialableReason returns the reason why ip does not identify a single host that can be dialed, or
// "" if it does. zone is the zone of ip before NameZone looked it up. Without this check the system
// would choose an interface and send. Because any answer would come from another address, the dial
// would time out.
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

// pollSoon makes the next Poll send the machine's packets, and wakes the background poller. Waking
// it is necessary because there may be no goroutine calling Progress while the context's callbacks
// are waiting to run.
func (c *contextCarrier) pollSoon() {
	c.sendPending.Store(true)
	c.e.PollSoon()
	c.e.FlushSoon()
}

// Flush implements carrier.Carrier. If a Poll is due that sends what an earlier flush has left, and
// there are no frames to send before that, Flush leaves everything to that Poll.
func (c *contextCarrier) Flush(ls []carrier.Session) {
	now := !c.sendPending.Load()
	for _, l := range ls {
		if p, _ := l.Conn().(*peer); p != nil {
			p.pull()
			now = now || p.a != nil && p.a.HasFrames()
		}
	}
	if now {
		c.flush(false)
	}
}

// pull pulls messages and then bulk data from the session until the window is full.
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

// Piece implements carrier.Writer. If the credit has changed, Piece first sends it in a separate
// frame. A packet of bulk data becomes void if its memory is withdrawn, and a credit in that packet
// would be lost.
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

// Cut implements carrier.Carrier. If the session is closed in an orderly way, its association sends
// bye and stays until the peer has acknowledged bye. Otherwise Cut closes the association
// immediately.
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
	if c.afterCallbacks.Load() && c.afterCallbacks.Swap(false) {
		return now // if there are no callbacks, the leader calls Poll again
	}
	if c.sendPending.Swap(false) || due != 0 && now >= due {
		c.runDue(now)
		due = time.Duration(c.due.Load())
		if c.sendPending.Load() {
			return now // the leader reads what has arrived before it calls Poll again
		}
	}
	return due
}

// runDue reports failed dials, handles the machine's expired timers, and sends the machine's
// packets.
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
	c.flush(false)
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

// Release implements carrier.Carrier. It logs the number of messages that peers have not confirmed.
// Because the operations of those messages have already completed, their loss cannot be reported as
// an error.
func (c *contextCarrier) Release() {
	c.shared.removeContext(c)
	if n := c.unconfirmed; n.peers > 0 {
		c.d.log.Warn("udp: context closed before peers acknowledged all data", "peers", n.peers, "messages", n.messages)
	}
}
