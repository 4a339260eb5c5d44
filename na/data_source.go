package na

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A outboundBulk is bulk data that leaves: our put, a get of the peer that we serve, or the body of a message. It waits in its flow for its turn, or its
// last pieces are with the carrier.
//
//	our put ─ beginMoves ─► PUT, source ─ DATA… ─► the last piece is sent: gone. The peer's DONE ends the put
//	GET of the peer ─────────► source ─ DATA… ─► the last piece is sent: DONE, gone
//	enqueueSend ────► BODY, source ─ DATA… ─► the last piece is sent: the message leaves
type outboundBulk struct {
	op     *Op // our put, or message with a body, while it has not ended
	serve  bool
	mem    *Mem
	bytes  []byte // a body, instead of mem
	id     uint64
	off    int64 // in mem
	n, at  int64
	flow   carrier.Lane
	queued bool // waits for its turn
	views  int  // pieces that the carrier has not reported
	code   Code
	dead   bool // nobody wants it any more
}

// mayBegin reports whether a put or get that waits may begin.
func (l *session) mayBegin() bool {
	return l.queuedMoves.n > 0 && l.inFlight.n < maxInFlight && l.state == stateUp
}

// beginMoves starts gets and puts that wait, as many as may be under way.
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

// serveGet begins to answer a peer's get.
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

// queueSource has s wait for its turn.
func (l *session) queueSource(s *outboundBulk) {
	s.queued = true
	l.flows[s.flow].queueOf(s).push(s)
	l.markPending()
}

// sendPiece sends a piece of the next source in turn, of most bytes.
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
	w.Piece(l.completeHeader(f, int(n)), l.e.lendView(v))
}

// Sent is called when the payload of v is on its way, complete, or when nothing more of it will be. A view whose memory was
// gone in between was filled with zeroes by a stream: the peer must not take them for data. Locked.
func (l *session) Sent(of carrier.View) {
	if of.Faulted() {
		l.Faulted(of)
	}
	v, ok := l.e.takeBack(of.(*view))
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
	if s == nil { // of a piece that arrives: the carrier breaks the contract, and nothing else is harmed
		return
	}
	s.views--
	if l.state == stateDown {
		return
	}
	if s.serve && v.code == OK {
		s.mem.countServed(l, v.n)
	}
	l.noteIdleSign() // the peer takes bytes: behind so much of them it may not have seen our Ping yet
	if s.code == OK {
		s.code = v.code
	}
	l.settleSource(s)
}

// Faulted is called when the memory of v could not be read, before anything is sent in its place: the operation ends now, so
// that the peer's word about what it got cannot come first. Locked.
func (l *session) Faulted(v carrier.View) {
	if s := v.(*view).source; s != nil && s.op != nil {
		l.failMemory(s.op)
	}
}

// failMemory ends an operation of this process whose local memory could not be read or written.
func (l *session) failMemory(o *Op) {
	l.e.cancelOp(o, WithText(ErrFault, fmt.Sprintf(
		"the local memory could not be read or written, somewhere from byte %d to %d: memory fault", o.x.loff, o.x.loff+o.x.n)))
}

// dropSource has a source send nothing more; what is with the carrier already goes on.
func (l *session) dropSource(s *outboundBulk) {
	s.dead, s.op = true, nil
	if !s.queued {
		return // its last piece ends it
	}
	q := l.flows[s.flow].queueOf(s)
	if i := slices.Index(q.all(), s); i >= 0 {
		q.remove(i)
	}
	s.queued = false
	l.settleSource(s)
}

// settleSource ends s when it neither waits for its turn nor is with the carrier.
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
			l.e.cancelOp(o, s.code)
		}
	}
	l.e.sources.put(s)
}

// endSources drops all sources of a flow: the session is over.
func endSources(q *fifo[*outboundBulk]) {
	for _, s := range q.all() {
		s.dead, s.op = true, nil
	}
	*q = fifo[*outboundBulk]{}
}
