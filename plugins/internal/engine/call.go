package engine

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A call is one op with two halves. While its request waits the op is in queued or msgs, afterwards in recvs; from its beginning to its
// end it is in match, and in timers if it has a deadline. Its id is the number of the request; 0 before that has left.
//
//	Call ─► queued ─► msgs ── UNEXPECTED ──► recvs ── EXPECTED ──► ended
//	          │ cancel, deadline: not run      │ cancel, deadline, peer lost: may have run
//	          └────────────────────────────────┴──────────────────────────────────────────► ended

// A Stager is a Carrier that can take a message when it is given, to send it with the next Flush.
type Stager interface {
	// Stage returns what takes a message of l now, within its Room; nil if nothing does. Locked.
	Stage(l *Link) Writer
}

// maxStaged is the longest message in bytes that is staged while frames are held back: many long ones would not stay in the caches.
const maxStaged = 8 << 10

// stager returns what takes a message of n bytes at once, because no more than so many messages wait; nil otherwise.
func (l *Link) stager(n, before int) Writer {
	s := l.route.stager
	if s == nil || l.state != linkUp || l.msgs.n > before || l.pong || l.flows[FlowMessages].controls() || l.e.corks > 0 && n > maxStaged {
		return nil
	}
	w := s.Stage(l)
	if w == nil {
		return nil
	}
	if whole, _ := w.Room(); whole < n {
		return nil
	}
	return w
}

// stage has the carrier take the only message of l.
func (l *Link) stage() {
	if o := l.msgs.head; o != nil && l.fits(o) {
		if w := l.stager(len(o.buf), 1); w != nil {
			l.message(w, len(o.buf))
		}
	}
}

// Call implements na.Endpoint.
func (e *Endpoint) Call(t na.Ticket, s na.CallSpec) {
	if (e.eng.cfg.OnNoCredit != na.Queue && !t.Expedited() || t.Hasty()) && e.short(s.To) {
		e.host.Look() // credit may have arrived that nobody has read (G11)
	}
	var p packed
	var bad error
	if s.Copy && s.Body != nil {
		p, bad = e.pack(s.To, s.Body)
		s.Body = p.body
	}
	e.mu.Lock()
	l, err := e.linkFor(t, s.To)
	claim, claimed := e.claimOf(s.To, max(len(s.Msg), len(s.Body)))
	if err == nil {
		if err = l.mayAsk(t, &s, claim); bad != nil {
			err = bad
		}
	}
	if err != nil {
		p.unpack(nil)
		if claimed != nil {
			claimed.returnRoom(claim)
		}
		e.refuse(t, err)
		return
	}
	o := e.begin(t, kindCall)
	o.link, o.tag, o.buf, o.body, o.by, o.room, o.bodies = l, s.Tag, s.Msg, s.Body, s.By, claim, s.Bodies
	o.packed = p
	if o.alone = s.OneWay; !o.alone {
		o.into, o.intoMost = s.Buf, s.Most
		l.match.add(o)
	}
	l.waiting++
	l.countExpedited(o)
	sooner := false
	if s.By.At != 0 {
		sooner = e.addTimer(o, s.By.At)
	}
	l.request(o)
	l.stage()
	l.kick()
	e.Unlock()
	if sooner {
		e.host.PollSoon()
	}
}

// mayAsk tells why a call must not begin.
func (l *Link) mayAsk(t na.Ticket, s *na.CallSpec, claim int) error {
	limit := l.e.eng.cfg.SendQueue
	calls := maxRecvs + limit // calls wait in the send queue, too
	if t.Expedited() {
		calls *= 2
	}
	switch {
	case l.eager != 0 && (len(s.Msg) > l.eager || s.Body != nil) && claim == 0:
		return errTooLong
	case !s.OneWay && l.match.find(s.Tag) != nil:
		return na.WithText(na.ErrBusy, "a receive of this peer and tag is posted already")
	case l.match.n >= calls:
		return full(l.match.n, "receives of the peer are posted")
	case l.sendQueue() >= limit && !t.Patient() && !t.Expedited():
		return na.WithText(na.ErrNoCredit, fmt.Sprintf(
			"%d messages to the peer wait for an envelope or for room, as many as Config.SendQueue allows", limit))
	}
	return nil
}

// claimOf uses the claim of room for a message of n bytes, if it needs any.
func (e *Endpoint) claimOf(to na.Addr, n int) (claim int, of *Link) {
	if n > e.eng.cfg.Eager {
		if of = e.find(to); of != nil {
			claim = of.useClaim(n)
		}
	}
	return claim, of
}

// countExpedited counts o, a new message, if it is expedited.
func (l *Link) countExpedited(o *op) {
	if o.t.Expedited() {
		o.expedited = true
		l.expediting++
	}
}

// uncountExpedited ends that: o has left, or ends.
func (l *Link) uncountExpedited(o *op) {
	if o.expedited {
		o.expedited = false
		l.expediting--
	}
}

// awaits has o, a call whose request has left, wait for the answer.
func (l *Link) awaits(o *op) {
	l.uncountExpedited(o)
	if o.packed.body != nil {
		o.packed.unpack(o)
	}
	l.msgs.remove(o)
	l.recvs.push(o)
	o.id, o.buf, o.most, o.into, o.body = l.seq, o.into, o.intoMost, nil, nil
}

// ended completes how a call ends without an answer.
func (o *op) ended(r *na.Result) {
	if r.Fate = na.NotRun; o.id != 0 {
		r.Fate, r.Addr, r.ID = na.MaybeRan, o.link.addr(), o.id
	}
}

// Recall implements na.Endpoint.
func (e *Endpoint) Recall(t na.Ticket) (to na.Addr, id uint64, left bool) {
	e.mu.Lock()
	defer e.Unlock()
	o, _ := t.Impl().(*op)
	switch {
	case o == nil || o.t != t:
		return na.Addr{}, 0, false
	case o.id != 0:
		return o.link.addr(), o.id, true
	}
	e.cancel(o, na.ErrCanceled)
	return na.Addr{}, 0, false
}

// heldUp is why a call ends at its deadline: what its request has waited for, if it has not left a session that is up.
func (o *op) heldUp() error {
	l := o.link
	if o.kind == kindCall && o.list == &l.queued && l.state == linkUp {
		return na.WithText(na.ErrTimeout, fmt.Sprintf("all %d envelopes that the target guarantees are in use, and %d requests wait here", l.peer.envelopes, l.queued.n))
	}
	return na.ErrTimeout
}

// GiveUp implements na.Endpoint.
func (e *Endpoint) GiveUp(t na.Ticket, err error) {
	e.mu.Lock()
	if o, _ := t.Impl().(*op); o != nil && o.t == t {
		l, id, tag := o.link, o.id, o.tag
		if err == na.ErrTimeout {
			err = o.heldUp()
		}
		if e.cancel(o, err); id != 0 {
			l.abandon(id, tag)
		}
	}
	e.Unlock()
}

// Answer implements na.Endpoint.
func (e *Endpoint) Answer(env *na.Envelope, to na.Addr, tag na.Tag, buf []byte, most int) (left bool, err error) {
	e.mu.Lock()
	l := e.find(to)
	if l == nil || l.state != linkUp || e.shut || len(buf) > max(l.eager, most) {
		e.mu.Unlock()
		return false, nil
	}
	l.makeBusy()
	if len(l.reads) > 0 {
		if w := l.stager(0, 0); w != nil {
			l.putReads(w)
		}
	}
	w := l.stager(len(buf), 0)
	if w == nil {
		e.mu.Unlock()
		return false, nil
	}
	e.accept(env)
	e.recycle(env)
	l.putExpected(w, tag, buf, nil)
	l.kick()
	e.Unlock()
	return true, nil
}

// Take implements na.Endpoint.
func (e *Endpoint) Take(most int) (first *na.Envelope) {
	if e.arrived.Load() == 0 {
		return nil
	}
	e.mu.Lock()
	for at := &first; most > 0; most-- {
		env := e.takeEnvelope()
		if env == nil {
			break
		}
		*at, at = env, &env.Next
	}
	e.countArrived()
	e.mu.Unlock()
	return first
}

// Arrived implements na.Endpoint.
func (e *Endpoint) Arrived() int { return int(e.arrived.Load()) }
