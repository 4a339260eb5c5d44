package udp

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/netroute"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
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
type carrier struct {
	d      *domain
	e      *engine.Endpoint
	id     uint8 // of the context
	m      *arq.Machine
	shared *sharedSocket
	sock   socket       // of the shared socket
	due    atomic.Int64 // when the machine has something to do; 0: never
	last   atomic.Bool  // something was said to peers outside Flush

	shut bool
	open struct{ peers, messages int } // that were not confirmed when their associations ended, since shut

	conns  map[netip.AddrPort]*conn // with TLS, by name
	notes  []note                   // to be sent
	lookAt time.Duration            // the next look at conns

	sending bool // a goroutine is in send, and looks again before it goes
	out     outbox
	full    []*peer   // dials for which there is no association left
	in      []placing // of receive
	slices  [][]byte  // of send
	scratch []byte
	pieces  []*piece // that are not in use
}

// A peer is an association of a link.
type peer struct {
	c      *carrier
	link   *engine.Link // nil: its session is over
	a      *arq.Assoc
	conn   *conn  // nil: there is no TLS
	remote string // the address, for people
	up     bool
	credit uint32 // that was sent in a frame
	part   *part  // of a frame that comes in several packets; nil: there is none
}

// A part is what has come of a frame.
type part struct {
	h    frame.Header
	buf  []byte
	left int // bytes
}

// parts are those of no peer: who has sent a large frame once holds no memory for the next one.
var parts = sync.Pool{New: func() any { return &part{} }}

// A piece is bulk data on its way. It is used again when the machine has no packet of it any more, and the one who sends no loan.
type piece struct {
	v    engine.View
	lent int  // packets that are being sent
	over bool // the machine has none
}

// newPiece returns a piece for v. Locked, as is dropPiece.
func (c *carrier) newPiece(v engine.View) *piece {
	last := len(c.pieces) - 1
	if last < 0 {
		return &piece{v: v}
	}
	pc := c.pieces[last]
	c.pieces = c.pieces[:last]
	pc.v = v
	return pc
}

// dropPiece takes a piece back that is over, unless a packet of it is being sent.
func (c *carrier) dropPiece(pc *piece) {
	if !pc.over || pc.lent > 0 {
		return
	}
	if *pc = (piece{}); len(c.pieces) < maxPieces {
		c.pieces = append(c.pieces, pc)
	}
}

// maxPieces is how many are kept for the next bulk data.
const maxPieces = 64

var (
	_ engine.Carrier  = (*carrier)(nil)
	_ engine.Finisher = (*carrier)(nil)
	_ arq.Upper       = (*carrier)(nil)
	_ engine.Writer   = (*peer)(nil)
	_ engine.Prover   = (*peer)(nil)

	_ engine.Addressed = (*peer)(nil)
)

func (d *domain) newCarrier(e *engine.Endpoint) (engine.Carrier, error) {
	c := &carrier{d: d, e: e, id: uint8(e.Host().Context().ID()), shared: d.shared}
	if c.shared == nil {
		c.shared = &sharedSocket{open: d.open, guard: d.guard, now: d.now}
	}
	if err := c.shared.bind(); err != nil {
		return nil, err
	}
	c.sock = c.shared.sock
	c.m = arq.New(arq.Config{
		Overhead: c.overhead(), Proven: d.guard != nil,
		Profile: d.profile, Ack: d.ack, Context: c.id, Session: func() uint64 { return d.session.Add(1) }, Rand: e.Engine().Rand,
		DialRetries: c.sock.retries(), FinTimeout: finTimeout,
		MaxPeers: d.peers,
		Receive:  func() int { return int(c.shared.room.Load()) / 4 * 3 },
	}, c)
	if d.guard != nil {
		c.conns = map[netip.AddrPort]*conn{}
	}
	if err := c.shared.enter(c); err != nil {
		c.shared.leave(c)
		return nil, na.WithText(na.ErrIO, err.Error())
	}
	return c, nil
}

// overhead is what TLS adds to a packet.
func (c *carrier) overhead() int {
	if c.d.guard == nil {
		return 0
	}
	return overhead
}

func path(to netip.Addr) arq.Path {
	if to.IsLoopback() || inet.IsLocal(to) {
		return arq.Path{Size: localSize, Local: true}
	}
	return arq.Path{Size: jumbo}
}

// Dial implements engine.Carrier.
func (c *carrier) Dial(l *engine.Link) {
	ap, _ := inet.Parse(scheme, l.Name()) // Check has parsed it
	ap = netroute.NameZone(ap)
	p := &peer{c: c, link: l}
	p.setRemote(ap)
	l.Conn = p
	if c.d.guard != nil {
		c.dialTLS(p, ap)
		return
	}
	var err error
	if p.a, err = c.m.Dial(c.d.now(), ap, uint8(l.Target()), path(ap.Addr()), p); err != nil {
		c.full = append(c.full, p)
	}
	c.later()
}

// later has Poll send, of the assist too: nobody drives a context whose callbacks wait to run.
func (c *carrier) later() {
	c.last.Store(true)
	c.e.Host().PollSoon()
	c.e.Host().FlushSoon()
}

// Flush implements engine.Carrier.
func (c *carrier) Flush(ls []*engine.Link) {
	for _, l := range ls {
		if p, _ := l.Conn.(*peer); p != nil {
			p.pull()
		}
	}
	c.send()
}

func (p *peer) pull() {
	if p.up && p.a.Up() && p.link != nil {
		p.link.Pull(engine.FlowMessages, p)
	}
	if p.up && p.a.Up() && p.link != nil {
		p.link.Pull(engine.FlowBulk, p)
	}
}

// Room implements engine.Writer.
func (p *peer) Room() (whole, piece int) {
	whole, piece = p.a.Room(p.c.d.now())
	return min(whole, frame.MaxWhole), min(piece, engine.PieceSize)
}

// Frame implements engine.Writer.
func (p *peer) Frame(h *frame.Header, payload []byte) {
	b := h.Append(p.c.scratch[:0], payload)
	p.c.scratch = b
	p.a.Frame(b[:h.Size()], b[h.Size():], h.Kind == frame.Unexpected || h.Kind == frame.Expected)
	if p.credit = h.Credit; h.Kind == frame.Put || h.Kind == frame.Body {
		p.a.Barrier()
	}
}

// Piece implements engine.Writer. A credit that goes with it could be lost with it.
func (p *peer) Piece(h *frame.Header, v engine.View) {
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

// Cut implements engine.Carrier. A session that ends in order says its last words; any other ends at once.
func (c *carrier) Cut(l *engine.Link, bye frame.Bye) {
	p, _ := l.Conn.(*peer)
	l.Conn = nil
	if p == nil {
		return
	}
	if p.link = nil; p.a == nil {
		if p.conn != nil {
			p.conn.cancel()
		}
		return
	}
	if bye.Code == na.ErrClosed && p.up {
		p.a.Detach()
		p.a.Finish(c.d.now(), bye.Words())
	} else {
		p.a.Cut(bye.Words())
	}
	c.later()
}

// Poll implements engine.Carrier.
func (c *carrier) Poll(now time.Duration) time.Duration {
	due := time.Duration(c.due.Load())
	if c.last.Swap(false) || due != 0 && now >= due {
		c.act(now)
		due = time.Duration(c.due.Load())
	}
	return due
}

// act does what is due.
func (c *carrier) act(now time.Duration) {
	c.e.Lock()
	defer c.e.UnlockInput()
	full := c.full
	c.full = nil
	for _, p := range full {
		if p.link != nil {
			p.link.Fail(na.WithText(na.ErrUnreachable, "this context has as many udp peers as it can: close some of them, or use another context"))
		}
	}
	c.m.Poll(now)
	c.look(now)
	c.send()
}

// Finish implements engine.Finisher.
func (c *carrier) Finish() { c.m.Finish() }

// Shut implements engine.Carrier.
func (c *carrier) Shut() {
	c.shut = true
	c.m.Shut()
}

// Lingering implements engine.Carrier.
func (c *carrier) Lingering(time.Duration) bool {
	c.e.Lock()
	defer c.e.Pause()
	return c.m.Lingering() || c.last.Load() || c.sending
}

// Release implements engine.Carrier. What peers have not confirmed is nobody's error any more: the operations have ended.
func (c *carrier) Release() {
	c.shared.leave(c)
	if n := c.open; n.peers > 0 {
		c.d.log.Warn("udp: a context has closed, and peers have not confirmed that they have everything", "peers", n.peers, "messages", n.messages)
	}
}
