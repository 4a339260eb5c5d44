package sm

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// A peer is a process at the other end of a socket, with what the two share.
//
//	accepted ─ hello ─► up (its segment may still come) ─┐
//	dialling ─ hello ─► up ──────────────────────────────┴► dead ─► closed, by Poll
type peer struct {
	c        *contextCarrier
	fd       int // the socket; -1 before it is made
	bell     int // rung by the peer; -1
	peerBell int // rung by us; -1
	pidfd    int // -1
	segment  int // of our segment, until the peer has it; -1
	area     int // of our area, likewise
	ids      [3]carrier.PollID
	added    [3]bool // to the poller
	dead     atomic.Bool
	hot      atomic.Bool
	end      *ring.End // nil before the hello

	// Of the goroutine that leads.
	idle    int    // sleeps since something came
	starved bool   // its descriptors wait in the socket, and it is not watched
	buf     []byte // of the context

	// Guarded by the endpoint's lock.
	link         carrier.Session // nil: not known yet
	dialling     bool
	up           bool
	err          error         // of a dial, or of the memory while frames are being pulled
	due          time.Duration // dial again, HELLO has to be here, or send again
	sendBy       time.Duration // our memory has to have left; 0: the system took it, or was not asked
	warming      bool
	writing      bool // a goroutine sends
	filling      int  // goroutines write into the area
	touched      int  // bytes of its room for bodies that the system has memory for
	blocked      bool // until the peer has taken something
	resumes      bool
	near         bool                  // of the same user
	remote       string                // its process, and its user if that is another
	chunks       map[uint32]*poolChunk // of its pool
	peerGeometry ring.Geometry         // of the segment that comes
	version      uint16                // of the layout of both segments
	mem          struct{ own, peer, ownArea, peerArea []byte }
	staged       []bulkPiece                   // of the goroutine that sends
	shown        [carrier.Lanes][]carrier.View // pieces that the peer has not taken, by ring: it reads them in the area
	closed       bool
}

// A bulkPiece is bulk data whose place in the ring is taken.
type bulkPiece struct {
	v    carrier.View
	spot ring.Spot
	gone bool
}

const (
	maxMessages = 16        // of one peer in a row, then the next one
	maxPieces   = 4         // likewise; of those that are sent, before messages get their turn
	maxCopied   = 256 << 10 // bytes of long messages and bodies likewise: then they are handled, while they are in the caches
	maxTurn     = 32        // pieces sent in a row, then Poll goes on
	pieceSize   = 64 << 10
	page        = 4 << 10 // the smallest that systems have
)

// newPeer makes a peer. Locked.
func (c *contextCarrier) newPeer(fd int) *peer {
	p := &peer{c: c, fd: fd, bell: -1, peerBell: -1, pidfd: -1, segment: -1, area: -1}
	c.peers[p] = struct{}{}
	return p
}

// watch adds the descriptors of a peer to the poller. Locked.
func (p *peer) watch() (err error) {
	add := func(i, fd int, edge bool, to carrier.Pollable) {
		if fd < 0 || err != nil {
			return
		}
		if edge {
			p.ids[i], err = p.c.poller.AddEdge(fd, to)
		} else {
			p.ids[i], err = p.c.poller.Add(fd, to)
		}
		if err != nil {
			err = codes.WithText(codes.ErrNoMemory, "watch the peer: "+err.Error())
			return
		}
		p.added[i] = true
	}
	add(0, p.fd, false, p)
	add(1, p.bell, true, (*bellFD)(p))
	add(2, p.pidfd, false, (*processFD)(p))
	return err
}

// unwatch takes them out again. By the leader, or before anybody knows p.
func (p *peer) unwatch() {
	for i, fd := range []int{p.fd, p.bell, p.pidfd} {
		if p.added[i] {
			p.c.poller.Remove(fd, p.ids[i])
		}
	}
	p.added = [3]bool{}
}

// cutWithBye ends p in any state, and says bye. Locked.
func (p *peer) cutWithBye(bye frame.Bye) {
	if p.dead.Swap(true) {
		return
	}
	if words := bye.Words(); words != nil && p.fd >= 0 {
		_ = sendPacket(p.fd, kindBye, words)
	}
	c := p.c
	c.guests = slices.DeleteFunc(c.guests, func(other *peer) bool { return other == p })
	c.closing = append(c.closing, p)
	c.pollSoon()
}

// close gives back what p holds. Locked, by the leader; nobody sends.
func (p *peer) close() {
	if p.closed {
		return
	}
	p.closed = true
	c := p.c
	delete(c.peers, p)
	c.warm = slices.DeleteFunc(c.warm, func(other *peer) bool { return other == p })
	if i := slices.Index(c.hot, p); i >= 0 {
		c.makeCold(i)
	}
	p.unwatch()
	for _, fd := range []int{p.fd, p.bell, p.peerBell, p.pidfd, p.segment, p.area} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, b := range []*[]byte{&p.mem.own, &p.mem.peer, &p.mem.peerArea} {
		unmap(b)
	}
	p.unmapArea()
	for _, ch := range p.chunks {
		ch.unmapIfUnused()
	}
}

// unmapArea gives our area back when p is closed and nobody writes there: a program may, for as long as it likes. Locked.
func (p *peer) unmapArea() {
	if p.closed && p.filling == 0 {
		unmap(&p.mem.ownArea)
	}
}

// isSending reports whether a goroutine sends, without the lock. Locked.
func (p *peer) isSending() bool { return p.writing }

// closeReleased closes p if its carrier was released and nobody is busy. Locked.
func (p *peer) closeReleased() {
	if p.c.released && !p.isSending() {
		p.close()
	}
}

// fail ends the session because of err. By the leader.
func (p *peer) fail(err error) {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	p.failLocked(err)
}

// Cut implements na.Cutter.
func (p *peer) Cut(err error) { p.fail(err) }

func (p *peer) failLocked(err error) {
	switch {
	case p.dead.Load():
	case p.link == nil:
		p.cutWithBye(frame.ByeOf(err))
	default:
		p.link.Fail(translateError(err))
	}
}

type (
	bellFD    peer
	processFD peer
)

// Ready implements carrier.Pollable: the peer has something for a side that sleeps.
func (b *bellFD) Ready(_, _ bool) {
	p := (*peer)(b)
	p.c.makeHot(p)
	p.read()
}

// Cut implements na.Cutter.
func (b *bellFD) Cut(err error) { (*peer)(b).fail(err) }

// Cut implements na.Cutter.
func (f *processFD) Cut(err error) { (*peer)(f).fail(err) }

// Ready implements carrier.Pollable: the process is gone. What it had sent counts.
func (f *processFD) Ready(_, _ bool) {
	p := (*peer)(f)
	p.drain()
	p.fail(codes.WithText(codes.ErrPeerLost, "the process of the peer has ended"))
}

// drain takes everything that the peer has sent.
func (p *peer) drain() {
	for p.read() {
	}
}

// read takes in what the peer has sent, some of it, and sends what has waited for room. It reports whether anything had come. By the
// leader.
func (p *peer) read() (came bool) {
	e := p.c.e
	e.Lock()
	defer e.UnlockInput()
	if p.dead.Load() || !p.up {
		return false
	}
	n, m, err := 0, 0, error(nil)
	p.c.copied = 0
	for ok := true; ok && err == nil && n < maxMessages && p.c.copied < maxCopied; n++ {
		if ok, err = p.nextMessage(ring.Messages); !ok {
			break
		}
	}
	for ok := true; ok && err == nil && m < maxPieces && p.c.copied < maxCopied; m++ {
		if ok, err = p.nextMessage(ring.Bulk); !ok {
			break
		}
	}
	if !p.dead.Load() {
		p.endRead(n, m, err)
	}
	return n+m > 0
}

// endRead ends a read of n messages and m pieces. Locked.
func (p *peer) endRead(n, m int, err error) {
	if n+m > 0 {
		p.link.Heard(n == 0)
	}
	wake := false
	if err == nil {
		wake, err = p.report()
	}
	if wake {
		ringBell(p.peerBell)
	}
	switch {
	case err != nil:
		p.failLocked(err)
	case p.blocked:
		p.blocked = false
		p.flush()
	}
}

func (p *peer) report() (wake bool, err error) {
	defer memfault.Off(memfault.On(), &err)
	if raceflag.Enabled {
		passed.Add(1)
	}
	return p.end.Report(), nil
}

// nextMessage takes the next message of a ring. Locked, though not while it copies much.
func (p *peer) nextMessage(r int) (ok bool, err error) {
	t := &p.c.m
	ok, needs, err := p.takeMessage(r, t)
	if needs {
		if err = p.fetchArea(); err == errStarved {
			p.pauseForDescriptors()
			return false, nil
		}
		if err == nil {
			ok, _, err = p.takeMessage(r, t)
		}
	}
	if !ok || err != nil {
		return false, err
	}
	if t.Kind != ring.Void {
		err = p.deliver(t)
	}
	if t.Slot >= 0 || t.Block {
		p.end.Free(r)
	}
	return !p.dead.Load(), err
}

func (p *peer) takeMessage(r int, t *ring.Taken) (ok, needs bool, err error) {
	defer memfault.Off(memfault.On(), &err)
	ok, needs, err = p.end.Take(r, t, p.buf)
	if raceflag.Enabled {
		passed.Load()
	}
	return ok, needs, err
}

// deliver hands a message to the carrier.
func (p *peer) deliver(t *ring.Taken) error {
	h := &p.c.head
	*h = frame.Header{
		Kind: frame.Kind(t.Kind), Flags: t.Flags, Context: uint16(p.c.e.ID()), Op: t.Op, Tag: t.Tag, Credit: t.Credit, Length: uint32(t.Len),
	}
	if h.Kind == frame.Hello || h.Kind == frame.Goaway {
		return codes.WithText(codes.ErrProtocol, h.Kind.String()+" frame where none is allowed")
	}
	at, n, shown := t.Ref()
	if shown = shown && h.Kind.Bulk(); shown {
		h.Length = uint32(n)
	}
	if err := h.Check(t.Body); err != nil {
		return err
	}
	if h.Kind.IsSkipped() { // wherever its payload is
		return p.link.Deliver(h, nil)
	}
	if shown {
		body, err := p.end.PeerBlock(at, n)
		if err != nil {
			return err
		}
		return p.placeBody(h, body)
	}
	if t.Block {
		return p.placeBlock(h)
	}
	if h.Kind.Bulk() || t.Slot >= 0 {
		return p.placeBody(h, t.Body)
	}
	if h.Size() > frame.HeaderSize {
		t.Body = nil
	}
	return p.link.Deliver(h, t.Body)
}

// placeBlock takes in the body that a BODY frame is about, which stands in the peer's area.
func (p *peer) placeBlock(h *frame.Header) error {
	if h.Kind != frame.Body {
		return codes.WithText(codes.ErrProtocol, h.Kind.String()+" frame about a body")
	}
	n := frame.BodyLen(h.Op)
	body, err := p.end.PeerBlock(h.Tag, n)
	if err == nil {
		err = p.link.Deliver(h, nil)
	}
	if err != nil {
		return err
	}
	*h = frame.Header{Kind: frame.Data, Flags: frame.FlagBody, Context: h.Context, Op: h.Op, Credit: h.Credit, Length: uint32(n)}
	return p.placeBody(h, body)
}

// copyUnlocked is from how many bytes a copy is made without the lock.
const copyUnlocked = 16 << 10

// placeBody copies a body to where it goes.
func (p *peer) placeBody(h *frame.Header, body []byte) error {
	v, err := p.link.Place(h)
	if err != nil {
		return err
	}
	p.c.copied += len(body)
	if len(body) > copyUnlocked {
		p.copyUnlocked(v, body)
	} else {
		v.CopyIn(0, body)
	}
	if p.dead.Load() {
		return nil
	}
	return p.link.Placed(v)
}

// copyUnlocked copies without the lock. Locked at its beginning and its end.
func (p *peer) copyUnlocked(v carrier.View, body []byte) {
	p.c.e.Pause()
	defer p.c.e.Lock()
	v.CopyIn(0, body)
}
