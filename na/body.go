package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A body is the receiver's state of an incoming message body. A message body is sent in chunks,
// separately from its message, so that other messages can be sent in between. The message is sent
// after the last chunk. If it is canceled before that, it is never sent and its request does not
// run.
//
// The source first claims room at the destination. It then sends a BODY frame, the body's bytes in
// DATA frames, and finally the message, which contains the body's ID. If the body is on a
// carrier.Shelf, the BODY frame contains its offset there and no DATA frames follow. If the
// message is canceled, a CANCEL frame takes its place. The destination allocates a buffer for the
// body, and delivers the message once both the message and the whole body have arrived.
//
// Frames of different flows are not ordered, so a message may arrive before its body. Such a
// message takes its place in the order of messages when it arrives, and is delivered once its body
// is complete.
type body struct {
	buf   []byte
	slab  []byte         // memory that holds buf, if it comes from a slab
	room  int            // reserved room in bytes; 0 once charged to the envelope
	named bool           // the BODY frame has arrived
	msg   *placedMessage // message waiting for this body, or nil
}

// A packedBody is an outgoing body. It is a copy of the caller's body if the caller may reuse its
// memory as soon as the call or send has started.
type packedBody struct {
	body  []byte
	slab  []byte        // memory that holds body, if it comes from a slab
	shelf carrier.Shelf // shelf that holds body until BODY is sent, or nil
	at    int64         // offset on the shelf
}

// packBody copies body. If the carrier has a Shelf with enough space, the copy is placed there,
// where the peer can read it directly.
func (e *endpoint) packBody(to Addr, body []byte) (p packedBody, err error) {
	e.mu.Lock()
	if l := e.findSessionLocked(to); l != nil && l.state == stateUp {
		if s, ok := l.route.carrier.(carrier.Shelver); ok {
			p = l.packToShelfLocked(s.Shelf(l), body)
		}
	}
	e.mu.Unlock()
	if p.shelf != nil {
		return p, nil
	}
	p.slab = slab.Get(len(body))
	p.body = p.slab
	if _, ok := memfault.Copy(p.body, body); !ok {
		return p, WithText(ErrFault, "memory fault reading the body")
	}
	return p, nil
}

// packToShelfLocked copies body to s. It returns the zero packedBody if s is nil, if s has no
// space, or if body cannot be read. The caller must hold e.mu, which packToShelfLocked releases
// while it copies.
func (l *session) packToShelfLocked(s carrier.Shelf, body []byte) (p packedBody) {
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

// releaseLocked frees the memory of p. If the carrier is still reading it, the memory is left to
// the garbage collector instead. s is the outboundBulk that sends p, or nil. endpoint.mu must be
// held.
func (p *packedBody) releaseLocked(s *outboundBulk) {
	if p.shelf != nil {
		p.shelf.Drop(p.at, len(p.body))
	}
	if s == nil || s.views == 0 {
		slab.Put(p.slab)
	}
	*p = packedBody{}
}

// enqueueSend queues o's message to be sent. If the message has a body, the body is sent first. If
// o needs an envelope, the caller must already have acquired it.
func (l *session) enqueueSend(o *Op) {
	if !o.hasBody() {
		l.msgs.push(o)
		return
	}
	l.bodySeq++
	o.x.bodyID = frame.BodyID(len(o.x.body), l.bodySeq)
	o.room = 0 // the peer returns it
	if p := &o.x.packed; p.shelf != nil {
		p.shelf = nil // the peer frees the space on the shelf
		l.msgs.push(o)
		l.queueControl(frame.Header{ // last, because it may end l
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

// bodySent queues o's message, whose body has been sent completely.
func (l *session) bodySent(o *Op) {
	o.x.source = nil
	l.bodies.remove(o)
	l.msgs.push(o)
	l.markPending()
}

// recallBody stops sending the body of o's message and notifies the peer that the message will not
// follow.
func (l *session) recallBody(o *Op) {
	if o.x.source != nil {
		l.dropSource(o.x.source)
	}
	if l.Up() {
		l.controlOn(o.x.flow, frame.Header{Kind: frame.Cancel, Flags: frame.FlagBody, Op: o.x.bodyID})
	}
}

// bodyOf returns the incoming body with the given ID. If there is none, bodyOf creates one and
// charges it against the room granted to the peer. It returns an error if the peer does not have
// enough room.
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
		return nil, WithText(ErrProtocol, fmt.Sprintf("body of %d bytes without room granted", n))
	}
	l.room.claim(need)
	s := l.e.sinks.get()
	*s = inboundBulk{id: id, n: n, body: l.e.incoming.get()}
	s.body.room = need
	if b := s.body; need < slab.Least { // the smallest slab would use more memory than the room charged
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

// deliverBody handles a BODY frame and allocates the buffer for the body.
func (l *session) deliverBody(h *frame.Header) error {
	s, err := l.bodyOf(h.Op)
	if err != nil {
		return err
	}
	if s.body.named {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame for operation %#x, which is in progress", h.Kind, h.Op))
	}
	s.body.named = true
	return nil
}

// attachBody sets the body of env, the envelope of the message with header h, and reports whether
// all of the body has arrived. If not, the message must wait for the rest.
func (l *session) attachBody(h *frame.Header, env *Envelope) (whole bool, err error) {
	s, err := l.bodyOf(h.Op)
	switch {
	case err != nil:
		return false, err
	case s.body.msg != nil:
		return false, WithText(ErrProtocol, fmt.Sprintf("duplicate body %#x", h.Op))
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

// onBodyComplete delivers the message of a completed body if the message has arrived.
func (l *session) onBodyComplete(s *inboundBulk) {
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

// awaitsBulk reports whether any received message is waiting for its body, or any stream has
// received its end but not all of its bytes.
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

// confirmLater queues the delayed PONG, if there is one and awaitsBulk no longer returns true.
func (l *session) confirmLater() {
	if l.pongLater && !l.awaitsBulk() {
		l.pong, l.pongLater = true, false
		l.markPending()
	}
}

// cancelBody handles a CANCEL frame for a body whose message will not be sent.
func (l *session) cancelBody(h *frame.Header) {
	s := l.arrivals[h.Op]
	if s == nil || s.body.msg != nil {
		return
	}
	delete(l.arrivals, h.Op)
	l.freeBytes(s.body.room, 0)
	l.e.dropSink(s)
}

// endBodies drops all undelivered bodies when the session ends. Their memory is not reused, because
// the carrier may still be writing to it.
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
