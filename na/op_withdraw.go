package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A message can be withdrawn until it is accepted at its destination. This is the cancel protocol
// of IMPI, except that it uses the session in place of an agent's channel.
//
// The source sends a WITHDRAW frame with the number of the message. If the destination has not
// accepted the message, it destroys the message, which frees the envelope, and replies with a
// WITHDRAWN frame and the code OK. Otherwise the code is ErrTooLate.
//
// A WITHDRAW is sent on the same flow as its message, so that it arrives after the message. It
// does not need an envelope. The number of WITHDRAWs to a peer that are unanswered is limited to
// the number of envelopes that the peer guarantees. Further withdrawals wait.

// A withdrawalState is the state of the withdrawals requested by this side of a session.
type withdrawalState struct {
	waiting opList // withdrawals that have not been sent
	asked   opList // withdrawals that have been sent and not been answered
	open    int    // number of unanswered WITHDRAWs, including those whose operation was canceled
	ids     map[uint64]*Op
}

// startWithdraw requests that the peer destroy message id of the session to which to is bound,
// unless the message has been accepted. The operation completes with nil, ErrTooLate,
// ErrUnsupported, ErrPeerLost or ErrCanceled.
func (e *endpoint) startWithdraw(t ticket, to Addr, id uint64) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	l, err := e.sessionOf(t, to)
	switch {
	case err != nil:
	case l.peer.features&frame.FeatureWithdraw == 0:
		err = WithText(ErrUnsupported, "the peer does not support withdrawing messages")
	case id == 0 || id > l.seq:
		err = WithText(ErrInvalid, fmt.Sprintf("no such message: %d, sent %d", id, l.seq))
	case l.withdraws.ids[id] != nil:
		err = WithText(ErrBusy, "the message is already being withdrawn")
	case l.withdraws.waiting.n >= maxAsking:
		err = queueFullError(maxAsking, "queued withdrawals")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
	o.session, o.id = l, id
	if l.withdraws.ids == nil {
		l.withdraws.ids = map[uint64]*Op{}
	}
	l.withdraws.ids[id] = o
	l.waiting++
	l.withdraws.waiting.push(o)
	l.askWithdraws()
	e.Unlock()
}

// sessionOf returns the session to which a is bound, and marks it busy. It returns an error if the
// session is no longer up or the operation of t must not start.
func (e *endpoint) sessionOf(t ticket, a Addr) (*session, error) {
	if err := e.refusalOfLocked(t); err != nil {
		return nil, err
	}
	if l := e.findSessionLocked(a); l != nil && l.Up() {
		l.makeBusy()
		return l, nil
	}
	return nil, WithText(ErrPeerLost, "the session of the message has ended")
}

// askWithdraws sends a WITHDRAW for each pending withdrawal, up to the number of unanswered
// WITHDRAWs that the peer allows.
func (l *session) askWithdraws() {
	for l.withdraws.waiting.n > 0 && l.withdraws.open < int(l.peer.envelopes) {
		o := l.withdraws.waiting.pop()
		l.withdraws.asked.push(o)
		l.withdraws.open++
		l.queueControl(frame.Header{Kind: frame.Withdraw, Op: o.id})
	}
}

// forgetWithdraw removes o from the table of withdrawals. If its WITHDRAW has been sent, it
// remains counted in open until the response arrives.
func (l *session) forgetWithdraw(o *Op) { delete(l.withdraws.ids, o.id) }

// deliverWithdrawn handles a WITHDRAWN frame, which is the response to a WITHDRAW.
func (l *session) deliverWithdrawn(h *frame.Header) error {
	code := Code(h.Tag)
	if l.withdraws.open == 0 || h.Tag > 255 || code != OK && code != ErrTooLate {
		return WithText(ErrProtocol, fmt.Sprintf("WITHDRAWN frame for message %d with code %d, %d outstanding", h.Op, h.Tag, l.withdraws.open))
	}
	l.withdraws.open--
	l.noteTaken(h.Op)
	o := l.withdraws.ids[h.Op]
	if o == nil || o.list != &l.withdraws.asked {
		l.e.stats.LateDropped++
	} else {
		r := Result{Addr: l.addr(), ID: h.Op}
		if code != OK {
			r.Err, r.Fate = code, Ran
		}
		l.e.finishOpLocked(o, r)
	}
	l.askWithdraws()
	return nil
}

// deliverWithdraw handles a WITHDRAW frame. It destroys the message unless it has been accepted,
// and sends the response.
func (l *session) deliverWithdraw(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.received {
		return WithText(ErrProtocol, fmt.Sprintf("WITHDRAW frame for message %d, received %d", h.Op, l.received))
	}
	if l.answered++; l.answered > int(l.guaranteed) {
		return WithText(ErrProtocol, fmt.Sprintf("more than %d WITHDRAW frames with unread responses", l.guaranteed))
	}
	code := ErrTooLate
	if l.destroyMessage(h.Op) {
		code = OK
	}
	l.queueControl(frame.Header{Kind: frame.Withdrawn, Op: h.Op, Tag: uint64(code)})
	return nil
}

// destroyMessage destroys the message with the given number if it has not been accepted. It
// reports whether there was such a message.
func (l *session) destroyMessage(id uint64) bool {
	env := l.requests.find(id)
	if env == nil || env.accepted {
		return false
	}
	env.withdrawn = true
	l.unfreed-- // it no longer keeps the session busy
	l.requests.remove(env)
	l.e.stats.Withdrawn++
	if env.watched {
		l.e.nctx.reportAbandoned(env)
	}
	l.e.acceptMessage(env)
	if env.inbox {
		l.e.inbox.remove(env)
		l.e.countArrived()
		l.e.discardMessage(env)
	}
	return true
}

// disconnectSession implements Context.Disconnect.
func (e *endpoint) disconnectSession(peer Addr, err error) {
	e.mu.Lock()
	if l := e.findSessionLocked(peer); l != nil && !e.shut {
		l.takenExpected = l.sentExpected // the program does not need confirmation of its responses
		if l.Up() {
			l.cancelLeave() // operations waiting for the end of the session fail too
			l.failWith(err)
		} else {
			l.close(WithText(ErrPeerLost, "peer lost: "+err.Error()), OK, "", false)
		}
	}
	e.Unlock()
}

// abandonRequest implements upper.Abandon.
func (e *endpoint) abandonRequest(to Addr, id uint64) {
	e.mu.Lock()
	if l := e.findSessionLocked(to); l != nil {
		l.sendAbandonLocked(id)
	}
	e.Unlock()
}

// sendAbandonLocked queues an ABANDON frame for the request with the given ID. If the queue is
// full, it drops the frame, so that the session with a peer that does not read is not lost.
// endpoint.mu must be held.
func (l *session) sendAbandonLocked(id uint64) {
	if !l.Up() || l.e.shut || l.peer.features&frame.FeatureWithdraw == 0 || id == 0 || id > l.seq {
		return
	}
	l.makeBusy()
	// This is the limit on calls, each of which is abandoned at most once.
	if q := &l.flows[carrier.Messages].abandons; q.len() < maxRecvs+l.e.dom.cfg.SendQueue {
		q.push(frame.Header{Kind: frame.Abandon, Op: id})
		l.markPending()
	}
}

// deliverAbandon handles an ABANDON frame. If the message has not been accepted, it is destroyed.
// Otherwise OnAbandon is called. A message that has been answered is no longer in requests.
func (l *session) deliverAbandon(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.received {
		return WithText(ErrProtocol, fmt.Sprintf("ABANDON frame for message %d, received %d", h.Op, l.received))
	}
	if !l.destroyMessage(h.Op) {
		if env := l.requests.find(h.Op); env != nil {
			l.e.nctx.reportAbandoned(env)
		}
	}
	return nil
}

// isConnected reports whether the session to which peer is bound is up.
func (e *endpoint) isConnected(peer Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSessionLocked(peer)
	return l != nil && l.Up()
}

// A messageTable is a hash table of a peer's messages that have not been freed, keyed by number.
// Most messages are in the slot for their number. Those whose slot was taken are in a map.
type messageTable struct {
	slots []*Envelope // the length is a power of two and at least n
	rest  map[uint64]*Envelope
	n     int
}

// add adds a message to the table. The first call sets the initial capacity of the table to most
// messages.
func (w *messageTable) add(env *Envelope, most int) {
	if w.n++; w.n > len(w.slots) {
		w.grow(max(most, 2*len(w.slots)))
	}
	if at := w.at(env.id); *at == nil {
		*at = env
		return
	}
	if w.rest == nil {
		w.rest = map[uint64]*Envelope{}
	}
	w.rest[env.id] = env
}

// grow increases the capacity of the table to most messages, rounded up to a power of two.
func (w *messageTable) grow(most int) {
	old, rest, n := w.slots, w.rest, w.n
	size := 1
	for size < most {
		size *= 2
	}
	*w = messageTable{slots: make([]*Envelope, size)}
	for _, env := range old {
		if env != nil {
			w.add(env, most)
		}
	}
	for _, env := range rest {
		w.add(env, most)
	}
	w.n = n
}

func (w *messageTable) at(id uint64) **Envelope { return &w.slots[id&uint64(len(w.slots)-1)] }

func (w *messageTable) find(id uint64) *Envelope {
	if w.n == 0 {
		return nil
	}
	if env := *w.at(id); env != nil && env.id == id {
		return env
	}
	return w.rest[id]
}

// oldestUnaccepted returns the unaccepted message with the lowest number, or nil.
func (w *messageTable) oldestUnaccepted() (first *Envelope) {
	for _, env := range w.slots {
		if env != nil && !env.accepted && (first == nil || env.id < first.id) {
			first = env
		}
	}
	for _, env := range w.rest {
		if !env.accepted && (first == nil || env.id < first.id) {
			first = env
		}
	}
	return first
}

// remove removes a message from the table.
func (w *messageTable) remove(env *Envelope) {
	w.n--
	if at := w.at(env.id); *at == env {
		*at = nil
		return
	}
	delete(w.rest, env.id)
}
