package sm

import (
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// flush sends what the session has, until there is nothing more or no room, or until the caller has sent enough for others. Locked at its
// beginning and its end, not while it copies bulk data.
func (p *peer) flush() {
	if p.writing || p.blocked || !p.up || p.dead.Load() {
		return
	}
	if p.hot.Load() && p.err == nil && !p.end.Waits() && !p.link.Sends() { // what was staged is all
		p.publish()
		return
	}
	p.writing = true
	waited := false
	for pieces := 0; ; {
		before := p.end.Written()
		more := p.pullFrames(ring.Messages) // first: a small message waits for one round of pieces at most
		more = p.pullFrames(ring.Bulk) || more
		some := p.end.Written() != before
		staged := len(p.staged)
		pieces += staged
		p.copyBodies()
		p.publish()
		if p.dead.Load() || p.err != nil {
			break
		}
		if !more && staged == 0 { // else others may have left something for this goroutine while it copied
			p.end.Go()
			break
		}
		if some {
			if waited = false; pieces >= maxTurn { // this may be a goroutine that has one message to send, and others keep coming
				p.sendSoon()
				break
			}
			continue
		}
		if waited {
			p.blocked = true
			p.link.Waits()
			break
		}
		// Say that we wait, then look once more: the peer, which frees room and then looks whether anybody waits for it, may have done
		// both between our look and our word, and would never ring.
		p.end.Wait()
		waited = true
	}
	p.writing = false
	if p.c.released {
		p.closeReleased()
		return
	}
	if p.err != nil {
		p.failLocked(p.err)
	}
	if !p.hot.Load() && !p.dead.Load() {
		p.c.warmUp(p)
	}
}

// sendSoon has Poll go on sending.
func (p *peer) sendSoon() {
	if !p.resumes {
		p.resumes = true
		p.c.resume = append(p.c.resume, p)
	}
	p.c.pollSoon()
}

// pullFrames takes what there is for a ring, as far as there is room.
func (p *peer) pullFrames(r int) (more bool) {
	if p.dead.Load() || p.err != nil {
		return false
	}
	if r == ring.Messages {
		return p.link.Pull(carrier.Messages, (*messageFlow)(p))
	}
	return p.link.Pull(carrier.Bulk, (*bulkFlow)(p))
}

// copyStaged copies without the lock: the places are ours until they are published, and a cancel waits for one copy, not for all that is
// staged. Locked at its beginning and its end.
func (p *peer) copyStaged() {
	p.c.e.Pause()
	defer p.c.e.Lock()
	for i := range p.staged {
		s := &p.staged[i]
		s.gone = !s.v.CopyOut(s.spot.Body)
	}
}

// copyBodies copies the bodies of pieces into their places.
func (p *peer) copyBodies() {
	if len(p.staged) == 0 {
		return
	}
	p.copyStaged()
	for i := range p.staged {
		s := &p.staged[i]
		if !p.dead.Load() {
			if s.gone { // the place cannot be given back: what comes after it is in the ring
				p.end.Void(s.spot)
			}
			p.link.Sent(s.v)
		}
		*s = bulkPiece{}
	}
	p.staged = p.staged[:0]
}

// publish lets the peer see what was put into the rings, and wakes it if it sleeps.
// What may stand in our area waits until the peer has that.
func (p *peer) publish() {
	if p.dead.Load() || p.area >= 0 {
		return
	}
	if p.ringBellIfAsleep() {
		ringBell(p.peerBell)
	}
}

// passed says what the race detector does not know of memory that is mapped twice: what is read was written before.
var passed atomic.Int64

func (p *peer) ringBellIfAsleep() (wake bool) {
	defer memfault.Off(memfault.On(), &p.err)
	if raceflag.Enabled {
		passed.Add(1)
	}
	return p.end.Publish()
}

// messageFlow and bulkFlow are the two flows of a peer, as package na sees them.
type (
	messageFlow peer
	bulkFlow    peer
)

var (
	_ carrier.Writer = (*messageFlow)(nil)
	_ carrier.Writer = (*bulkFlow)(nil)
)

// Room implements carrier.Writer.
func (w *messageFlow) Room() (whole, piece int) { return (*peer)(w).room(ring.Messages) }

// Frame implements carrier.Writer.
func (w *messageFlow) Frame(h *frame.Header, payload []byte) {
	(*peer)(w).put(ring.Messages, h, payload)
}

// Piece implements carrier.Writer.
func (w *messageFlow) Piece(h *frame.Header, v carrier.View) {
	(*peer)(w).putPiece(ring.Messages, h, v)
}

// Room implements carrier.Writer.
func (w *bulkFlow) Room() (whole, piece int) { return (*peer)(w).room(ring.Bulk) }

// Frame implements carrier.Writer.
func (w *bulkFlow) Frame(h *frame.Header, payload []byte) { (*peer)(w).put(ring.Bulk, h, payload) }

// Piece implements carrier.Writer.
func (w *bulkFlow) Piece(h *frame.Header, v carrier.View) { (*peer)(w).putPiece(ring.Bulk, h, v) }

func (p *peer) room(r int) (whole, piece int) {
	whole, slot, less := p.end.Room(r)
	if less { // not before: the peer's word is in a cache line that its core writes
		p.update()
		whole, slot, _ = p.end.Room(r)
	}
	if p.err != nil {
		return -1, 0
	}
	if slot && len(p.staged) < maxPieces {
		piece = pieceSize
	}
	return min(whole, frame.MaxWhole), piece
}

// update takes in what the peer has taken.
func (p *peer) update() {
	p.lookTaken()
	for r := range p.shown {
		n := p.end.Shown(r)
		if n == 0 || p.dead.Load() {
			continue
		}
		for _, v := range p.shown[r][:n] {
			p.link.Sent(v)
		}
		p.shown[r] = slices.Delete(p.shown[r], 0, n)
	}
}

func (p *peer) lookTaken() {
	defer memfault.Off(memfault.On(), &p.err)
	if err := p.end.Update(); err != nil {
		p.err = err
	}
}

// descriptorOf is the descriptor of a frame.
func descriptorOf(h *frame.Header) ring.Message {
	return ring.Message{Kind: uint8(h.Kind), Flags: h.Flags, Op: h.Op, Tag: h.Tag, Credit: h.Credit}
}

// put writes a frame into a ring.
func (p *peer) put(r int, h *frame.Header, payload []byte) {
	var tail [frame.TailSize]byte
	if n := h.Size() - frame.HeaderSize; n > 0 {
		payload = h.Tail.Append(tail[:0])
	}
	m := descriptorOf(h)
	switch {
	case p.err != nil:
	case h.Kind == frame.Body && h.Tail.Length > 0:
		m.Tag = uint64(h.Tail.Offset)
		p.putBlock(&m, ring.Block{At: int(h.Tail.Offset), Len: int(h.Tail.Length)})
	case !p.end.NeedsArea(r, len(payload)) || p.needArea():
		p.write(r, &m, payload)
	}
}

func (p *peer) write(r int, m *ring.Message, payload []byte) {
	defer memfault.Off(memfault.On(), &p.err)
	p.end.Put(r, m, payload)
}

func (p *peer) putBlock(m *ring.Message, b ring.Block) {
	defer memfault.Off(memfault.On(), &p.err)
	p.end.PutBlock(m, b)
}

// putPiece takes the place of a piece in a ring. It is filled after the pull.
func (p *peer) putPiece(r int, h *frame.Header, v carrier.View) {
	m := descriptorOf(h)
	if m.Len = v.Len(); p.err != nil {
		return
	}
	if at, ok := v.Shelved(); ok && v.Borrow() {
		v.Return() // the peer reads it where it is
		p.show(r, &m, ring.Block{At: int(at), Len: m.Len})
		p.shown[r] = append(p.shown[r], v)
		return
	}
	if !p.end.NeedsArea(ring.Bulk, m.Len) || p.needArea() {
		p.stage(r, &m, v)
	}
}

func (p *peer) show(r int, m *ring.Message, b ring.Block) {
	defer memfault.Off(memfault.On(), &p.err)
	p.end.ShowBlock(r, m, b)
}

func (p *peer) stage(r int, m *ring.Message, v carrier.View) {
	defer memfault.Off(memfault.On(), &p.err)
	p.staged = append(p.staged, bulkPiece{v: v, spot: p.end.PutLater(r, m)})
}

// needArea makes the area and sends it to the peer. It returns false if that fails; the session ends after the current pull. Locked.
func (p *peer) needArea() bool {
	if err := p.makeArea(); err != nil {
		p.err = err
	} else if p.sendBy == 0 { // else Poll sends it, after the segment
		p.err = p.sendMemory()
	}
	return p.err == nil
}

// shelf is the area of a peer as the room for bodies that wait for their messages, and for bytes of streams.
type shelf peer

// Reserve implements carrier.Shelf.
func (s *shelf) Reserve(n int) (room []byte, at int64) {
	p := (*peer)(s)
	if !p.end.HasArea() && !p.needArea() { // what is sent next ends the session
		return nil, 0
	}
	b, ok := p.reserveBody(n)
	if !ok {
		return nil, 0
	}
	room = p.end.Body(b)
	if touchMemory(room[min(max(p.touched-b.At, 0), n):]) != nil {
		p.end.Drop(b)
		return nil, 0
	}
	p.touched = max(p.touched, b.At+n)
	return room, int64(b.At)
}

// touchMemory has the system find memory for b, or reports that there is none: nobody who writes there expects a fault.
func touchMemory(b []byte) (err error) {
	defer memfault.Off(memfault.On(), &err)
	for at := 0; at < len(b); at += page {
		b[at] = 0
	}
	return nil
}

// reserveBody finds room for a body, among what the peer has read since, too.
func (p *peer) reserveBody(n int) (b ring.Block, ok bool) {
	if p.update(); p.err == nil {
		b, ok = p.end.Reserve(n)
	}
	return b, ok
}

// Fill implements carrier.Shelf.
func (s *shelf) Fill() { s.filling++ }

// Filled implements carrier.Shelf.
func (s *shelf) Filled() {
	s.filling--
	(*peer)(s).unmapArea()
}

// Drop implements carrier.Shelf.
func (s *shelf) Drop(at int64, n int) {
	(*peer)(s).end.Drop(ring.Block{At: int(at), Len: n})
}
