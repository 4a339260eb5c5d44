package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Deliver takes in a whole frame from the peer that is not bulk data; payload is valid during the
// call only. An error means that the peer broke the protocol: the carrier calls Fail with it.
// Locked.
func (l *session) Deliver(h *frame.Header, payload []byte) error {
	if l.state == stateDown {
		return nil
	}
	failpoint.Frame(h)
	l.makeBusy()
	l.noteAlive() // any frame shows that the peer lives, before it is known whether it is a good one
	if !l.Up() {
		return WithText(ErrProtocol, fmt.Sprintf("session begins with %v, want HELLO", h.Kind))
	}
	if err := l.checkHeader(h); err != nil {
		return err
	}
	l.forged = false // the frame names a session and its numbers, which only the peer has been told
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
			l.e.finishOpLocked(o, Result{Err: WithText(ErrNoEntry, "the peer dropped the message of the lease"), Fate: MaybeRan})
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

// countMessage counts a message that comes or leaves. One with a body is bulk data, more or less.
func (l *session) countMessage(h *frame.Header) {
	if h.Flags&frame.FlagBody == 0 {
		l.e.messages++
	}
}

// checkHeader checks what every frame of a session carries. A credit that is older than the last
// one has come on another flow.
func (l *session) checkHeader(h *frame.Header) error {
	if int(h.Context) != l.e.id {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame for context %d in a session with context %d", h.Kind, h.Context, l.e.id))
	}
	// it counts up, modulo 2^32: a frame that was overtaken changes nothing
	switch grown := int32(h.Credit - l.credits); {
	case grown <= 0:
	case h.Credit-l.used > maxCredit:
		return WithText(ErrProtocol, fmt.Sprintf("%v frame with credit %d after %d, %d used", h.Kind, h.Credit, l.credits, l.used))
	default:
		l.onCredit(h.Credit)
	}
	return nil
}

func (l *session) deliverUnexpected(h *frame.Header, payload []byte) error {
	if err := l.checkUnexpected(len(payload)); err != nil {
		return err
	}
	env := l.e.newMessage(len(payload))
	copy(env.Data, payload)
	return l.onUnexpected(h, env)
}

// checkUnexpected reports why an unexpected message of n bytes must not come now.
func (l *session) checkUnexpected(n int) error {
	// The count is ours, and exact: a peer that sends more than it was promised breaks the protocol
	// and takes nobody's memory.
	if next := l.received + 1; int32(l.advertised+ExpeditedEnvelopes-uint32(next)) < 0 {
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message %d, %d envelopes were guaranteed, and %d for expedited messages",
			next, l.advertised, ExpeditedEnvelopes))
	}
	return l.checkRoom(n)
}

// onUnexpected takes in an unexpected message.
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

// presentMessage has an unexpected message taken by a receive, or wait for one. One that was
// withdrawn before its body was complete is gone.
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

// deliverExpected ends the receive that an expected message is for. env, if not nil, has the
// payload in it, of which nobody else knows.
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

// deliverWhole is deliverExpected of a message that has its body, if there is one.
func (l *session) deliverWhole(h *frame.Header, payload []byte, env *Envelope) {
	withBody := env != nil && env.Body != nil
	if withBody { // who takes it has the memory
		l.freeBytes(env.taken, 0)
		env.taken = 0
	}
	// Nobody waits for it any more if the call was canceled: it is dropped, and the sender is told
	// if what it lent hangs on it.
	o := l.posted.find(Tag(h.Tag))
	n := h.Payload()
	if o == nil || o.kind == kindCall && o.id == 0 || // nobody has asked yet
		len(payload) < n && n <= max(len(o.buf), o.most) { // posted after the message had begun to come
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
		r.Err, r.Fate = WithText(ErrOverflow, "message with a body for a receive that takes none"), Ran
	case withBody, n > len(o.buf) && n <= o.most:
		if env == nil {
			env = l.e.newEnvelope(n)
			copy(env.Data, payload)
		}
		env.From, env.Tag, env.session, env.accepted = r.Addr, r.Tag, l, true
		r.Envelope, env = env, nil
	case n > len(o.buf):
		r.Err = WithText(ErrOverflow, fmt.Sprintf("message of %d bytes for a receive of %d", n, max(len(o.buf), o.most)))
		r.Fate = Ran
		if h.Flags&frame.FlagTell != 0 {
			l.queueControl(frame.Header{Kind: frame.Dropped, Tag: h.Tag})
		}
	default:
		copy(o.buf, payload) // nobody holds it: it is only ended under this lock
	}
	l.e.dropEnvelope(env)
	l.e.finishOpLocked(o, r)
}

// deliverDone ends a put or a get that the owner has reported done.
func (l *session) deliverDone(h *frame.Header) error {
	o := l.e.inFlight.get(h.Op)
	if o == nil || o.session != l { // canceled meanwhile; or another peer's number, which must not end it
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
		r.Err = WithText(code, "the memory of the owner could not be read or written: "+code.Error())
	case code != OK:
		r.Err = WithText(code, "the owner of the memory refused: "+code.Error())
	case o.x.at != o.x.n:
		return WithText(ErrProtocol, fmt.Sprintf("%v after %d of %d bytes", h.Kind, o.x.at, o.x.n))
	}
	l.e.finishOpLocked(o, r)
	return nil
}

// reachMem returns the memory that a peer's get or put is for, or nil when it is ended at once;
// under are those that are under way.
func (l *session) reachMem(h *frame.Header, need Access, under int) (*Mem, error) {
	mem, code := l.e.dom.findMem(l, h.Tail, need)
	if code == OK && under >= maxServing {
		code = ErrAgain
	}
	if code == OK && h.Tail.Length > 0 {
		return mem, nil
	}
	// The answer is the code alone: a peer that may not reach memory does not learn whether there
	// is any, or how long it is.
	l.queueControl(frame.Header{Kind: frame.Done, Op: h.Op, Tag: uint64(code)})
	return nil, l.countDenied(code, h.Tail.Token)
}

// deliverGet begins to serve a get.
func (l *session) deliverGet(h *frame.Header) error {
	if l.served[h.Op] != nil {
		return WithText(ErrProtocol, fmt.Sprintf("GET with the identity %#x of one that is served", h.Op))
	}
	mem, err := l.reachMem(h, ReadOnly, len(l.served))
	if mem == nil {
		return err
	}
	l.serveGet(h.Op, mem, h.Tail.Offset, h.Tail.Length)
	return nil
}

// deliverPut makes room for a put.
func (l *session) deliverPut(h *frame.Header) error {
	if l.sinks[h.Op] != nil {
		return WithText(ErrProtocol, fmt.Sprintf("PUT with the identity %#x of one that is under way", h.Op))
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

// countDenied counts tokens for which a request was refused; a peer that tries keys is cut. Each
// counts once, whatever it was refused for: who holds a handle of an earlier session, or of an
// earlier life of this process, asks for all its pieces. Memory that was there a moment ago does
// not count.
func (l *session) countDenied(code Code, token [16]byte) error {
	switch {
	case code == OK || code == ErrAgain || code == ErrRevoked && l.e.dom.cls.isIssued(token):
		return nil
	case l.guesses == nil:
		l.guesses = map[[16]byte]struct{}{}
	}
	if l.guesses[token] = struct{}{}; len(l.guesses) > maxDenials {
		return WithText(ErrProtocol, "too many requests for memory that is not allowed")
	}
	return nil
}

// deliverCancel stops what the peer does not want any more.
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
