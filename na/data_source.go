package na

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An outboundBulk is bulk data that is being sent: for a put of this side, a get of the peer, or
// the body of a message. It waits in its flow for its turn, or the carrier is sending its last
// pieces.
//
//	own put ─ beginMoves ─► PUT, source ─ DATA… ─► after the last piece it is freed; the peer's DONE ends the put
//	GET of the peer ──────────► source ─ DATA… ─► after the last piece: DONE
//	enqueueSend ──────────► BODY, source ─ DATA… ─► after the last piece the message is sent
type outboundBulk struct {
	op     *Op // the put of this side, or the message with the body; nil if there is none or it has ended
	serve  bool
	mem    *Mem
	bytes  []byte // the body, instead of mem
	id     uint64
	off    int64 // the offset in mem
	n, at  int64
	flow   carrier.Lane
	queued bool // waiting for its turn
	views  int  // pieces that the carrier has not reported as sent
	code   Code
	dead   bool // no more chunks are sent
}

// mayBegin reports whether a put or get that waits may start now.
func (l *session) mayBegin() bool {
	return l.queuedMoves.n > 0 && l.inFlight.n < maxInFlight && l.state == stateUp
}

// beginMoves starts waiting gets and puts, up to maxInFlight.
func (l *session) beginMoves() {
	for l.mayBegin() {
		o := l.queuedMoves.pop()
		o.id = l.e.inFlight.add(o)
		l.inFlight.push(o)
		h := frame.Header{Kind: frame.Get, Op: o.id, Tail: frame.Tail{Token: o.x.key.Token, Offset: o.x.roff, Length: o.x.n}}
		if o.kind == kindGet {
			o.x.sink = l.e.sinks.get()
			*o.x.sink = inboundBulk{op: o, mem: o.x.mem, off: o.x.loff, n: o.x.n}
			if !l.readsDirectly(o) {
				l.queueControl(h)
			}
			continue
		}
		h.Kind, o.x.flow = frame.Put, l.flowFor(o.x.n)
		if o.x.n > 0 {
			s := l.e.sources.get()
			s.op, s.mem, s.id, s.off, s.n, s.flow = o, o.x.mem, o.id, o.x.loff, o.x.n, o.x.flow
			o.x.source = s
			l.queueSource(s)
		}
		l.controlOn(o.x.flow, h)
	}
}

// serveGet starts to answer a peer's get.
func (l *session) serveGet(id uint64, mem *Mem, off, n int64) {
	l.e.reached++
	s := l.e.sources.get()
	s.serve, s.mem, s.id, s.off, s.n, s.flow = true, mem, id, off, n, l.flowFor(n)
	if l.served == nil {
		l.served = map[uint64]*outboundBulk{}
	}
	l.served[id] = s
	l.queueSource(s)
}

// queueSource queues s for its turn in its flow.
func (l *session) queueSource(s *outboundBulk) {
	s.queued = true
	l.flows[s.flow].queueOf(s).push(s)
	l.markPending()
}

// sendPiece sends a piece of at most most bytes of the next source in turn.
func (l *session) sendPiece(f carrier.Lane, w carrier.Writer, most int) {
	s := l.flows[f].next()
	s.queued = false
	if s.dead || s.code != OK {
		l.settleSource(s)
		return
	}
	n := min(s.n-s.at, carrier.PieceSize, int64(most))
	h := &l.e.head
	*h = frame.Header{Kind: frame.Data, Op: s.id, Tag: uint64(s.at)}
	v := view{mem: s.mem, bytes: s.bytes, off: s.off + s.at, n: n, source: s}
	switch {
	case s.serve:
		h.Flags = frame.FlagAnswer
	case s.bytes != nil:
		h.Flags = frame.FlagBody
		v.t = s.op.ticket()
	default:
		v.t = s.op.ticket()
		s.op.x.at += n
	}
	switch s.at += n; {
	case s.at == s.n:
	case s.bytes != nil:
		s.queued = true
		l.flows[f].bodies.unpopFront(s)
	default:
		l.queueSource(s)
	}
	s.views++
	w.Piece(l.completeHeader(f, int(n)), l.e.lendViewLocked(v))
}

// Sent implements carrier.Session. The carrier calls it when the payload of a view has been sent
// completely, or when no more of it will be. If the memory was withdrawn in the middle of a piece,
// a byte stream has sent zeros for the rest; the code in v then tells the peer not to use them. The
// caller holds e.mu.
func (l *session) Sent(of carrier.View) {
	if of.Faulted() {
		l.Faulted(of)
	}
	v, ok := l.e.takeBackLocked(of.(*view))
	if !ok {
		return
	}
	if v.chunk != nil {
		v.chunk.drop()
		v.stream.out.releaseIdleChunk()
		l.noteIdleSign()
		return
	}
	s := v.source
	if s == nil { // a received piece: the carrier breaks the contract, which has no consequence here
		return
	}
	s.views--
	if l.state == stateDown {
		return
	}
	if s.serve && v.code == OK {
		s.mem.countServed(l, v.n)
	}
	l.noteIdleSign() // the peer takes bytes; a PING of this side may still wait behind them
	if s.code == OK {
		s.code = v.code
	}
	l.settleSource(s)
}

// Faulted implements carrier.Session. The carrier calls it when the memory of a view could not be
// read, before it sends anything in its place. It ends the operation at once, so that an answer of
// the peer about these bytes cannot come first. The caller holds e.mu.
func (l *session) Faulted(v carrier.View) {
	if s := v.(*view).source; s != nil && s.op != nil {
		l.failMemory(s.op)
	}
}

// failMemory ends an operation of this process whose local memory could not be read or written.
func (l *session) failMemory(o *Op) {
	l.e.cancelOpLocked(o, WithText(ErrFault, fmt.Sprintf(
		"memory fault in the local memory between bytes %d and %d", o.x.loff, o.x.loff+o.x.n)))
}

// dropSource stops a source. The carrier completes the chunks that it holds.
func (l *session) dropSource(s *outboundBulk) {
	s.dead, s.op = true, nil
	if !s.queued {
		return // Sent of its last piece frees it
	}
	q := l.flows[s.flow].queueOf(s)
	if i := slices.Index(q.all(), s); i >= 0 {
		q.remove(i)
	}
	s.queued = false
	l.settleSource(s)
}

// settleSource ends and frees s, unless waiting for its turn or the carrier has a piece of it.
func (l *session) settleSource(s *outboundBulk) {
	if s.queued || s.views > 0 {
		return
	}
	if s.serve {
		delete(l.served, s.id)
		if !s.dead && (s.code != OK || !l.route.Exact) {
			l.controlOn(s.flow, frame.Header{Kind: frame.Done, Op: s.id, Tag: uint64(s.code)})
		}
	} else if o := s.op; o != nil {
		switch o.x.source = nil; {
		case s.bytes == nil:
		case s.code == OK:
			l.bodySent(o)
		default:
			l.e.cancelOpLocked(o, s.code)
		}
	}
	l.e.sources.put(s)
}

// endSources drops all sources of a flow, when the session ends.
func endSources(q *fifo[*outboundBulk]) {
	for _, s := range q.all() {
		s.dead, s.op = true, nil
	}
	*q = fifo[*outboundBulk]{}
}
