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
	localSize = 60 << 10 // bytes of a datagram to a peer on this machine
	// bytes of the largest datagram that is probed for elsewhere: an MTU of 9000 less the headers
	// of IP and UDP
	jumbo = 8972
	// finTimeout limits how long a context that closes waits for its peers to acknowledge the end
	// of their associations. Together with the linger of a release it stays below the time that
	// package na allows for closing.
	finTimeout = 200 * time.Millisecond
)

// A contextCarrier implements carrier.Carrier for one context: it connects the context's protocol
// machine to a shared socket. The endpoint's lock guards the machine and all fields that are
// neither atomic nor constant. Only the goroutine that has set sending uses out and slices.
type contextCarrier struct {
	head        frame.Header // the header of the frame that is being handled
	d           *domain
	e           carrier.Core
	id          uint8 // the number of the context
	m           *arq.Machine
	shared      *sharedSocket
	sock        socket       // the socket that shared had when the context was opened
	due         atomic.Int64 // the time at which the machine has work; 0: it has none
	sendPending atomic.Bool  // the machine has packets that were not caused by Flush; the next Poll sends them

	shut bool
	// peers and their messages that were unconfirmed when their associations ended, since Shut
	unconfirmed struct{ peers, messages int }

	conns         map[netip.AddrPort]*conn // the connections with TLS, by conn.name; nil: there is no TLS
	pathFrames    []pathFrame              // path frames to be sent
	orphanCheckAt time.Duration            // the time of the next removeOrphansLocked

	sending bool // a goroutine is in flush; it collects again before it returns
	out     outbox
	failed  []failedDial  // the dials that have failed since the last Poll
	in      []bulkPlacing // bulk data of the batch that handleDatagrams works on
	slices  [][]byte      // scratch space of sealPackets
	scratch []byte        // scratch space of Frame
	pieces  []*bulkPiece  // free list
}

// A failedDial is a dial that has failed at once. The next Poll reports it, because Dial must not
// end a session.
type failedDial struct {
	p   *peer
	err error
}

// errFull is the error of a dial when the machine has no association left.
var errFull = codes.WithText(codes.ErrUnreachable, "too many udp peers in this context; close some, or use another context")

// A peer joins a session of package na to its association of package arq. The endpoint's lock
// guards it.
type peer struct {
	c      *contextCarrier
	link   carrier.Session // nil: the session has ended
	a      *arq.Assoc
	conn   *conn  // nil: there is no TLS
	remote string // the peer's address as text
	up     bool
	credit uint32        // the credit of the last frame that was sent
	part   *partialFrame // a received frame that spans several packets; nil: there is none
}

// A partialFrame is a frame of which some packets have been received.
type partialFrame struct {
	h    frame.Header
	buf  []byte
	left int // bytes that are missing
}

// partialFrames is shared by all peers, so that a peer that has sent a large frame does not keep
// its memory.
var partialFrames = sync.Pool{New: func() any { return &partialFrame{} }}

// A bulkPiece is a piece of bulk data that is in flight. It returns to the free list when the
// machine has no packet of it left and no packet of it is being sent.
type bulkPiece struct {
	v        carrier.View
	lent     int   // packets that are being sent
	released bool  // the machine has no packet of it left
	p        *peer // the receiver; set when over is
}

// newPieceLocked returns a piece for v, from the free list if that has one.
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

// dropPieceLocked returns pc to the free list and reports its view as sent, if pc is over and no
// packet of it is being sent.
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

// maxPieces limits the free list of bulkPieces.
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

// overhead returns how many bytes the protection of TLS adds to a packet.
func (c *contextCarrier) overhead() int {
	if c.d.guard == nil {
		return 0
	}
	return overhead
}

// pathOf returns the largest datagram size that is worth probing for on the path to an address.
func pathOf(to netip.Addr) arq.Path {
	if to.IsLoopback() || inet.IsLocal(to) {
		return arq.Path{Size: localSize, Local: true}
	}
	return arq.Path{Size: jumbo}
}

// Dial implements carrier.Carrier.
func (c *contextCarrier) Dial(l carrier.Session) {
	ap, _ := inet.Parse(scheme, l.Name()) // Check has parsed it
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

// undialableReason returns why no single process can be reached at ip, "" if one can. zone is the
// zone of ip before NameZone has looked it up. Without this check the system would choose an
// interface and send, and an answer, if any, would come from another address, so that the dial
// would only time out.
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

// pollSoon makes the next Poll send, and wakes the background poller: while callbacks of the
// context wait to run, no goroutine may be calling Progress.
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

// pull pulls messages and then bulk data from the session, as far as the window has room.
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

// Piece implements carrier.Writer. A new credit goes ahead in a frame of its own: a packet of bulk
// data is void when its memory is withdrawn, and the credit would be lost with it.
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

// Cut implements carrier.Carrier. A session that is closed in order sends bye and waits for its
// acknowledgment; any other session ends at once.
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

// runDue reports failed dials, runs the machine's timers and sends.
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

// Release implements carrier.Carrier. It logs messages that peers have not confirmed: their
// operations have ended, so no error can report them.
func (c *contextCarrier) Release() {
	c.shared.removeContext(c)
	if n := c.unconfirmed; n.peers > 0 {
		c.d.log.Warn("udp: context closed before peers acknowledged all data", "peers", n.peers, "messages", n.messages)
	}
}
