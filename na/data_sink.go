package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An inboundBulk is bulk data being received: the data of a get started here, of a put started by
// the peer, or of a message body.
//
// A get started here completes when the peer's DONE frame arrives or, if the carrier is Exact,
// when all bytes have arrived. A put started by the peer is confirmed with a DONE frame when all
// bytes have arrived.
type inboundBulk struct {
	op    *Op // the local get; nil if there is none or it has completed
	id    uint64
	mem   *Mem
	body  *body // set instead of mem and op if the data is a message body
	off   int64 // offset in mem
	n     int64
	begun int64 // bytes covered by views passed to the carrier
	got   int64 // bytes placed so far
	views int   // number of views held by the carrier
	code  Code
	dead  bool // set if further bytes are to be discarded
}

// dropSink stops s and frees it. If the carrier still holds views of s, s is freed when the
// carrier returns the last of them.
func (e *endpoint) dropSink(s *inboundBulk) {
	s.dead, s.op = true, nil
	if s.views > 0 {
		return
	}
	if b := s.body; b != nil {
		slab.Put(b.slab) // nil if an envelope has taken ownership of it
		if b.msg != nil {
			e.arrivings.put(b.msg)
		}
		e.incoming.put(b)
	}
	e.sinks.put(s)
}

// sinkOf returns the inboundBulk to which the DATA frame with header h belongs, or nil if there is
// none.
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

// Place implements carrier.Session. It returns the destination of a frame's payload: a piece of
// bulk data, or a message that the carrier has not yet received completely. The carrier reads the
// payload into the view and then calls Placed. If the payload is a message, the carrier delivers no
// other frame of the same flow in between.
//
// Place validates the header. On a byte stream, pieces must be contiguous and must not overlap, and
// the total must not exceed the number of bytes requested. An error means that the peer violated
// the protocol, and the carrier passes it to Fail. The caller must hold e.mu.
func (l *session) Place(h *frame.Header) (carrier.View, error) {
	v, err := l.placeData(h)
	if err != nil {
		return nil, err
	}
	return l.e.lendViewLocked(v), nil
}

// placeData implements Place, except that the view it returns has not been lent to the carrier.
func (l *session) placeData(h *frame.Header) (view, error) {
	n := int64(h.Payload())
	v := view{n: n}
	if l.state == stateDown {
		return v, nil
	}
	l.makeBusy()
	l.noteAlive()
	if !l.Up() {
		return v, WithText(ErrProtocol, fmt.Sprintf("%v frame before HELLO", h.Kind))
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
		l.e.stats.LateDropped++ // the operation was refused or canceled
		return v, nil
	case !InRange(int64(h.Tag), n, s.n) || s.begun+n > s.n:
		return v, WithText(ErrProtocol, fmt.Sprintf("DATA frame of %d bytes at offset %d, after %d, exceeds the operation's %d bytes", n, h.Tag, s.begun, s.n))
	case int64(h.Tag) != s.begun && !l.route.Exact:
		return v, WithText(ErrProtocol, fmt.Sprintf("DATA frame of %d bytes at offset %d, want offset %d", n, h.Tag, s.begun))
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

// Placed implements carrier.Session. The carrier calls it when the payload of a view has been read
// completely and is intact. Errors are as for Place. The caller must hold e.mu.
func (l *session) Placed(of carrier.View) error {
	v, ok := l.e.takeBackLocked(of.(*view))
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
			l.onBodyComplete(s)
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
	case s.code != OK: // always ErrFault: the memory of an operation cannot be withdrawn before it completes
		l.failMemory(o)
	default:
		o.x.at = s.got
		if o.x.at == o.x.n && l.route.Exact {
			l.e.finishOpLocked(o, Result{N: o.x.n, Fate: Ran, Addr: l.addr()})
		}
	}
	return nil
}
