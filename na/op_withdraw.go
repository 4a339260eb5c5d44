package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A message can be taken back until somebody at its destination accepts it: the IMPI cancel protocol, on the session
// instead of an agent's channel.
//
//	source                                        destination
//	message n leaves ── UNEXPECTED ─────────────► buffered: unaccepted
//	Withdraw(n) ─────── WITHDRAW n ─────────────► unaccepted? destroyed, its envelope is free; WITHDRAWN n OK
//	            ◄────── WITHDRAWN n ───────────── else WITHDRAWN n ErrTooLate
//
// WITHDRAW takes the way of its message, so it never comes before it. It needs no envelope; a source has at most as many
// unanswered as the peer guarantees envelopes, further ones wait.

// withdrawalState is the source's side.
type withdrawalState struct {
	waiting opList // not asked yet
	asked   opList
	open    int // asked and not answered, those that were canceled here among them
	ids     map[uint64]*Op
}

// startWithdraw asks the peer to destroy message id of the session that to is bound to, if nobody there has accepted it. It
// takes the way that the message took, and ends with nil, ErrTooLate, ErrUnsupported, ErrPeerLost, ErrCanceled.
func (e *endpoint) startWithdraw(t ticket, to Addr, id uint64) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	l, err := e.sessionOf(t, to)
	switch {
	case err != nil:
	case l.peer.features&frame.FeatureWithdraw == 0:
		err = WithText(ErrUnsupported, "the peer does not give messages back")
	case id == 0 || id > l.seq:
		err = WithText(ErrInvalid, fmt.Sprintf("message %d of %d that were sent in the session", id, l.seq))
	case l.withdraws.ids[id] != nil:
		err = WithText(ErrBusy, "the message is being withdrawn already")
	case l.withdraws.waiting.n >= maxAsking:
		err = queueFullError(maxAsking, "withdraws at the peer wait to be asked")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeIn(t)
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

// sessionOf returns the session that an address is bound to.
func (e *endpoint) sessionOf(t ticket, a Addr) (*session, error) {
	if err := e.refusalOf(t); err != nil {
		return nil, err
	}
	if l := e.findSession(a); l != nil && l.Up() {
		l.makeBusy()
		return l, nil
	}
	return nil, WithText(ErrPeerLost, "the session of the message has ended")
}

// askWithdraws asks as much as may be asked.
func (l *session) askWithdraws() {
	for l.withdraws.waiting.n > 0 && l.withdraws.open < int(l.peer.envelopes) {
		o := l.withdraws.waiting.pop()
		l.withdraws.asked.push(o)
		l.withdraws.open++
		l.queueControl(frame.Header{Kind: frame.Withdraw, Op: o.id})
	}
}

// forgetWithdraw takes o out of the table. A message that was asked for stays so until the answer.
func (l *session) forgetWithdraw(o *Op) { delete(l.withdraws.ids, o.id) }

// deliverWithdrawn takes in the answer.
func (l *session) deliverWithdrawn(h *frame.Header) error {
	code := Code(h.Tag)
	if l.withdraws.open == 0 || h.Tag > 255 || code != OK && code != ErrTooLate {
		return WithText(ErrProtocol, fmt.Sprintf("WITHDRAWN for message %d with code %d, %d are asked for", h.Op, h.Tag, l.withdraws.open))
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
		l.e.finishOp(o, r)
	}
	l.askWithdraws()
	return nil
}

// deliverWithdraw destroys a message that nobody has accepted.
func (l *session) deliverWithdraw(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.received {
		return WithText(ErrProtocol, fmt.Sprintf("WITHDRAW of message %d, %d have arrived", h.Op, l.received))
	}
	if l.answered++; l.answered > int(l.guaranteed) {
		return WithText(ErrProtocol, fmt.Sprintf("more than %d WITHDRAW frames without reading the answers", l.guaranteed))
	}
	code := ErrTooLate
	if l.destroyMessage(h.Op) {
		code = OK
	}
	l.queueControl(frame.Header{Kind: frame.Withdrawn, Op: h.Op, Tag: uint64(code)})
	return nil
}

// destroyMessage takes a message away that nobody has accepted, and reports whether there was one.
func (l *session) destroyMessage(id uint64) bool {
	env := l.requests.find(id)
	if env == nil || env.accepted {
		return false
	}
	env.withdrawn = true
	l.unfreed-- // it keeps nothing open with the peer, even if nobody drives this side and it is never looked at
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

// disconnectSession ends a session because of err.
func (e *endpoint) disconnectSession(peer Addr, err error) {
	e.mu.Lock()
	if l := e.findSession(peer); l != nil && !e.shut {
		l.takenExpected = l.sentExpected // the program gives up what it has answered
		if l.Up() {
			l.cancelLeave() // what waits for the end is given up, too
			l.failWith(err)
		} else {
			l.close(WithText(ErrPeerLost, "peer lost: "+err.Error()), OK, "", false)
		}
	}
	e.Unlock()
}

// abandonRequest: a peer that does not read is not cut for it: what is to be said waits.
func (e *endpoint) abandonRequest(to Addr, id uint64) {
	e.mu.Lock()
	if l := e.findSession(to); l != nil {
		l.sendAbandon(id)
	}
	e.Unlock()
}

// sendAbandon is Abandon. Locked.
func (l *session) sendAbandon(id uint64) {
	if !l.Up() || l.e.shut || l.peer.features&frame.FeatureWithdraw == 0 || id == 0 || id > l.seq {
		return
	}
	l.makeBusy()
	if q := &l.flows[carrier.Messages].abandons; q.len() < maxRecvs+l.e.dom.cfg.SendQueue { // as many calls can be under way, and each is abandoned once
		q.push(frame.Header{Kind: frame.Abandon, Op: id})
		l.markPending()
	}
}

// deliverAbandon destroys a message that nobody has accepted; who has accepted it learns that it needs no answer. One that is answered is not
// there any more.
func (l *session) deliverAbandon(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.received {
		return WithText(ErrProtocol, fmt.Sprintf("ABANDON of message %d, %d have arrived", h.Op, l.received))
	}
	if !l.destroyMessage(h.Op) {
		if env := l.requests.find(h.Op); env != nil {
			l.e.nctx.reportAbandoned(env)
		}
	}
	return nil
}

// isConnected reports whether the session that peer is bound to is up.
func (e *endpoint) isConnected(peer Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSession(peer)
	return l != nil && l.Up()
}

// A messageTable is the messages of a peer that are not freed, by their numbers: an array in which most have the place
// that their number says, and a map of those whose place was taken.
type messageTable struct {
	slots []*Envelope // as many as a power of two, which is at least n
	rest  map[uint64]*Envelope
	n     int
}

// add takes in a message. Room for so many is made at first.
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

// grow makes room for so many messages.
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

// oldestUnaccepted returns the message with the lowest number that nobody has accepted, or nil.
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

// remove takes out a message that is there.
func (w *messageTable) remove(env *Envelope) {
	w.n--
	if at := w.at(env.id); *at == env {
		*at = nil
		return
	}
	delete(w.rest, env.id)
}
