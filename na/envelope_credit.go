package na

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// The functions of this file implement guaranteed envelopes. A credit is cumulative: the number of
// messages that the peer may send in the whole session. So a credit may be lost, or arrive twice.
//
//	source: used ≤ credits (+ 1)                        destination: received ≤ advertised (+ 1), advertised ≤ released + guaranteed
//	SendUnexpected ─► takeCredit ─► msgs ── UNEXPECTED ──► held ─► accepted: released
//	                      │ none                                        │
//	                   queued ◄── sendQueued ◄── credit in any header ──┘
//	                      └─ still none after Config.Probe: PING, and its PONG carries the credit
//
// Beyond these, each peer always has ExpeditedEnvelopes, which are not in the credit: expedited
// messages may use them too. Expedited messages wait in a queue of their own, which is served
// first.

// reserveEnvelopes reserves memory for envelopes in the budget, and for ExpeditedEnvelopes in
// addition. It reserves want of them, or fewer if the budget is short. Fewer than least are an
// error.
func (d *domain) reserveEnvelopes(want, least int) (n int, short bool, err error) {
	each := envelopeBytes(d.cfg.Eager)
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.budgetLeftLocked()
	n = int(min(int64(want), left/each-ExpeditedEnvelopes))
	if n < max(least, 1) {
		return 0, true, WithText(ErrNoMemory, fmt.Sprintf("no envelopes left for another peer: "+
			"want %d of %d bytes, at least %d, have %d with %d of %d bytes left (Config.Budget)",
			want, each, max(least, 1), max(n, 0), left, d.cfg.Budget))
	}
	d.reserved += int64(n+ExpeditedEnvelopes) * each
	return n, n < want, nil
}

// budgetLeftLocked returns how many bytes of the budget are not reserved. The caller holds d.mu.
func (d *domain) budgetLeftLocked() int64 {
	left := d.cfg.Budget - d.reserved
	if d.cfg.Room == 0 { // room is a part of the budget
		left -= d.room
	}
	return left
}

// returnEnvelopes releases the memory that reserveEnvelopes has reserved for n envelopes.
func (d *domain) returnEnvelopes(n int) {
	d.mu.Lock()
	d.reserved -= GuaranteedBytes(1, n, d.cfg.Eager)
	d.mu.Unlock()
}

// creditBatch returns how many freed envelopes, out of n, trigger a separate credit frame.
func (d *domain) creditBatch(n int) uint32 {
	b := d.cfg.CreditBatch
	if b == 0 {
		b = n / 4
	}
	return uint32(min(max(b, 1), n))
}

// reserveFor reserves envelopes for a peer with the given Need and Want; 0 means unspecified. short
// reports whether the budget is too small for another peer, or for the peer's Want.
func (d *domain) reserveFor(need, want int) (n int, short bool, err error) {
	most, least := d.cfg.Envelopes, d.cfg.MinEnvelopes
	if want != 0 {
		most = min(most, want)
		least = min(least, want)
	}
	if need > most {
		return 0, false, WithText(ErrNoMemory, fmt.Sprintf(
			"the peer needs %d envelopes, limit %d (Config.Envelopes)", need, most))
	}
	return d.reserveEnvelopes(d.cfg.guaranteedEnvelopes(most), d.cfg.guaranteedEnvelopes(max(least, need)))
}

// checkNeed returns an error if the peer needs more envelopes than were reserved before its HELLO.
func (l *session) checkNeed(g *frame.Greeting) error {
	if g.Need <= l.guaranteed {
		return nil
	}
	return WithText(ErrNoMemory, fmt.Sprintf("the peer needs %d envelopes, only %d are guaranteed", g.Need, l.guaranteed))
}

// keepsLastEnvelope reports whether the last envelope of the peer is reserved for patient sends.
func (l *session) keepsLastEnvelope() bool {
	switch l.e.dom.cfg.Reserve {
	case LiteralReserve:
		return true
	case HonestReserve:
		return l.peer.features&frame.FeatureReserve != 0
	}
	return false
}

// freeEnvelopes returns the number of envelopes of the peer that are known to be free. It is
// negative if expedited messages use ExpeditedEnvelopes.
func (l *session) freeEnvelopes() int { return int(int32(l.credits - l.used)) }

// hasNoEnvelope reports whether the session with a peer is up and has no envelope for a message
// that is not patient.
func (e *endpoint) hasNoEnvelope(to Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSessionLocked(to)
	return l != nil && l.state == stateUp && (l.queuedLen() > 0 || l.freeEnvelopes() <= 0 || l.freeEnvelopes() == 1 && l.keepsLastEnvelope())
}

// takeCredit takes an envelope of the peer for o, and reports whether one was free. The caller has
// checked that no message with precedence waits.
func (l *session) takeCredit(o *Op) bool {
	if l.state != stateUp {
		return false
	}
	switch free := l.freeEnvelopes(); {
	case o.expedited:
		if free+ExpeditedEnvelopes <= 0 {
			return false
		}
	case free <= 0:
		return false
	case free == 1 && l.keepsLastEnvelope():
		if !o.patient {
			return false
		}
		o.last = true
	}
	l.used++
	return true
}

// returnCredit returns an envelope that was taken by takeCredit and not used.
func (l *session) returnCredit() {
	l.used--
	l.sendQueued()
}

// sendQueued sends messages that have waited for an envelope, expedited ones first.
func (l *session) sendQueued() {
	for _, q := range []*opList{&l.expedited, &l.queued} {
		for o := q.head; o != nil && l.takeCredit(o); o = q.head {
			l.enqueueSend(q.pop())
			l.markPending()
		}
	}
}

// queuedLen returns how many messages wait for an envelope.
func (l *session) queuedLen() int {
	if l.activeState == nil {
		return 0
	}
	return l.queued.n + l.expedited.n
}

// enqueueRequest sends an unexpected message if an envelope is free. Otherwise it queues the
// message or ends the operation, as Config.OnNoCredit selects.
func (l *session) enqueueRequest(o *Op) {
	switch {
	case l.takeCredit(o): // no other message waits then
		l.enqueueSend(o)
	case l.state != stateUp: // sendWaiting decides when the session is up
		l.queueFor(o).push(o)
	default:
		if l.queuedLen() == 0 {
			l.probeLater()
		}
		l.queueFor(o).push(o)
		l.noCredit(o)
	}
	l.noteHighWater()
}

// queueFor returns the queue in which o waits for an envelope.
func (l *session) queueFor(o *Op) *opList {
	if o.expedited {
		return &l.expedited
	}
	return &l.queued
}

// sendWaiting sends or queues the messages that waited for the session to come up.
func (l *session) sendWaiting() {
	l.sendQueued()
	for _, q := range []*opList{&l.expedited, &l.queued} {
		for o := q.head; o != nil; {
			next := o.next
			l.noCredit(o)
			o = next
		}
	}
	if l.queuedLen() > 0 {
		l.probeLater()
	}
}

// noCredit counts a message for which no envelope is free. It ends the operation if the message may
// not wait.
func (l *session) noCredit(o *Op) {
	l.stalls++
	l.e.stats.Stalls++
	if o.hasty || l.e.dom.cfg.OnNoCredit != Queue && !o.patient && !o.expedited {
		l.e.finishOpLocked(o, Result{Err: ErrNoCredit, Fate: NotRun})
	}
}

// noteHighWater updates the highest number of messages that are waiting here or not known to be
// accepted.
func (l *session) noteHighWater() {
	accepted := l.credits - l.peer.envelopes
	if n := int32(l.used-accepted) + int32(l.queued.n); n > l.highWater {
		l.highWater = n
		l.e.stats.HighWater = max(l.e.stats.HighWater, int(n))
	}
}

// holdLast keeps the operation of a sent message that has used the last envelope, until there is
// another one (G10).
func (l *session) holdLast(o *Op) {
	o.id = l.seq
	if l.freeEnvelopes() > 0 {
		l.e.finishOpLocked(o, l.sentResult(o))
		return
	}
	l.msgs.remove(o)
	l.heldLast.push(o)
	l.probeLater()
}

// sentResult returns the result of a message that has used the last envelope. It was sent, also if
// it is canceled while holdLast keeps it.
func (l *session) sentResult(o *Op) Result {
	return Result{N: int64(len(o.buf)), Addr: l.addr(), ID: o.id}
}

// releaseLast ends the operations that holdLast keeps.
func (l *session) releaseLast() {
	for o := l.heldLast.head; o != nil; o = l.heldLast.head {
		l.e.finishOpLocked(o, l.sentResult(o))
	}
}

// onCredit handles a new credit of the peer.
func (l *session) onCredit(credit uint32) {
	l.credits = credit
	l.noteCredited()
	l.releaseLast()
	l.sendQueued()
}

// returnEnvelope returns an envelope to the peer.
func (l *session) returnEnvelope() {
	l.held--
	if l.state == stateDown {
		l.returnReserve()
		return
	}
	l.released++
	l.scheduleCredit()
}

// scheduleCredit queues a credit frame if a batch of envelopes has been freed, or if the peer has
// used all announced ones. Otherwise the next frame carries the credit.
func (l *session) scheduleCredit() {
	free := l.released + l.guaranteed - l.advertised
	if !l.creditDue && (free >= l.batch || free > 0 && int32(l.advertised-uint32(l.received)) <= 0) {
		l.creditDue = true
		l.markPending()
	}
}

// credit returns the credit for a header that is being sent: the cumulative number of envelopes
// guaranteed to the peer.
func (l *session) credit() uint32 {
	l.advertised = l.released + l.guaranteed
	l.creditDue = false
	return l.advertised
}

// probeLater schedules a credit probe after Config.Probe, which is sent if messages still wait.
func (l *session) probeLater() {
	l.e.readClock()
	l.probed = l.e.now
	l.e.tickNoLaterThan(l.probed + l.e.dom.cfg.Probe)
}

// probeCredit requests the peer's credit if messages have waited for Config.Probe (G20). It returns
// the time of the next probe, 0 if no message waits.
func (l *session) probeCredit(now time.Duration) time.Duration {
	if l.queuedLen() == 0 && l.heldLast.n == 0 {
		return 0
	}
	if now-l.probed >= l.e.dom.cfg.Probe {
		l.probed = now
		l.sendPing()
	}
	return l.probed + l.e.dom.cfg.Probe
}

// peerStats returns the gauges of l.
func (l *session) peerStats() PeerStats {
	s := PeerStats{
		Addr: l.addr(), Offered: int(l.guaranteed), Held: int(l.held), HeldMax: int(l.heldMax),
		Bytes:    GuaranteedBytes(1, l.reserved, l.e.dom.cfg.Eager),
		Promised: int(l.peer.envelopes), Free: max(l.freeEnvelopes(), 0), Queued: l.queuedLen(), HighWater: int(l.highWater), Stalls: l.stalls,
		Transport: l.route.scheme, Why: l.transportReason(),
		Process: l.peer.process, Remote: l.remoteAddr(), HeldBy: l.peerHeld().String(),
	}
	s.Load = l.load.Load()
	l.roomGauges(&s)
	return s
}
