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

// A peer is a process at the other end of a socket, together with the memory that the two processes
// share. Each side sends the other an eventfd, the bell. To wake a process, its peer writes to that
// process's bell.
//
// A peer is up when its HELLO has been received. The segment of a peer that dialed may arrive later.
// When the session or the connection ends, the peer is dead, and Poll closes it.
type peer struct {
	c        *contextCarrier
	fd       int // socket; -1 means none, here and in the descriptors below
	bell     int // eventfd written by the peer
	peerBell int // eventfd written by this side
	pidfd    int // pidfd of the peer's process
	segment  int // this side's segment, until it has been sent to the peer
	area     int // this side's area, until it has been sent to the peer
	ids      [3]carrier.PollID
	added    [3]bool // whether fd, bell and pidfd are in the poller
	dead     atomic.Bool
	hot      atomic.Bool
	end      *ring.End // nil until the HELLO has been received

	// The fields below are used only by the goroutine that polls.
	idle    int    // number of sleeps since the last message
	starved bool   // whether a packet stays in the socket because no descriptor is free; the socket is then not watched
	buf     []byte // buffer returned by the context's scratchBuffer

	// The endpoint's lock guards the fields below.
	link     carrier.Session // nil while the connection is half-open
	dialling bool            // whether this side dialed
	up       bool
	err      error // error of a failed dial, or of a memory access while frames are being pulled
	// due is the time at which to retry a dial or a packet, end a pause, or close a half-open
	// connection.
	due          time.Duration
	sendBy       time.Duration         // time at which to stop retrying to send this side's memory; 0 if no retry is pending
	inWarm       bool                  // whether p is in the context's warm list
	writing      bool                  // whether a goroutine is in flushLocked
	filling      int                   // number of goroutines writing to the area
	touched      int                   // number of bytes of the area's room for bodies that are backed by memory
	blocked      bool                  // whether the rings are full, so that sending resumes when the peer has read a message
	inResume     bool                  // whether p is in the context's resume queue; quota is renewed when Poll takes it
	quota        int                   // number of pieces of bulk data that may still be sent before Poll continues
	sameUser     bool                  // whether the peer's process belongs to the same user
	remote       string                // text form of the peer's process, and of its user if different
	chunks       map[uint32]*poolChunk // chunks of the peer's pool
	wants        []uint32              // chunks requested from the peer and not answered yet, in order
	peerGeometry ring.Geometry         // geometry of the peer's segment, which has not arrived yet
	version      uint16                // layout version of both segments
	mem          struct{ own, peer, ownArea, peerArea []byte }
	staged       []bulkPiece // used only by the goroutine that sends
	// shown holds, by ring, the pieces in the area that the peer has not read yet.
	shown  [carrier.Lanes][]carrier.View
	closed bool
}

// A bulkPiece is bulk data that must be copied to the memory reserved for it by ring.PutLater.
type bulkPiece struct {
	v         carrier.View
	spot      ring.Spot
	withdrawn bool // whether the memory of v was revoked
}

const (
	maxMessages = 16 // maximum number of messages read from a peer in a row
	maxPieces   = 2  // maximum number of pieces of bulk data read in a row, or sent in a row
	// maxCopied is the maximum number of bytes copied in a row. It is limited so that they are
	// handled while still in the CPU caches.
	maxCopied = 256 << 10
	pieceSize = 64 << 10
	page      = 4 << 10 // smallest page size of any supported system
)

// newPeerLocked creates a peer for the socket fd and adds the peer to the context. fd is -1 if
// there is no socket yet. The endpoint's lock must be held.
func (c *contextCarrier) newPeerLocked(fd int) *peer {
	p := &peer{c: c, fd: fd, bell: -1, peerBell: -1, pidfd: -1, segment: -1, area: -1}
	c.peers[p] = struct{}{}
	return p
}

// watchLocked adds p's descriptors to the poller. The endpoint's lock must be held.
func (p *peer) watchLocked() (err error) {
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

// unwatch removes p's descriptors from the poller. Only the goroutine that polls the context, or
// the one that has just created p, may call unwatch.
func (p *peer) unwatch() {
	for i, fd := range []int{p.fd, p.bell, p.pidfd} {
		if p.added[i] {
			p.c.poller.Remove(fd, p.ids[i])
		}
	}
	p.added = [3]bool{}
}

// cutLocked marks p as dead, so that Poll closes it. Unless bye is empty, cutLocked sends bye to
// the peer. It does nothing if p is already dead. The endpoint's lock must be held.
func (p *peer) cutLocked(bye frame.Bye) {
	if p.dead.Swap(true) {
		return
	}
	if words := bye.Words(); words != nil && p.fd >= 0 {
		_ = sendPacket(p.fd, kindBye, words)
	}
	c := p.c
	c.halfOpen = slices.DeleteFunc(c.halfOpen, func(other *peer) bool { return other == p })
	c.closing = append(c.closing, p)
	c.pollSoonLocked()
}

// closeLocked closes p's descriptors and unmaps its memory. It must not be called while a goroutine
// is sending to p. Only the goroutine that polls the context may call closeLocked. The endpoint's
// lock must be held.
func (p *peer) closeLocked() {
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
	p.unmapAreaLocked()
	for _, ch := range p.chunks {
		ch.unmapIfUnusedLocked()
	}
}

// unmapAreaLocked unmaps this side's area if p is closed and no goroutine is writing to the area.
// User code writes bodies to the area without holding the lock and may take any length of time. The
// endpoint's lock must be held.
func (p *peer) unmapAreaLocked() {
	if p.closed && p.filling == 0 {
		unmap(&p.mem.ownArea)
	}
}

// isSendingLocked reports whether a goroutine is in flushLocked, which releases the lock while it
// copies bulk data. The endpoint's lock must be held.
func (p *peer) isSendingLocked() bool { return p.writing }

// closeReleasedLocked closes p if the carrier has been released and no goroutine is sending to p.
// The endpoint's lock must be held.
func (p *peer) closeReleasedLocked() {
	if p.c.released && !p.isSendingLocked() {
		p.closeLocked()
	}
}

// fail acquires the endpoint's lock and ends the session with err. Only the goroutine that polls
// the context may call fail.
func (p *peer) fail(err error) {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	p.failLocked(err)
}

// Cut implements na.Cutter.
func (p *peer) Cut(err error) { p.fail(err) }

// failLocked ends the session, or closes the half-open connection, with err. The endpoint's lock
// must be held.
func (p *peer) failLocked(err error) {
	switch {
	case p.dead.Load():
	case p.link == nil:
		p.cutLocked(frame.ByeOf(err))
	default:
		p.link.Fail(translateError(err))
	}
}

// bellFD and processFD are the carrier.Pollables for a peer's eventfd and pidfd.
type (
	bellFD    peer
	processFD peer
)

// Ready implements carrier.Pollable. It handles the peer's writing to the bell, which means that
// the peer has written messages or freed room.
func (b *bellFD) Ready(_, _ bool) {
	p := (*peer)(b)
	p.c.makeHot(p)
	p.read()
}

// Cut implements na.Cutter.
func (b *bellFD) Cut(err error) { (*peer)(b).fail(err) }

// Cut implements na.Cutter.
func (f *processFD) Cut(err error) { (*peer)(f).fail(err) }

// Ready implements carrier.Pollable. It handles the exit of the peer's process, after handling the
// messages that the process had sent.
func (f *processFD) Ready(_, _ bool) {
	p := (*peer)(f)
	p.drain()
	p.fail(codes.WithText(codes.ErrPeerLost, "the peer's process has exited"))
}

// drain handles all messages that the peer has sent.
func (p *peer) drain() {
	for p.read() {
	}
}

// read handles messages that the peer has sent, up to the limits maxMessages, maxPieces and
// maxCopied. If sending was waiting for room, read resumes it. came reports whether there were any
// messages. Only the goroutine that polls the context may call read.
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
		if ok, err = p.nextMessageLocked(ring.Messages); !ok {
			break
		}
	}
	for ok := true; ok && err == nil && m < maxPieces && p.c.copied < maxCopied; m++ {
		if ok, err = p.nextMessageLocked(ring.Bulk); !ok {
			break
		}
	}
	if !p.dead.Load() {
		p.endReadLocked(n, m, err)
	}
	return n+m > 0
}

// endReadLocked completes a read of n messages and m pieces of bulk data. If err is nil, it reports
// them to the peer as read. Otherwise it ends the session with err. The endpoint's lock must be
// held.
func (p *peer) endReadLocked(n, m int, err error) {
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
		p.flushLocked()
	}
}

// report publishes to the peer the number of messages read. wake reports whether the peer is
// sleeping while it waits for room, so that it must be woken.
func (p *peer) report() (wake bool, err error) {
	defer memfault.Off(memfault.On(), &err)
	if raceflag.Enabled {
		raceOrder.Add(1)
	}
	return p.end.Report(), nil
}

// nextMessageLocked handles the next message of ring r. ok reports whether there was a message and
// the session is still open. The endpoint's lock must be held. nextMessageLocked releases the lock
// while it copies a large body.
func (p *peer) nextMessageLocked(r int) (ok bool, err error) {
	t := &p.c.m
	ok, needs, err := p.takeMessage(r, t)
	if needs {
		if err = p.fetchAreaLocked(); err == errStarved {
			p.pauseForDescriptorsLocked()
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

// takeMessage reads the next message of ring r into t, and ok reports whether there was one. needs
// reports whether the message was not read because it uses the peer's area, which is not mapped.
func (p *peer) takeMessage(r int, t *ring.Taken) (ok, needs bool, err error) {
	defer memfault.Off(memfault.On(), &err)
	ok, needs, err = p.end.Take(r, t, p.buf)
	if raceflag.Enabled {
		raceOrder.Load()
	}
	return ok, needs, err
}

// deliver passes the message t to the session.
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
	if h.Kind.IsSkipped() { // a kind defined by a later release; its payload is not read
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

// placeBlock handles a frame whose body is in the peer's area, by copying the body to the memory
// that the session provides.
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

// copyUnlocked is the size in bytes above which a body is copied without holding the lock.
const copyUnlocked = 16 << 10

// placeBody copies a body to the memory that the session provides for it.
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

// copyUnlocked copies body to v. The caller must hold the endpoint's lock. copyUnlocked releases
// the lock during the copy and reacquires it before returning.
func (p *peer) copyUnlocked(v carrier.View, body []byte) {
	p.c.e.Pause()
	defer p.c.e.Lock()
	v.CopyIn(0, body)
}
