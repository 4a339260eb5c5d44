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

// flushLocked sends the session's frames until none remain, the rings are full, or it has sent
// maxPieces pieces of bulk data. In the last case, Poll continues with the bulk data, and until then
// flushLocked sends no more of it. Thus a message waits for few pieces at both sides, because the
// context reads what has arrived between two calls of Poll. The endpoint's lock must be held.
// flushLocked releases the lock while it copies bulk data.
func (p *peer) flushLocked() {
	if p.writing || p.blocked || !p.up || p.dead.Load() {
		return
	}
	// All frames have already been written through Stage.
	if p.hot.Load() && p.err == nil && !p.end.Waits() && !p.link.Sends() {
		p.publishLocked()
		return
	}
	p.writing = true
	if !p.inResume {
		p.quota = maxPieces
	}
	waited := false
	for {
		before := p.end.Written()
		more := p.pullFramesLocked(ring.Messages)
		more = p.pullFramesLocked(ring.Bulk) || more
		some := p.end.Written() != before
		staged := len(p.staged)
		p.copyBodiesLocked()
		p.quota -= staged
		p.publishLocked()
		if p.dead.Load() || p.err != nil {
			break
		}
		if !more && staged == 0 { // while this goroutine was copying, others may have added frames
			p.end.Go()
			break
		}
		if some {
			waited = false
			continue
		}
		if p.quota == 0 {
			p.sendSoonLocked()
			break
		}
		if waited {
			p.blocked = true
			p.link.Waits()
			break
		}
		// Announce that this side is waiting, then check for room once more. The peer frees room
		// and then checks for a waiter. It may have done both between the first check and the
		// announcement, in which case it would never ring the bell.
		p.end.Wait()
		waited = true
	}
	p.writing = false
	if p.c.released {
		p.closeReleasedLocked()
		return
	}
	if p.err != nil {
		p.failLocked(p.err)
	}
	if !p.hot.Load() && !p.dead.Load() {
		p.c.queueHotLocked(p)
	}
}

// sendSoonLocked makes the next Poll continue sending to p. The endpoint's lock must be held.
func (p *peer) sendSoonLocked() {
	if p.inResume {
		return
	}
	p.inResume = true
	p.c.resume = append(p.c.resume, p)
	p.c.pollSoonLocked()
}

// pullFramesLocked writes as many of the session's frames to ring r as fit. more reports whether
// any frames remain. The endpoint's lock must be held.
func (p *peer) pullFramesLocked(r int) (more bool) {
	if p.dead.Load() || p.err != nil {
		return false
	}
	if r == ring.Messages {
		return p.link.Pull(carrier.Messages, (*messageFlow)(p))
	}
	return p.link.Pull(carrier.Bulk, (*bulkFlow)(p))
}

// copyStaged copies the staged bulk data to the rings. The endpoint's lock must be held. copyStaged
// releases the lock while copying, which is safe because the peer does not read a message before it
// is published. A cancel waits for at most one copy.
func (p *peer) copyStaged() {
	p.c.e.Pause()
	defer p.c.e.Lock()
	for i := range p.staged {
		s := &p.staged[i]
		s.withdrawn = !s.v.CopyOut(s.spot.Body)
	}
}

// copyBodiesLocked copies the staged bulk data to the rings and reports the pieces as sent. The
// endpoint's lock must be held. copyBodiesLocked releases the lock while copying.
func (p *peer) copyBodiesLocked() {
	if len(p.staged) == 0 {
		return
	}
	p.copyStaged()
	for i := range p.staged {
		s := &p.staged[i]
		if !p.dead.Load() {
			if s.withdrawn { // the message cannot be removed, because others follow it in the ring
				p.end.Void(s.spot)
			}
			p.link.Sent(s.v)
		}
		*s = bulkPiece{}
	}
	p.staged = p.staged[:0]
}

// publishLocked makes the written messages visible to the peer and wakes the peer if it is
// sleeping. It does nothing until the area has been sent, because messages may use it. The
// endpoint's lock must be held.
func (p *peer) publishLocked() {
	if p.dead.Load() || p.area >= 0 {
		return
	}
	if p.publishRings() {
		ringBell(p.peerBell)
	}
}

// raceOrder is modified whenever messages are published, and read whenever one is taken, but only
// if the race detector is enabled. It shows the race detector that memory mapped twice in this
// process is written before it is read.
var raceOrder atomic.Int64

// publishRings publishes the written messages. wake reports whether the peer is sleeping and must
// be woken.
func (p *peer) publishRings() (wake bool) {
	defer memfault.Off(memfault.On(), &p.err)
	if raceflag.Enabled {
		raceOrder.Add(1)
	}
	return p.end.Publish()
}

// messageFlow and bulkFlow implement carrier.Writer for a peer's two rings.
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

// room returns the sizes of the largest frame and the largest piece for which ring r has room.
func (p *peer) room(r int) (whole, piece int) {
	whole, slot, less := p.end.Room(r)
	if less { // avoid unnecessary updates, which read a cache line that the peer writes
		p.update()
		whole, slot, _ = p.end.Room(r)
	}
	if p.err != nil {
		return -1, 0
	}
	if slot && len(p.staged) < p.quota {
		piece = pieceSize
	}
	return min(whole, frame.MaxWhole), piece
}

// update frees the room used by messages that the peer has taken, and reports the pieces of bulk
// data in those messages as sent.
func (p *peer) update() {
	p.readTaken()
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

// readTaken updates p.end with the number of messages that the peer has taken. It sets p.err if the
// peer's memory is invalid or cannot be read.
func (p *peer) readTaken() {
	defer memfault.Off(memfault.On(), &p.err)
	if err := p.end.Update(); err != nil {
		p.err = err
	}
}

// descriptorOf returns the ring.Message for a frame with header h.
func descriptorOf(h *frame.Header) ring.Message {
	return ring.Message{Kind: uint8(h.Kind), Flags: h.Flags, Op: h.Op, Tag: h.Tag, Credit: h.Credit}
}

// put writes a frame, with a payload that may be empty, to ring r.
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
	case !p.end.NeedsArea(r, len(payload)) || p.needAreaLocked():
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

// putPiece writes a frame of bulk data to ring r. It only reserves memory for the data, which
// copyBodiesLocked copies later. Data that is already in the area is not copied.
func (p *peer) putPiece(r int, h *frame.Header, v carrier.View) {
	m := descriptorOf(h)
	if m.Len = v.Len(); p.err != nil {
		return
	}
	if at, ok := v.Shelved(); ok && v.Borrow() {
		v.Return() // the peer reads it in the area
		p.show(r, &m, ring.Block{At: int(at), Len: m.Len})
		p.shown[r] = append(p.shown[r], v)
		return
	}
	if !p.end.NeedsArea(ring.Bulk, m.Len) || p.needAreaLocked() {
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

// needAreaLocked creates this side's area and sends it to the peer. If that fails, it returns
// false, and the session ends after the current pull. The endpoint's lock must be held.
func (p *peer) needAreaLocked() bool {
	if err := p.makeArea(); err != nil {
		p.err = err
	} else if p.sendBy == 0 { // otherwise Poll sends it after the segment
		p.err = p.sendMemoryLocked()
	}
	return p.err == nil
}

// A shelf implements carrier.Shelf. It provides room in the area that this side writes, to which
// bodies and stream data are written before their messages are sent.
type shelf peer

// Reserve implements carrier.Shelf.
func (s *shelf) Reserve(n int) (room []byte, at int64) {
	p := (*peer)(s)
	if !p.end.HasArea() && !p.needAreaLocked() { // on failure the next flush ends the session
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

// touchMemory makes the system allocate the pages of b, so that user code that writes to b does not
// fault. It returns an error if no memory is available.
func touchMemory(b []byte) (err error) {
	defer memfault.Off(memfault.On(), &err)
	for at := 0; at < len(b); at += page {
		b[at] = 0
	}
	return nil
}

// reserveBody reserves room in the area for a body of n bytes. It first frees the room of bodies
// that the peer has read.
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
	(*peer)(s).unmapAreaLocked()
}

// Drop implements carrier.Shelf.
func (s *shelf) Drop(at int64, n int) {
	(*peer)(s).end.Drop(ring.Block{At: int(at), Len: n})
}
