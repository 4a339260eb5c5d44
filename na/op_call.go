package na

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A call is a single Op with two phases. While its request waits, the Op is in session.queued or
// msgs. After the request has been sent, the Op is in recvs until the response arrives. From start
// to completion it is in posted, and in endpoint.timers if it has a deadline. Its id is the number
// of the request, or 0 until the request is sent.
//
// A call that is canceled or reaches its deadline before its request is sent completes with Fate
// NotRun. After that, it completes with MaybeRan, as it does if the peer is lost.

// maxStaged is the maximum size in bytes of a message that is staged while frames are held back.
// If longer messages were staged, the bytes of many of them would not stay in the CPU caches until
// they are sent.
const maxStaged = 8 << 10

// stagerFor returns a Writer to which a message of n bytes can be written immediately. It returns
// nil if the carrier cannot stage the message, if another frame must be sent first, or if more
// than before messages are queued.
func (l *session) stagerFor(n, before int) carrier.Writer {
	s := l.route.stager
	if s == nil || l.state != stateUp || l.msgs.n > before || l.pong || l.flows[carrier.Messages].hasControls() || l.e.nctx.corks.Load() > 0 && n > maxStaged {
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

// stageMessage writes the only queued message of l to the carrier immediately, if the carrier can
// stage it.
func (l *session) stageMessage() {
	if o := l.msgs.head; o != nil && l.fitsPeer(o) {
		if w := l.stagerFor(len(o.buf), 1); w != nil {
			l.sendMessage(w, len(o.buf))
		}
	}
}

// startCall starts a SendUnexpected and a RecvExpected as a single operation (see upper.Call). The
// request waits for an envelope as described for startSendUnexpected.
func (e *endpoint) startCall(t ticket, s CallSpec) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		e.returnRoom(s.To, max(len(s.Msg), len(s.Body)))
		return
	}
	if (e.dom.cfg.OnNoCredit != Queue && !t.op.expedited || t.op.hasty) && e.hasNoEnvelope(s.To) {
		e.nctx.tryPoll() // credit may have arrived that has not been read yet (G11)
	}
	var p packedBody
	var bad error
	if s.Copy && s.Body != nil {
		p, bad = e.packBody(s.To, s.Body)
		s.Body = p.body
	}
	e.mu.Lock()
	l, err := e.sessionForLocked(t, s.To)
	claim, claimed := e.claimOf(s.To, max(len(s.Msg), len(s.Body)))
	if err == nil {
		if err = l.checkCall(t, &s, claim); bad != nil {
			err = bad
		}
	}
	if err != nil {
		p.releaseLocked(nil)
		if claimed != nil {
			claimed.returnRoom(claim)
		}
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
	o.session, o.tag, o.buf, o.by, o.room, o.bodies = l, s.Tag, s.Msg, s.By, claim, s.Bodies
	if s.Body != nil || len(s.Streams) > 0 {
		o.x = e.exts.get()
		o.x.body, o.x.packed, o.x.streams, o.x.streamsAt = s.Body, p, s.Streams, s.StreamsAt
	}
	if o.oneWay = s.OneWay; !o.oneWay {
		o.reply, o.replyMax = s.Buf, s.Most
		l.posted.add(o)
	}
	l.waiting++
	l.countExpedited(o)
	sooner := false
	if s.By.At != 0 {
		sooner = e.addTimer(o, s.By.At)
	}
	l.enqueueRequest(o)
	l.stageMessage()
	l.markPending()
	e.Unlock()
	if sooner {
		e.nctx.pollSoon()
	}
}

// checkCall returns an error if a call must not be started.
func (l *session) checkCall(t ticket, s *CallSpec, claim int) error {
	limit := l.e.dom.cfg.SendQueue
	calls := maxRecvs + limit // includes the receives of calls in the send queue
	if t.op.expedited {
		calls *= 2
	}
	switch {
	case l.eager != 0 && (len(s.Msg) > l.eager || s.Body != nil) && claim == 0:
		return errTooLong
	case !s.OneWay && l.posted.find(s.Tag) != nil:
		return WithText(ErrBusy, "a receive for this peer and tag is already posted")
	case l.posted.n >= calls:
		return queueFullError(l.posted.n, "posted receives")
	case l.sendQueue() >= limit && !t.op.patient && !t.op.expedited:
		return WithText(ErrNoCredit, fmt.Sprintf(
			"send queue full: %d messages to the peer (na.Config.SendQueue)", limit))
	}
	return nil
}

// claimOf consumes and returns the claim of room for a message of n bytes, and returns the session
// to which the claim belongs. A message of at most Config.Eager bytes has no claim.
func (e *endpoint) claimOf(to Addr, n int) (claim int, of *session) {
	if n > e.dom.cfg.Eager {
		if of = e.findSessionLocked(to); of != nil {
			claim = of.useClaim(n)
		}
	}
	return claim, of
}

// countExpedited adds o to the number of unsent expedited messages if its message is expedited.
func (l *session) countExpedited(o *Op) {
	if o.expedited {
		o.counted = true
		l.expediting++
	}
}

// uncountExpedited undoes countExpedited. It is called when o is sent or completes.
func (l *session) uncountExpedited(o *Op) {
	if o.counted {
		o.counted = false
		l.expediting--
	}
}

// awaitReply adds o, a call whose request has been sent, to the calls waiting for a response.
func (l *session) awaitReply(o *Op) {
	l.uncountExpedited(o)
	if x := o.x; x != nil {
		if x.packed.body != nil {
			x.packed.releaseLocked(x.source)
		}
		x.body = nil
	}
	l.msgs.remove(o)
	l.recvs.push(o)
	o.id, o.buf, o.most, o.reply = l.seq, o.reply, o.replyMax, nil
}

// completeCall fills in the result of a call that completes without a response.
func (o *Op) completeCall(r *Result) {
	if r.Fate = NotRun; o.id != 0 {
		r.Fate, r.Addr, r.ID = MaybeRan, o.session.addr(), o.id
	}
}

// cancelIfUnsent implements upper.CancelIfUnsent.
func (e *endpoint) cancelIfUnsent(t ticket) (to Addr, id uint64, left bool) {
	e.mu.Lock()
	defer e.Unlock()
	o := t.op
	switch {
	case !t.isTakenIn():
		return Addr{}, 0, false
	case o.id != 0:
		return o.session.addr(), o.id, true
	}
	e.cancelOpLocked(o, ErrCanceled)
	return Addr{}, 0, false
}

// deadlineError returns the error for a call or a probe whose deadline has passed. Its text states
// what the operation was waiting for, if known.
func (o *Op) deadlineError() error {
	l := o.session
	switch {
	case o.kind == kindProbe && l.Up():
		return errNotDriven
	case o.kind != kindCall || l.state != stateUp:
		return ErrTimeout
	}
	there := l.peerHeld()
	switch {
	case o.list == &l.queued:
		text := fmt.Sprintf("all %d envelopes of the target are in use, %d requests queued", l.peer.envelopes, l.queued.n)
		if there.Reason != heldby.None {
			text += ": " + there.String()
		}
		return WithText(ErrTimeout, text)
	case there.Reason != heldby.None && o.id != 0 && (o.x == nil || !slices.ContainsFunc(o.x.streams, (*Stream).isOpened)):
		return WithText(ErrTimeout, "no response from the target, where this process's requests are queued: "+there.String())
	}
	return ErrTimeout
}

// abandonCall fails a Call or a Probe with err and notifies the peer as Abandon does. At a
// deadline the endpoint calls ticket.setDue, and then Trigger calls abandonCall. If a response
// arrives in between, the call completes with that response. abandonCall resets the streams of a
// call before it sends the ABANDON frame, because otherwise the peer would report the ABANDON as
// the reason for the end of the streams.
func (e *endpoint) abandonCall(t ticket, err error) {
	e.mu.Lock()
	if o := t.op; t.isTakenIn() {
		l, id, isCall := o.session, o.id, o.kind == kindCall
		if isCall && id != 0 && err == ErrTimeout && o.x != nil {
			for _, s := range o.x.streams {
				s.resetLocked(ErrTimeout, "deadline exceeded")
			}
		}
		if err == ErrTimeout {
			err = o.deadlineError()
		}
		if e.cancelOpLocked(o, err); isCall && id != 0 {
			l.sendAbandonLocked(id)
		}
	}
	e.Unlock()
}

// sendAnswer sends an expected message without an operation and frees env, if the carrier can send
// the message immediately. Otherwise it does nothing, and the caller must call startSendExpected
// instead. It returns an error if startSendExpected would fail.
func (e *endpoint) sendAnswer(env *Envelope, to Addr, tag Tag, buf []byte, most int) (left bool, err error) {
	if e.faults != nil {
		if err := e.failOp(); err != nil {
			return false, err
		}
		e.counted.Store(true) // a subsequent startSendExpected does not call failOp again
	}
	e.mu.Lock()
	l := e.findSessionLocked(to)
	if l == nil || l.state != stateUp || e.shut || len(buf) > max(l.eager, most) {
		e.mu.Unlock()
		return false, nil
	}
	l.makeBusy()
	if len(l.reads) > 0 {
		if w := l.stagerFor(0, 0); w != nil {
			l.putReads(w)
		}
	}
	w := l.stagerFor(len(buf), 0)
	if w == nil {
		e.mu.Unlock()
		return false, nil
	}
	e.acceptMessage(env)
	e.recycleMessage(env)
	if e.faults != nil {
		e.counted.Store(false)
	}
	l.putExpected(w, tag, buf, nil)
	l.markPending()
	e.Unlock()
	return true, nil
}

// takeArrived removes and returns up to most messages that no receive has taken, oldest first and
// linked by Envelope.next. It is intended for a layer that does not call RecvUnexpected.
func (e *endpoint) takeArrived(most int) (first *Envelope) {
	if e.arrived.Load() == 0 {
		return nil
	}
	e.mu.Lock()
	for at := &first; most > 0; most-- {
		env := e.takeEnvelope()
		if env == nil {
			break
		}
		*at, at = env, &env.next
	}
	e.countArrived()
	e.mu.Unlock()
	return first
}

func (e *endpoint) countInbox() int { return int(e.arrived.Load()) }
