package engine

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
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

// withdrawals is the source's side.
type withdrawals struct {
	waiting opList // not asked yet
	asked   opList
	open    int // asked and not answered, those that were canceled here among them
	ids     map[uint64]*op
}

// Withdraw implements na.Endpoint.
func (e *Endpoint) Withdraw(t na.Ticket, to na.Addr, id uint64) {
	e.mu.Lock()
	l, err := e.linkOf(t, to)
	switch {
	case err != nil:
	case l.peer.features&frame.FeatureWithdraw == 0:
		err = na.WithText(na.ErrUnsupported, "the peer does not give messages back")
	case id == 0 || id > l.seq:
		err = na.WithText(na.ErrInvalid, fmt.Sprintf("message %d of %d that were sent in the session", id, l.seq))
	case l.withdraws.ids[id] != nil:
		err = na.WithText(na.ErrBusy, "the message is being withdrawn already")
	case l.withdraws.waiting.n >= maxAsking:
		err = full(maxAsking, "withdraws at the peer wait to be asked")
	}
	if err != nil {
		e.refuse(t, err)
		return
	}
	o := e.begin(t, kindWithdraw)
	o.link, o.id = l, id
	if l.withdraws.ids == nil {
		l.withdraws.ids = map[uint64]*op{}
	}
	l.withdraws.ids[id] = o
	l.waiting++
	l.withdraws.waiting.push(o)
	l.askWithdraws()
	e.Unlock()
}

// linkOf returns the session that an address is bound to.
func (e *Endpoint) linkOf(t na.Ticket, a na.Addr) (*Link, error) {
	if err := e.refusal(t); err != nil {
		return nil, err
	}
	if l := e.find(a); l != nil && l.Up() {
		l.makeBusy()
		return l, nil
	}
	return nil, na.WithText(na.ErrPeerLost, "the session of the message has ended")
}

// askWithdraws asks as much as may be asked.
func (l *Link) askWithdraws() {
	for l.withdraws.waiting.n > 0 && l.withdraws.open < int(l.peer.envelopes) {
		o := l.withdraws.waiting.pop()
		l.withdraws.asked.push(o)
		l.withdraws.open++
		l.control(frame.Header{Kind: frame.Withdraw, Op: o.id})
	}
}

// forgetWithdraw takes o out of the table. A message that was asked for stays so until the answer.
func (l *Link) forgetWithdraw(o *op) { delete(l.withdraws.ids, o.id) }

// deliverWithdrawn takes in the answer.
func (l *Link) deliverWithdrawn(h *frame.Header) error {
	code := na.Code(h.Tag)
	if l.withdraws.open == 0 || h.Tag > 255 || code != na.OK && code != na.ErrTooLate {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("WITHDRAWN for message %d with code %d, %d are asked for", h.Op, h.Tag, l.withdraws.open))
	}
	l.withdraws.open--
	l.took(h.Op)
	o := l.withdraws.ids[h.Op]
	if o == nil || o.list != &l.withdraws.asked {
		l.e.stats.LateDropped++
	} else {
		r := na.Result{Addr: l.addr(), ID: h.Op}
		if code != na.OK {
			r.Err, r.Fate = code, na.Ran
		}
		l.e.finish(o, r)
	}
	l.askWithdraws()
	return nil
}

// deliverWithdraw destroys a message that nobody has accepted.
func (l *Link) deliverWithdraw(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.arrived {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("WITHDRAW of message %d, %d have arrived", h.Op, l.arrived))
	}
	if l.answered++; l.answered > int(l.offered) {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("more than %d WITHDRAW frames without reading the answers", l.offered))
	}
	code := na.ErrTooLate
	if l.destroy(h.Op) {
		code = na.OK
	}
	l.control(frame.Header{Kind: frame.Withdrawn, Op: h.Op, Tag: uint64(code)})
	return nil
}

// destroy takes a message away that nobody has accepted, and reports whether there was one.
func (l *Link) destroy(id uint64) bool {
	env := l.unaccepted.find(id)
	if env == nil {
		return false
	}
	env.Withdrawn = true
	l.unfreed-- // it keeps nothing open with the peer, even if nobody drives this side and it is never looked at
	l.e.stats.Withdrawn++
	if env.Watched {
		l.e.host.Abandoned(env.From, env.Tag)
	}
	l.e.accept(env)
	l.e.withdrawn(env)
	return true
}

// Disconnect implements na.Endpoint.
func (e *Endpoint) Disconnect(peer na.Addr, err error) {
	e.mu.Lock()
	if l := e.find(peer); l != nil && !e.shut {
		l.takenExpected = l.sentExpected // the program gives up what it has answered
		if l.Up() {
			l.stay() // what waits for the end is given up, too
			l.fail(err)
		} else {
			l.close(na.WithText(na.ErrPeerLost, "peer lost: "+err.Error()), na.OK, "", false)
		}
	}
	e.Unlock()
}

// Abandon implements na.Endpoint. A peer that does not read is not cut for it: what is to be said waits.
func (e *Endpoint) Abandon(to na.Addr, id uint64, tag na.Tag) {
	e.mu.Lock()
	if l := e.find(to); l != nil {
		l.abandon(id, tag)
	}
	e.Unlock()
}

// abandon is Abandon. Locked.
func (l *Link) abandon(id uint64, tag na.Tag) {
	if !l.Up() || l.e.shut || l.peer.features&frame.FeatureWithdraw == 0 || id == 0 || id > l.seq {
		return
	}
	l.makeBusy()
	if q := &l.flows[FlowMessages].abandons; q.len() < maxRecvs+l.e.eng.cfg.SendQueue { // as many calls can be under way, and each is abandoned once
		q.push(frame.Header{Kind: frame.Abandon, Op: id, Tag: uint64(tag)})
		l.kick()
	}
}

// deliverAbandon destroys a message that nobody has accepted; whoever has accepted it hears that it needs no answer.
func (l *Link) deliverAbandon(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.arrived {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("ABANDON of message %d, %d have arrived", h.Op, l.arrived))
	}
	if !l.destroy(h.Op) {
		l.e.host.Abandoned(l.addr(), na.Tag(h.Tag))
	}
	return nil
}

// Connected implements na.Endpoint.
func (e *Endpoint) Connected(peer na.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.find(peer)
	return l != nil && l.Up()
}

// A messageTable is the messages of a peer that nobody has accepted, by their numbers: an array in which most have the place
// that their number says, and a map of those whose place was taken.
type messageTable struct {
	slots []*na.Envelope
	rest  map[uint64]*na.Envelope
}

// add takes in a message; at most most are there at a time.
func (w *messageTable) add(env *na.Envelope, most int) {
	if w.slots == nil {
		size := 1
		for size < most {
			size *= 2
		}
		w.slots = make([]*na.Envelope, size)
	}
	if at := w.at(env.ID); *at == nil {
		*at = env
		return
	}
	if w.rest == nil {
		w.rest = map[uint64]*na.Envelope{}
	}
	w.rest[env.ID] = env
}

func (w *messageTable) at(id uint64) **na.Envelope { return &w.slots[id&uint64(len(w.slots)-1)] }

func (w *messageTable) find(id uint64) *na.Envelope {
	if w.slots == nil {
		return nil
	}
	if env := *w.at(id); env != nil && env.ID == id {
		return env
	}
	return w.rest[id]
}

func (w *messageTable) remove(env *na.Envelope) {
	if at := w.at(env.ID); *at == env {
		*at = nil
		return
	}
	delete(w.rest, env.ID)
}
