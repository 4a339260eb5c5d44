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
	localSize = 60 << 10 // datagrams within the machine
	jumbo     = 8972     // what is tried elsewhere
	// finTimeout is how long a context that closes waits for peers to acknowledge its last words. With the linger of a release it is
	// less than na allows.
	finTimeout = 200 * time.Millisecond
)

// A carrier is a context's protocol machine, which is under the endpoint's lock, behind a shared socket.
type contextCarrier struct {
	head   frame.Header // of the frame that is handled
	d      *domain
	e      carrier.Core
	id     uint8 // of the context
	m      *arq.Machine
	shared *sharedSocket
	sock   socket       // of the shared socket
	due    atomic.Int64 // when the machine has something to do; 0: never
	last   atomic.Bool  // something was said to peers outside Flush

	shut bool
	open struct{ peers, messages int } // that were not confirmed when their associations ended, since shut

	conns  map[netip.AddrPort]*conn // with TLS, by name
	notes  []connNote               // to be sent
	lookAt time.Duration            // the next look at conns

	sending bool // a goroutine is in send, and looks again before it goes
	out     outbox
	failed  []failedDial  // since the last Poll
	in      []bulkPlacing // of receive
	slices  [][]byte      // of send
	scratch []byte
	pieces  []*bulkPiece // that are not in use
}

// A failedDial is a dial that cannot be made. It ends in the next Poll: Dial itself ends nothing.
type failedDial struct {
	p   *peer
	err error
}

// errFull is why there is no association for one more peer.
var errFull = codes.WithText(codes.ErrUnreachable, "this context has as many udp peers as it can: close some of them, or use another context")

// A peer is an association of a session.
type peer struct {
	c      *contextCarrier
	link   carrier.Session // nil: its session is over
	a      *arq.Assoc
	conn   *conn  // nil: there is no TLS
	remote string // the address, for people
	up     bool
	credit uint32        // that was sent in a frame
	part   *partialFrame // of a frame that comes in several packets; nil: there is none
}

// A partialFrame is what has come of a frame.
type partialFrame struct {
	h    frame.Header
	buf  []byte
	left int // bytes
}

// parts are those of no peer: who has sent a large frame once holds no memory for the next one.
var parts = sync.Pool{New: func() any { return &partialFrame{} }}

// A bulkPiece is bulk data on its way. It is used again when the machine has no packet of it any more, and the one who sends no loan.
type bulkPiece struct {
	v    carrier.View
	lent int   // packets that are being sent
	over bool  // the machine has none,
	p    *peer // and it was to this one
}

// newPiece returns a piece for v. Locked, as is dropPiece.
func (c *contextCarrier) newPiece(v carrier.View) *bulkPiece {
	last := len(c.pieces) - 1
	if last < 0 {
		return &bulkPiece{v: v}
	}
	pc := c.pieces[last]
	c.pieces = c.pieces[:last]
	pc.v = v
	return pc
}

// dropPiece takes a piece back that is over, unless a packet of it is being sent.
func (c *contextCarrier) dropPiece(pc *bulkPiece) {
	if !pc.over || pc.lent > 0 {
		return
	}
	if l := pc.p.link; l != nil {
		l.Sent(pc.v)
	}
	if *pc = (bulkPiece{}); len(c.pieces) < maxPieces {
		c.pieces = append(c.pieces, pc)
	}
}

// maxPieces is how many are kept for the next bulk data.
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

// overhead is what TLS adds to a packet.
func (c *contextCarrier) overhead() int {
	if c.d.guard == nil {
		return 0
	}
	return overhead
}

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
		c.dialTLS(p, ap)
		return
	}
	var err error
	if p.a, err = c.m.Dial(c.d.now(), ap, uint8(l.Target()), pathOf(ap.Addr()), p); err != nil {
		c.failed = append(c.failed, failedDial{p, errFull})
	}
	c.pollSoon()
}

// undialableReason returns why no single process can be reached at ip, "" if one can. The system would send there, by an interface that it chooses,
// and the answer would come from another address, if any did. zone is that of ip before it was looked up.
func undialableReason(ip netip.Addr, zone string) string {
	switch {
	case ip.IsMulticast():
		return "a multicast address is not that of one process"
	case !ip.Is6() || !ip.IsLinkLocalUnicast() || ip.Zone() != "":
		return ""
	case zone != "":
		return "zone " + zone + " is no interface of this machine"
	}
	return "a link-local address needs its interface as the zone, as in [fe80::1%eth0]"
}

// pollSoon has Poll send, of the background poller too: nobody drives a context whose callbacks wait to run.
func (c *contextCarrier) pollSoon() {
	c.last.Store(true)
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

// Piece implements carrier.Writer. A credit that goes with it could be lost with it.
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
	p.a.Piece(&front, p.c.newPiece(v), v.Len())
}

// Cut implements carrier.Carrier. A session that ends in order says its last words; any other ends at once.
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
	if c.last.Swap(false) || due != 0 && now >= due {
		c.runDue(now)
		due = time.Duration(c.due.Load())
	}
	return due
}

// runDue does what is due.
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
	c.forgetUnknown(now)
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
	return c.m.Lingering() || c.last.Load() || c.sending
}

// Release implements carrier.Carrier. What peers have not confirmed is nobody's error any more: the operations have ended.
func (c *contextCarrier) Release() {
	c.shared.removeContext(c)
	if n := c.open; n.peers > 0 {
		c.d.log.Warn("udp: a context has closed, and peers have not confirmed that they have everything", "peers", n.peers, "messages", n.messages)
	}
}
