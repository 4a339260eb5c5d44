package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A inboundBulk is bulk data that arrives: our get, a put of the peer, or the body of a message.
//
//	our get ─ beginMoves ─► sink ─ DATA… ─► the peer's DONE, or all bytes over an Exact carrier, end the get
//	PUT of the peer ──────► sink ─ DATA… ─► all bytes: DONE
type inboundBulk struct {
	op    *Op // our get, while it has not ended
	id    uint64
	mem   *Mem
	body  *body // instead of mem and op
	off   int64 // in mem
	n     int64
	begun int64 // bytes of which views have been given out
	got   int64 // bytes that were placed
	views int   // outside
	code  Code
	dead  bool // nobody wants it any more
}

// dropSink has a sink take nothing more. It is used again when the carrier has no view of it.
func (e *endpoint) dropSink(s *inboundBulk) {
	s.dead, s.op = true, nil
	if s.views > 0 {
		return
	}
	if b := s.body; b != nil {
		slab.Put(b.slab) // unless an envelope has it
		if b.msg != nil {
			e.arrivings.put(b.msg)
		}
		e.incoming.put(b)
	}
	e.sinks.put(s)
}

// sinkOf returns the sink that a DATA frame is for, or nil.
func (l *session) sinkOf(h *frame.Header) *inboundBulk {
	if h.Flags&frame.FlagBody != 0 {
		return l.arrivals[h.Op]
	}
	if h.Flags&frame.FlagAnswer == 0 {
		return l.sinks[h.Op]
	}
	if o := l.e.inFlight.get(h.Op); o != nil && o.session == l {
		return o.x.sink
	}
	return nil
}

// Place returns where the payload of a piece of bulk data goes, or that of a message which the carrier does not have whole; the
// carrier reads it there and calls Placed when it is complete. Until then it delivers nothing else of that flow if it is a
// message. Everything is checked before: a stream's pieces follow one another without gap or overlap, and no carrier places
// more bytes than were asked for. An error means that the peer broke the protocol: the carrier calls Fail with it. Locked.
func (l *session) Place(h *frame.Header) (carrier.View, error) {
	v, err := l.placeData(h)
	if err != nil {
		return nil, err
	}
	return l.e.lendView(v), nil
}

// placeData is Place, whose View is not lent yet.
func (l *session) placeData(h *frame.Header) (view, error) {
	n := int64(h.Payload())
	v := view{n: n}
	if l.state == stateDown {
		return v, nil
	}
	l.makeBusy()
	l.noteAlive()
	if !l.Up() {
		return v, WithText(ErrProtocol, fmt.Sprintf("%v frame before the HELLO", h.Kind))
	}
	if !h.Kind.Bulk() && !h.Kind.IsSkipped() {
		return l.placeMessage(h)
	}
	if err := l.checkHeader(h); err != nil || h.Kind.IsSkipped() {
		return v, err
	}
	if h.Flags&frame.FlagStream != 0 {
		return l.placeStream(h)
	}
	s := l.sinkOf(h)
	switch {
	case s == nil:
		l.e.stats.LateDropped++ // the rest of what was refused or canceled
		return v, nil
	case !InRange(int64(h.Tag), n, s.n) || s.begun+n > s.n:
		return v, WithText(ErrProtocol, fmt.Sprintf("DATA of %d bytes at %d, after %d, lies outside its operation of %d", n, h.Tag, s.begun, s.n))
	case int64(h.Tag) != s.begun && !l.route.Exact:
		return v, WithText(ErrProtocol, fmt.Sprintf("DATA of %d bytes at %d does not follow the %d bytes before", n, h.Tag, s.begun))
	}
	s.begun += n
	s.views++
	v.sink, v.mem, v.off = s, s.mem, s.off+int64(h.Tag)
	switch {
	case s.op != nil:
		v.t = s.op.ticket()
	case s.body != nil:
		v.bytes = s.body.buf
	}
	return v, nil
}

// Placed is called when the payload that v was for has been read, all of it, and was not damaged. An error is that of Place.
// Locked.
func (l *session) Placed(of carrier.View) error {
	v, ok := l.e.takeBack(of.(*view))
	if !ok {
		return nil
	}
	if v.msg != nil {
		return l.placedMessage(v.msg)
	}
	if v.chunk != nil {
		l.placedStream(&v)
		l.noteIdleSign()
		return nil
	}
	s := v.sink
	if l.state == stateDown || s == nil {
		return nil
	}
	l.noteIdleSign()
	s.views--
	if s.dead {
		l.e.dropSink(s)
		return nil
	}
	if s.code == OK {
		s.code = v.code
	}
	s.got += v.n
	o := s.op
	if s.body != nil {
		if s.got == s.n {
			l.bodyCame(s)
		}
		return nil
	}
	if o == nil {
		s.mem.countServed(l, v.n)
	}
	switch {
	case o == nil && s.got == s.n:
		delete(l.sinks, s.id)
		l.queueControl(frame.Header{Kind: frame.Done, Op: s.id, Tag: uint64(s.code)})
		l.e.dropSink(s)
	case o == nil:
	case s.code != OK: // ErrFault: nothing else takes the memory of an operation that has not ended
		l.failMemory(o)
	default:
		o.x.at = s.got
		if o.x.at == o.x.n && l.route.Exact {
			l.e.finishOp(o, Result{N: o.x.n, Fate: Ran, Addr: l.addr()})
		}
	}
	return nil
}
