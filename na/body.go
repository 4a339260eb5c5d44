package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A body is what goes beside a message, in pieces, so that other messages pass between them. The message leaves when the last of them
// has: one that is canceled before has not left, and nothing of it ran.
//
//	source:      ClaimRoom ─► BODY, DATA… on the flow for its size ─► all sent ─► the message, which names it
//	             or, if it is on a carrier.Shelf, BODY, which says where, and the message
//	             canceled before the message: CANCEL
//	destination: BODY: room, and a buffer ─ DATA… ─► complete ─┐
//	             message ──────────────────────────────────────┴─► arrives
//
// There is no order between two flows, so the message may come first. It counts when it comes, as any other; it is delivered when its
// body is complete.
type body struct {
	buf   []byte
	slab  []byte // the memory of it, if it is to be used again
	room  int    // that it takes; 0 once its envelope has it
	named bool   // its BODY has come
	msg   *placedMessage
}

// A packedBody is a copy of a body, for one whose memory is its owner's again when the call or send has begun.
type packedBody struct {
	body  []byte
	slab  []byte        // if it is body
	shelf carrier.Shelf // if it is there, and BODY has not said so
	at    int64
}

// packBody makes a copy of body: where the peer can read it, if there is such a place.
func (e *endpoint) packBody(to Addr, body []byte) (p packedBody, err error) {
	e.mu.Lock()
	if l := e.findSession(to); l != nil && l.state == stateUp {
		if s, ok := l.route.carrier.(carrier.Shelver); ok {
			p = l.packToShelf(s.Shelf(l), body)
		}
	}
	e.mu.Unlock()
	if p.shelf != nil {
		return p, nil
	}
	p.slab = slab.Get(len(body))
	p.body = p.slab
	if _, ok := memfault.Copy(p.body, body); !ok {
		return p, WithText(ErrFault, "the body could not be read: memory fault")
	}
	return p, nil
}

// packToShelf is pack to a carrier.Shelf, which may be nil. Locked, though not while it copies.
func (l *session) packToShelf(s carrier.Shelf, body []byte) (p packedBody) {
	if s == nil {
		return packedBody{}
	}
	room, at := s.Reserve(len(body))
	if room == nil {
		return packedBody{}
	}
	s.Fill()
	l.e.Pause()
	_, ok := memfault.Copy(room, body)
	l.e.mu.Lock()
	if s.Filled(); !ok {
		s.Drop(at, len(body))
		return packedBody{}
	}
	return packedBody{body: room, shelf: s, at: at}
}

// release ends the use of it, which s, if it is not nil, sends. Where the carrier still reads, the memory is left to the garbage
// collector. Locked.
func (p *packedBody) release(s *outboundBulk) {
	if p.shelf != nil {
		p.shelf.Drop(p.at, len(p.body))
	}
	if s == nil || s.views == 0 {
		slab.Put(p.slab)
	}
	*p = packedBody{}
}

// enqueueSend has o leave, which has its envelope if it needs one: after its body.
func (l *session) enqueueSend(o *Op) {
	if !o.hasBody() {
		l.msgs.push(o)
		return
	}
	l.bodySeq++
	o.x.bodyID = frame.BodyID(len(o.x.body), l.bodySeq)
	o.room = 0 // the peer returns it
	if p := &o.x.packed; p.shelf != nil {
		p.shelf = nil // the peer empties it
		l.msgs.push(o)
		l.queueControl(frame.Header{ // last: it may be what ends l
			Kind: frame.Body, Op: o.x.bodyID, Tag: uint64(o.tag), Tail: frame.Tail{Offset: p.at, Length: int64(len(o.x.body))},
		})
		return
	}
	o.x.flow = l.flowFor(int64(len(o.x.body)))
	s := l.e.sources.get()
	s.op, s.bytes, s.id, s.n, s.flow = o, o.x.body, o.x.bodyID, int64(len(o.x.body)), o.x.flow
	o.x.source = s
	l.bodies.push(o)
	l.queueSource(s)
	l.controlOn(o.x.flow, frame.Header{Kind: frame.Body, Op: o.x.bodyID, Tag: uint64(o.tag)})
}

// bodySent has the message of o leave: its body has.
func (l *session) bodySent(o *Op) {
	o.x.source = nil
	l.bodies.remove(o)
	l.msgs.push(o)
	l.markPending()
}

// recallBody tells the peer that no message follows a body.
func (l *session) recallBody(o *Op) {
	if o.x.source != nil {
		l.dropSource(o.x.source)
	}
	if l.Up() {
		l.controlOn(o.x.flow, frame.Header{Kind: frame.Cancel, Flags: frame.FlagBody, Op: o.x.bodyID})
	}
}

// bodyOf returns the body of the peer with an identity; one that is new takes its room.
func (l *session) bodyOf(id uint64) (*inboundBulk, error) {
	if s := l.arrivals[id]; s != nil {
		return s, nil
	}
	n := int64(frame.BodyLen(id))
	need := 0
	if n <= MaxBody {
		need = l.roomOf(int(n))
	}
	if need == 0 || l.room == nil || l.room.announced-l.room.taken < uint64(need) {
		return nil, WithText(ErrProtocol, fmt.Sprintf("body of %d bytes, and no room for it was offered", n))
	}
	l.room.claim(need)
	s := l.e.sinks.get()
	*s = inboundBulk{id: id, n: n, body: l.e.incoming.get()}
	s.body.room = need
	if b := s.body; need < slab.Least { // no class of slab takes just its room
		b.buf = make([]byte, n)
	} else {
		b.slab = slab.Get(int(n))
		b.buf = b.slab
	}
	if l.arrivals == nil {
		l.arrivals = map[uint64]*inboundBulk{}
	}
	l.arrivals[id] = s
	return s, nil
}

// deliverBody makes room for a body.
func (l *session) deliverBody(h *frame.Header) error {
	s, err := l.bodyOf(h.Op)
	if err != nil {
		return err
	}
	if s.body.named {
		return WithText(ErrProtocol, fmt.Sprintf("%v with the identity %#x of one that is under way", h.Kind, h.Op))
	}
	s.body.named = true
	return nil
}

// attachBody gives env, of the message of h, its body, and reports whether that is complete. If not the message waits for it.
func (l *session) attachBody(h *frame.Header, env *Envelope) (whole bool, err error) {
	s, err := l.bodyOf(h.Op)
	switch {
	case err != nil:
		return false, err
	case s.body.msg != nil:
		return false, WithText(ErrProtocol, fmt.Sprintf("two messages with the body %#x", h.Op))
	}
	b := s.body
	env.Body, env.slab, env.taken = b.buf, b.slab, b.room
	b.slab, b.room = nil, 0
	if s.got < s.n {
		b.msg = l.e.arrivings.get()
		*b.msg = placedMessage{head: *h, env: env}
		return false, nil
	}
	delete(l.arrivals, s.id)
	l.e.dropSink(s)
	return true, nil
}

// bodyCame goes on with a body whose last byte has come, if its message has.
func (l *session) bodyCame(s *inboundBulk) {
	if s.body.msg == nil {
		return
	}
	m := *s.body.msg
	delete(l.arrivals, s.id)
	l.e.dropSink(s)
	l.confirmLater()
	if m.head.Kind == frame.Unexpected {
		l.presentMessage(m.env)
		return
	}
	l.deliverWhole(&m.head, m.env.Data, m.env)
}

// awaitsBulk reports whether a message has come whose body has not, or the end of a stream before its last bytes.
func (l *session) awaitsBulk() bool {
	for _, s := range l.arrivals {
		if s.body.msg != nil {
			return true
		}
	}
	for _, s := range l.streams {
		if !s.sent && s.in.final >= 0 {
			return true
		}
	}
	return false
}

// confirmLater gives the PONG that has waited for the last of what awaitsBulk has said.
func (l *session) confirmLater() {
	if l.pongLater && !l.awaitsBulk() {
		l.pong, l.pongLater = true, false
		l.markPending()
	}
}

// cancelBody drops a body whose message has not left.
func (l *session) cancelBody(h *frame.Header) {
	s := l.arrivals[h.Op]
	if s == nil || s.body.msg != nil {
		return
	}
	delete(l.arrivals, h.Op)
	l.freeBytes(s.body.room, 0)
	l.e.dropSink(s)
}

// endBodies drops what has come of bodies: the session is over. The carrier may be writing to their memory, which nobody uses again.
func (l *session) endBodies() {
	all := l.arrivals
	l.arrivals = nil
	for _, s := range all {
		if l.freeBytes(s.body.room, 0); s.body.msg == nil {
			continue
		}
		env := s.body.msg.env
		env.Body, env.slab = nil, nil
		if s.body.msg.head.Kind == frame.Unexpected {
			l.e.acceptMessage(env)
			l.e.discardMessage(env)
			continue
		}
		l.freeBytes(env.taken, 0)
		env.taken = 0
		l.e.dropEnvelope(env)
	}
}
