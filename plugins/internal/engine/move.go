package engine

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A move is bulk data being sent: our put, or a peer's get that we serve. It waits in Link.moves for its turn, or its
// last pieces are with the carrier; then settle ends it.
type move struct {
	op     *op // our put, while it has not ended
	serve  bool
	mem    *na.Mem
	id     uint64
	tail   frame.Tail // of a put
	off    int64      // in mem
	n, at  int64
	lane   bool // on the lane
	queued bool // waits for its turn
	flight int  // pieces that the carrier has not reported
	code   na.Code
	dead   bool // nobody wants it any more
}

// dropMove has a move send nothing more; what is with the carrier already goes on.
func (l *Link) dropMove(m *move) {
	m.dead, m.op = true, nil
	if !m.queued {
		return // its last piece ends it
	}
	q := l.movesOf(m)
	if i := slices.Index(q.all(), m); i >= 0 {
		q.remove(i)
	}
	m.queued = false
	l.settleMove(m)
}

// movesOf returns the queue in which m waits for its turn.
func (l *Link) movesOf(m *move) *fifo[*move] {
	if m.lane {
		return &l.lane.moves
	}
	return &l.moves
}

// endMoves drops all moves of a queue: the session is over.
func endMoves(q *fifo[*move]) {
	for _, m := range q.all() {
		m.dead, m.op = true, nil
	}
	*q = fifo[*move]{}
}

// An input is a peer's put that is arriving.
type input struct {
	id    uint64
	mem   *na.Mem
	got   int64
	total int64
	code  na.Code
}

// maxSpareMoves bounds the spare moves and inputs of an endpoint.
const maxSpareMoves = 1024

func (e *Endpoint) newInput() *input {
	if n := len(e.freeInputs); n > 0 {
		in := e.freeInputs[n-1]
		e.freeInputs = e.freeInputs[:n-1]
		return in
	}
	return &input{}
}

// freeInput takes back an input that has arrived. One that was canceled may still be known to a carrier.
func (e *Endpoint) freeInput(in *input) {
	*in = input{}
	if len(e.freeInputs) < maxSpareMoves {
		e.freeInputs = append(e.freeInputs, in)
	}
}

// idTable gives operations their wire identity: slot and generation, so that a late answer meets a dead generation.
type idTable struct {
	slots []idSlot
	free  []uint32
}

type idSlot struct {
	o   *op
	gen uint32
}

func (t *idTable) add(o *op) uint64 {
	var slot uint32
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		slot = uint32(len(t.slots))
		t.slots = append(t.slots, idSlot{gen: 1})
	}
	t.slots[slot].o = o
	return uint64(t.slots[slot].gen)<<32 | uint64(slot)
}

func (t *idTable) get(id uint64) *op {
	slot := uint32(id)
	if uint64(slot) >= uint64(len(t.slots)) || t.slots[slot].gen != uint32(id>>32) {
		return nil
	}
	return t.slots[slot].o
}

// remove ends the identity. A slot whose generations are used up is not used again.
func (t *idTable) remove(id uint64) {
	if t.get(id) == nil {
		return
	}
	s := &t.slots[uint32(id)]
	s.o = nil
	if s.gen++; s.gen != 0 {
		t.free = append(t.free, uint32(id))
	}
}

// beginMoves starts gets and puts that wait, as many as may be under way.
func (l *Link) beginMoves() {
	for l.moving.n > 0 && l.flying.n < maxFlying {
		o := l.moving.pop()
		o.id = l.e.flying.add(o)
		l.flying.push(o)
		tail := frame.Tail{Token: o.key.Token, Offset: o.roff, Length: o.n}
		if o.kind == kindGet {
			l.control(frame.Header{Kind: frame.Get, Op: o.id, Tail: tail})
			continue
		}
		m := l.e.newMove()
		m.op, m.mem, m.id, m.tail, m.off, m.n = o, o.mem, o.id, tail, o.loff, o.n
		m.lane = l.useLane(o.n)
		o.move, o.lane = m, m.lane
		l.queueMove(m)
	}
}

func (l *Link) queueMove(m *move) {
	m.queued = true
	l.movesOf(m).push(m)
	l.kick()
}

// serve begins to answer a peer's get.
func (l *Link) serve(id uint64, mem *na.Mem, off, n int64) {
	l.e.reached++
	m := l.e.newMove()
	m.serve, m.mem, m.id, m.off, m.n, m.lane = true, mem, id, off, n, l.useLane(n)
	if l.served == nil {
		l.served = map[uint64]*move{}
	}
	l.served[id] = m
	l.queueMove(m)
}

func (e *Endpoint) newMove() *move {
	if n := len(e.freeMoves); n > 0 {
		m := e.freeMoves[n-1]
		e.freeMoves = e.freeMoves[:n-1]
		return m
	}
	return &move{}
}

// nextChunk yields a piece of the next move in turn.
func (l *Link) nextChunk(b []byte, q *fifo[*move]) ([]byte, Chunk, bool) {
	for q.len() > 0 {
		m := q.pop()
		m.queued = false
		if m.dead || m.code != na.OK {
			l.settleMove(m)
			continue
		}
		n := min(m.n-m.at, ChunkSize)
		h := frame.Header{Kind: frame.GetData, Op: m.id, Tag: uint64(m.at)}
		l.fill(&h, m.lane)
		c := Chunk{View{mem: m.mem, off: m.off + m.at, n: n, move: m}}
		if !m.serve {
			h.Kind, h.Tail = frame.Put, m.tail
			c.t = m.op.t
			m.op.at += n
		}
		b = h.AppendFront(b, int(n))
		if m.at += n; m.at < m.n {
			l.queueMove(m)
		}
		if n == 0 { // a put of nothing: the frame is all there is
			l.settleMove(m)
			return b, Chunk{}, true
		}
		m.flight++
		return b, c, true
	}
	return b, Chunk{}, false
}

// Sent hears that the payload of c is on its way, complete. A view whose memory was gone in between was filled with
// zeroes: the peer must not take them for data. Locked.
func (l *Link) Sent(c *Chunk) {
	m := c.move
	if c.code == na.ErrFault {
		l.Faulted(c)
	}
	m.flight--
	if l.state == linkDown {
		return
	}
	l.heard = true // the peer takes bytes: behind so much of them it may not have seen our Ping yet
	if m.code == na.OK {
		m.code = c.code
	}
	l.settleMove(m)
}

// Faulted hears that the memory of c could not be read, before anything is sent in its place: the operation ends now, so
// that the peer's word about what it got cannot come first. Locked.
func (l *Link) Faulted(c *Chunk) {
	if o := c.move.op; o != nil {
		l.faulted(o)
	}
}

// faulted ends an operation of this process whose local memory could not be read or written.
func (l *Link) faulted(o *op) {
	l.e.cancel(o, na.WithText(na.ErrFault, fmt.Sprintf(
		"the local memory could not be read or written, somewhere from byte %d to %d: memory fault", o.loff, o.loff+o.n)))
}

// settleMove ends m when it neither waits for its turn nor is with the carrier.
func (l *Link) settleMove(m *move) {
	if m.queued || m.flight > 0 {
		return
	}
	if m.serve {
		delete(l.served, m.id)
		if !m.dead {
			l.controlMove(m.lane, frame.Header{Kind: frame.GetDone, Op: m.id, Tag: uint64(m.code)})
		}
	} else if m.op != nil {
		m.op.move = nil
	}
	*m = move{}
	if len(l.e.freeMoves) < maxSpareMoves {
		l.e.freeMoves = append(l.e.freeMoves, m)
	}
}
