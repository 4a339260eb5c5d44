package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Deliver implements carrier.Session. It handles a frame from the peer that has arrived completely
// and is not bulk data. payload is valid only during the call. If Deliver returns an error, the
// peer has violated the protocol, and the carrier must call Fail with that error. endpoint.mu must
// be held.
func (l *session) Deliver(h *frame.Header, payload []byte) error {
	if l.state == stateDown {
		return nil
	}
	failpoint.Frame(h)
	l.makeBusy()
	l.noteAlive() // before the check, because even an invalid frame is a sign of life
	if !l.Up() {
		return WithText(ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", h.Kind))
	}
	if err := l.checkHeader(h); err != nil {
		return err
	}
	l.forged = false // the frame contains numbers of this session that only the peer knows
	switch h.Kind {
	case frame.Unexpected:
		l.countMessage(h)
		return l.deliverUnexpected(h, payload)
	case frame.Expected:
		l.countMessage(h)
		return l.deliverExpected(h, payload, nil)
	case frame.Body:
		return l.deliverBody(h)
	case frame.Done:
		return l.deliverDone(h)
	case frame.Put:
		return l.deliverPut(h)
	case frame.Get:
		return l.deliverGet(h)
	case frame.Cancel:
		l.deliverCancel(h)
	case frame.Ping:
		l.pong, l.pongOp, l.pongTag = true, h.Op, h.Tag
		l.markPending()
	case frame.Pong:
		l.deliverPong(h)
	case frame.Credit:
		if err := l.checkCredit(h); err != nil {
			return err
		}
		if err := l.roomGranted(h.Tag); err != nil {
			return err
		}
		l.feedStreams()
	case frame.Withdraw:
		return l.deliverWithdraw(h)
	case frame.Withdrawn:
		return l.deliverWithdrawn(h)
	case frame.Abandon:
		return l.deliverAbandon(h)
	case frame.Dropped:
		if o := l.e.leases[leaseKey{l, Tag(h.Tag)}]; o != nil {
			l.e.finishOpLocked(o, Result{Err: WithText(ErrNoEntry, "the peer dropped the message"), Fate: MaybeRan})
		}
	case frame.GiveBack:
		if o := l.e.tokens[h.Tail.Token]; o != nil && o.session == l {
			l.e.finishOpLocked(o, Result{N: o.x.mem.Len()})
		}
	case frame.Read:
		l.deliverRead(h)
	case frame.Stream:
		return l.deliverStream(h, payload)
	case frame.Window:
		return l.deliverWindow(h, payload)
	case frame.Reset:
		return l.deliverReset(h, payload)
	case frame.Probe:
		return l.deliverProbe(h)
	case frame.Probed:
		return l.deliverProbed(h)
	case frame.Held:
		return l.deliverHeld(h)
	case frame.Leave:
		l.deliverLeave(h)
	case frame.Stay:
		return l.deliverStay(h)
	case frame.Retire:
		return l.deliverRetire(h)
	default:
		if h.Kind.IsSkipped() {
			return nil
		}
		return l.deliverLater(h)
	}
	return nil
}

// countMessage counts a message that has been sent or received in endpoint.messages. A message with
// a body is not counted, because it is treated as bulk data.
func (l *session) countMessage(h *frame.Header) {
	if h.Flags&frame.FlagBody == 0 {
		l.e.messages++
	}
}

// checkHeader validates the context ID and the credit, which all frames of a session contain, and
// adopts the credit if it has grown.
func (l *session) checkHeader(h *frame.Header) error {
	if int(h.Context) != l.e.id {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame for context %d in a session with context %d", h.Kind, h.Context, l.e.id))
	}
	// The credit is cumulative, modulo 2^32. An older credit has arrived over another lane, where
	// frames may be reordered, and is ignored.
	switch grown := int32(h.Credit - l.credits); {
	case grown <= 0:
	case h.Credit-l.used > maxCredit:
		return WithText(ErrProtocol, fmt.Sprintf("%v frame with credit %d, previously %d, used %d", h.Kind, h.Credit, l.credits, l.used))
	default:
		l.onCredit(h.Credit)
	}
	return nil
}

// deliverUnexpected handles an UNEXPECTED frame that has arrived completely, copying its payload
// into an envelope.
func (l *session) deliverUnexpected(h *frame.Header, payload []byte) error {
	if err := l.checkUnexpected(len(payload)); err != nil {
		return err
	}
	env := l.e.newMessage(len(payload))
	copy(env.Data, payload)
	return l.onUnexpected(h, env)
}

// checkUnexpected returns an error if the peer has no credit, or no room, for an unexpected message
// of n bytes.
func (l *session) checkUnexpected(n int) error {
	// A peer that exceeds its credit must be detected before it uses envelopes guaranteed to other
	// peers.
	if next := l.received + 1; int32(l.advertised+ExpeditedEnvelopes-uint32(next)) < 0 {
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message %d exceeds the guaranteed %d envelopes and %d expedited ones",
			next, l.advertised, ExpeditedEnvelopes))
	}
	return l.checkRoom(n)
}

// onUnexpected counts env, a received message, against the peer's envelopes. It presents the
// message to its receiver, unless the message has a body that has not arrived completely.
func (l *session) onUnexpected(h *frame.Header, env *Envelope) error {
	whole := true
	if h.Flags&frame.FlagBody != 0 {
		var err error
		if whole, err = l.attachBody(h, env); err != nil {
			return err
		}
	}
	l.received++
	l.held++
	l.heldMax = max(l.heldMax, l.held)
	l.unfreed++
	l.scheduleCredit()
	l.takeRoom(env)
	l.keepEnvelope(env, Tag(h.Tag))
	env.Arrived = l.arrivalTime(h)
	if whole {
		l.presentMessage(env)
	}
	return nil
}

// presentMessage completes the oldest posted receive with env or, if there is none, appends env to
// the inbox. It discards env if the peer withdrew the message before its body was complete.
func (l *session) presentMessage(env *Envelope) {
	if env.withdrawn {
		l.e.discardMessage(env)
		return
	}
	if o := l.e.receivers.head; o != nil {
		l.e.finishOpLocked(o, Result{Envelope: env, Addr: env.From, Tag: env.Tag, N: int64(len(env.Data))})
		return
	}
	l.e.inbox.push(env)
	l.e.countArrived()
	l.e.nctx.wakeLeader()
}

// deliverExpected handles an EXPECTED frame. If env is not nil, it holds the payload, and
// deliverExpected takes ownership of it.
func (l *session) deliverExpected(h *frame.Header, payload []byte, env *Envelope) error {
	l.receivedExpected++
	if h.Flags&frame.FlagBody != 0 {
		if env == nil {
			env = l.e.newEnvelope(len(payload))
			copy(env.Data, payload)
		}
		if whole, err := l.attachBody(h, env); !whole {
			return err
		}
	}
	l.deliverWhole(h, payload, env)
	return nil
}

// deliverWhole completes the receive that is posted for an expected message. The message's body, if
// it has one, must have arrived. If no such receive is posted, deliverWhole drops the message.
func (l *session) deliverWhole(h *frame.Header, payload []byte, env *Envelope) {
	withBody := env != nil && env.Body != nil
	if withBody { // the receive owns the memory, so the room is released
		l.freeBytes(env.taken, 0)
		env.taken = 0
	}
	// If the call was canceled there is no receive, and the message is dropped. With FlagTell the
	// sender is notified, because it keeps lent memory until then.
	o := l.posted.find(Tag(h.Tag))
	n := h.Payload()
	if o == nil || o.kind == kindCall && o.id == 0 || // the call's request has not been sent
		// The receive was posted after the message had begun to arrive.
		len(payload) < n && n <= max(len(o.buf), o.most) {
		l.e.stats.LateDropped++
		if h.Flags&frame.FlagTell != 0 {
			l.queueControl(frame.Header{Kind: frame.Dropped, Tag: h.Tag})
		}
		l.e.dropEnvelope(env)
		return
	}
	r := Result{Addr: l.addr(), Tag: o.tag, N: int64(n), ID: o.id}
	switch {
	case withBody && !o.bodies:
		r.Err, r.Fate = WithText(ErrOverflow, "message with a body, which the receive does not allow"), Ran
	case withBody, n > len(o.buf) && n <= o.most:
		if env == nil {
			env = l.e.newEnvelope(n)
			copy(env.Data, payload)
		}
		env.From, env.Tag, env.session, env.accepted = r.Addr, r.Tag, l, true
		r.Envelope, env = env, nil
	case n > len(o.buf):
		r.Err = WithText(ErrOverflow, fmt.Sprintf("message of %d bytes exceeds the receive buffer of %d", n, max(len(o.buf), o.most)))
		r.Fate = Ran
		if h.Flags&frame.FlagTell != 0 {
			l.queueControl(frame.Header{Kind: frame.Dropped, Tag: h.Tag})
		}
	default:
		copy(o.buf, payload) // o is not held and completes only under this lock
	}
	l.e.dropEnvelope(env)
	l.e.finishOpLocked(o, r)
}

// deliverDone handles a DONE frame, with which the owner of the memory reports the result of a put
// or get, by completing that operation.
func (l *session) deliverDone(h *frame.Header) error {
	o := l.e.inFlight.get(h.Op)
	// The operation has been canceled, or it belongs to another session, whose operations this peer
	// must not complete.
	if o == nil || o.session != l {
		l.e.stats.LateDropped++
		return nil
	}
	if h.Tag > 255 {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame with code %d", h.Kind, h.Tag))
	}
	code := Code(h.Tag)
	r := Result{N: o.x.at, Fate: Ran, Addr: l.addr()}
	switch {
	case code == ErrFault:
		r.Err = WithText(code, "the owner's memory is not accessible: "+code.Error())
	case code != OK:
		r.Err = WithText(code, "refused by the memory's owner: "+code.Error())
	case o.x.at != o.x.n:
		return WithText(ErrProtocol, fmt.Sprintf("%v frame after %d of %d bytes", h.Kind, o.x.at, o.x.n))
	}
	l.e.finishOpLocked(o, r)
	return nil
}

// reachMem returns the memory for h, a GET or PUT from the peer that needs the given access. If the
// request is refused or has length 0, reachMem queues the DONE and returns nil. It returns an error
// if the session must be closed because the peer is guessing tokens. under is the number of
// requests of this kind in flight in the session.
func (l *session) reachMem(h *frame.Header, need Access, under int) (*Mem, error) {
	mem, code := l.e.dom.findMem(l, h.Tail, need)
	if code == OK && under >= maxServing {
		code = ErrAgain
	}
	if code == OK && h.Tail.Length > 0 {
		return mem, nil
	}
	// The answer contains only a code, so that a peer without permission cannot learn whether the
	// memory exists or how long it is.
	l.queueControl(frame.Header{Kind: frame.Done, Op: h.Op, Tag: uint64(code)})
	return nil, l.countDenied(code, h.Tail.Token)
}

// deliverGet handles a GET frame. If the peer may read the memory, deliverGet starts sending the
// requested bytes.
func (l *session) deliverGet(h *frame.Header) error {
	if l.served[h.Op] != nil {
		return WithText(ErrProtocol, fmt.Sprintf("GET frame for operation %#x, which is in progress", h.Op))
	}
	mem, err := l.reachMem(h, ReadOnly, len(l.served))
	if mem == nil {
		return err
	}
	l.serveGet(h.Op, mem, h.Tail.Offset, h.Tail.Length)
	return nil
}

// deliverPut handles a PUT frame. If the peer may write to the memory, deliverPut prepares to
// receive the data.
func (l *session) deliverPut(h *frame.Header) error {
	if l.sinks[h.Op] != nil {
		return WithText(ErrProtocol, fmt.Sprintf("PUT frame for operation %#x, which is in progress", h.Op))
	}
	mem, err := l.reachMem(h, WriteOnly, len(l.sinks))
	if mem == nil {
		return err
	}
	l.e.reached++
	s := l.e.sinks.get()
	*s = inboundBulk{id: h.Op, mem: mem, off: h.Tail.Offset, n: h.Tail.Length}
	if l.sinks == nil {
		l.sinks = map[uint64]*inboundBulk{}
	}
	l.sinks[h.Op] = s
	return nil
}

// countDenied counts token if code denies a request that contained it. If more than maxDenials
// tokens have been denied, it returns an error that closes the session, because the peer appears to
// be guessing. Each token counts once, because a peer with an outdated key repeats it for every
// chunk. Tokens of memory that this class has deregistered do not count.
func (l *session) countDenied(code Code, token [16]byte) error {
	switch {
	case code == OK || code == ErrAgain || code == ErrRevoked && l.e.dom.cls.isIssued(token):
		return nil
	case l.guesses == nil:
		l.guesses = map[[16]byte]struct{}{}
	}
	if l.guesses[token] = struct{}{}; len(l.guesses) > maxDenials {
		return WithText(ErrProtocol, "too many requests without permission for the memory")
	}
	return nil
}

// deliverCancel handles a CANCEL frame by stopping the put, get, or body that the peer has
// canceled.
func (l *session) deliverCancel(h *frame.Header) {
	if h.Flags&frame.FlagBody != 0 {
		l.cancelBody(h)
		return
	}
	if s := l.served[h.Op]; s != nil {
		l.dropSource(s)
	}
	if s := l.sinks[h.Op]; s != nil {
		delete(l.sinks, h.Op)
		l.e.dropSink(s)
	}
}
