package na

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An outboundBulk is bulk data being sent: the data of a put started here, of a get started by the
// peer, or of a message body. It is either waiting for its turn in its flow, or the carrier is
// sending its last pieces.
//
// A put starts with a PUT frame, and completes when the peer's DONE frame arrives. The data of a
// get is followed by a DONE frame, unless the carrier is Exact and all bytes were sent. A message
// body starts with a BODY frame and is followed by its message. The outboundBulk is freed when its
// last piece has been sent.
type outboundBulk struct {
	op     *Op // the local put, or the message with the body; nil if there is none or it has completed
	serve  bool
	mem    *Mem
	bytes  []byte // the body, instead of mem
	id     uint64
	off    int64 // offset in mem
	n, at  int64
	flow   carrier.Lane
	queued bool // waiting for its turn
	views  int  // number of pieces that the carrier has not yet reported as sent
	code   Code
	dead   bool // set if no more pieces are to be sent
}

// mayBegin reports whether a put or get is queued and may be started now.
func (l *session) mayBegin() bool {
	return l.queuedMoves.n > 0 && l.inFlight.n < maxInFlight && l.state == stateUp
}

// beginMoves starts queued gets and puts until maxInFlight of them are in flight.
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

// serveGet starts serving a get requested by the peer.
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

// queueSource appends s to the queue of its flow.
func (l *session) queueSource(s *outboundBulk) {
	s.queued = true
	l.flows[s.flow].queueOf(s).push(s)
	l.markPending()
}

// sendPiece writes a piece of up to most bytes to w. The piece belongs to the first outboundBulk
// in the queue of flow f.
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
// completely, or when no more of it will be sent. If the memory was withdrawn in the middle of a
// piece, a carrier over a byte stream has filled the rest with zeros; v.code then makes the peer
// discard the piece. The caller must hold e.mu.
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
	if s == nil { // The carrier violated the contract by passing a received piece. This is harmless here.
		return
	}
	s.views--
	if l.state == stateDown {
		return
	}
	if s.serve && v.code == OK {
		s.mem.countServed(l, v.n)
	}
	l.noteIdleSign() // the peer is receiving bytes, although a PING from this side may still be queued behind them
	if s.code == OK {
		s.code = v.code
	}
	l.settleSource(s)
}

// Faulted implements carrier.Session. The carrier calls it when it cannot read the memory of a
// view, before it sends anything in its place. Faulted completes the operation immediately, so that
// the peer's response to those bytes cannot complete it first. The caller must hold e.mu.
func (l *session) Faulted(v carrier.View) {
	if s := v.(*view).source; s != nil && s.op != nil {
		l.failMemory(s.op)
	}
}

// failMemory fails an operation of this process whose local memory could not be read or written.
func (l *session) failMemory(o *Op) {
	l.e.cancelOpLocked(o, WithText(ErrFault, fmt.Sprintf(
		"memory fault in the local memory between bytes %d and %d", o.x.loff, o.x.loff+o.x.n)))
}

// dropSource stops s. The carrier still finishes the pieces that it holds.
func (l *session) dropSource(s *outboundBulk) {
	s.dead, s.op = true, nil
	if !s.queued {
		return // freed by Sent for its last piece
	}
	q := l.flows[s.flow].queueOf(s)
	if i := slices.Index(q.all(), s); i >= 0 {
		q.remove(i)
	}
	s.queued = false
	l.settleSource(s)
}

// settleSource frees s and completes its operation, unless s is waiting for its turn or the
// carrier still holds a piece of it.
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

// endSources drops all entries of q, the queue of a flow, when the session ends.
func endSources(q *fifo[*outboundBulk]) {
	for _, s := range q.all() {
		s.dead, s.op = true, nil
	}
	*q = fifo[*outboundBulk]{}
}
