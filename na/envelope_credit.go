package na

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Guaranteed envelopes. A credit is cumulative: how many messages the peer may ever send in the session, so it does no
// harm when one is lost, or comes twice.
//
//	source: used ≤ credits (+ 1)                        destination: received ≤ advertised (+ 1), advertised ≤ released + guaranteed
//	SendUnexpected ─► takeCredit ─► msgs ── UNEXPECTED ──► held ─► accepted: released
//	                      │ none                                        │
//	                   queued ◄── sendQueued ◄── credit in any header ──┘
//	                      └─ still none after Config.Probe: PING, and its PONG carries the credit
//
// Beyond these there is always ExpeditedEnvelopes, of which no header speaks: expedited messages may use it, too. They wait in a
// queue of their own, which is fed first.

// reserveEnvelopes takes room for envelopes out of the budget, and for ExpeditedEnvelopes beside: as many as want, fewer when it is short,
// an error below least.
func (d *domain) reserveEnvelopes(want, least int) (n int, short bool, err error) {
	each := envelopeBytes(d.cfg.Eager)
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.budgetLeft()
	n = int(min(int64(want), left/each-ExpeditedEnvelopes))
	if n < max(least, 1) {
		return 0, true, WithText(ErrNoMemory, fmt.Sprintf("no room to guarantee envelopes to one more peer: "+
			"%d of %d bytes are asked for, at least %d, and of the budget of %d bytes %d are left, enough for %d beside the one for expedited messages",
			want, each, max(least, 1), d.cfg.Budget, left, max(n, 0)))
	}
	d.reserved += int64(n+ExpeditedEnvelopes) * each
	return n, n < want, nil
}

// budgetLeft is how many bytes of the budget are not reserved. Locked, by d.mu.
func (d *domain) budgetLeft() int64 {
	left := d.cfg.Budget - d.reserved
	if d.cfg.Room == 0 { // room is taken out of it, too
		left -= d.room
	}
	return left
}

// returnEnvelopes returns what reserve took for n envelopes.
func (d *domain) returnEnvelopes(n int) {
	d.mu.Lock()
	d.reserved -= GuaranteedBytes(1, n, d.cfg.Eager)
	d.mu.Unlock()
}

// creditBatch is how many freed of n envelopes make a frame.
func (d *domain) creditBatch(n int) uint32 {
	b := d.cfg.CreditBatch
	if b == 0 {
		b = n / 4
	}
	return uint32(min(max(b, 1), n))
}

// reserveFor reserves envelopes for a peer, which has said what it needs and wants; zero when it has not. short reports whether the budget is.
func (d *domain) reserveFor(need, want int) (n int, short bool, err error) {
	most, least := d.cfg.Envelopes, d.cfg.MinEnvelopes
	if want != 0 {
		most = min(most, want)
		least = min(least, want)
	}
	if need > most {
		return 0, false, WithText(ErrNoMemory, fmt.Sprintf(
			"the peer needs %d envelopes, and %d are guaranteed to each peer here (Config.Envelopes)", need, most))
	}
	return d.reserveEnvelopes(d.cfg.guaranteedEnvelopes(most), d.cfg.guaranteedEnvelopes(max(least, need)))
}

// checkNeed tells why the envelopes of l, which were reserved before the peer said what it needs, will not do.
func (l *session) checkNeed(g *frame.Greeting) error {
	if g.Need <= l.guaranteed {
		return nil
	}
	return WithText(ErrNoMemory, fmt.Sprintf("the peer needs %d envelopes, and %d are guaranteed to it", g.Need, l.guaranteed))
}

// keepsLastEnvelope reports whether the last envelope of the peer is for sends that wait.
func (l *session) keepsLastEnvelope() bool {
	switch l.e.dom.cfg.Reserve {
	case LiteralReserve:
		return true
	case HonestReserve:
		return l.peer.features&frame.FeatureReserve != 0
	}
	return false
}

// freeEnvelopes is the envelopes of the peer that are known to be free; negative when expedited messages use theirs, too.
func (l *session) freeEnvelopes() int { return int(int32(l.credits - l.used)) }

// hasNoEnvelope reports whether the session with a peer is up and has no envelope for a message that does not wait.
func (e *endpoint) hasNoEnvelope(to Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSession(to)
	return l != nil && l.state == stateUp && (l.queuedLen() > 0 || l.freeEnvelopes() <= 0 || l.freeEnvelopes() == 1 && l.keepsLastEnvelope())
}

// takeCredit uses an envelope of the peer for o, if o may have one. Nobody waits for one.
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

// returnCredit gives back an envelope that was not used after all.
func (l *session) returnCredit() {
	l.used--
	l.sendQueued()
}

// sendQueued lets messages go that waited for an envelope, the expedited ones first.
func (l *session) sendQueued() {
	for _, q := range []*opList{&l.expedited, &l.queued} {
		for o := q.head; o != nil && l.takeCredit(o); o = q.head {
			l.enqueueSend(q.pop())
			l.markPending()
		}
	}
}

// queuedLen is how many messages wait for an envelope.
func (l *session) queuedLen() int {
	if l.activeState == nil {
		return 0
	}
	return l.queued.n + l.expedited.n
}

// enqueueRequest takes in an unexpected message: it may leave, waits for an envelope, or ends.
func (l *session) enqueueRequest(o *Op) {
	switch {
	case l.takeCredit(o): // nobody waits then
		l.enqueueSend(o)
	case l.state != stateUp: // starts will see
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

// queueFor is where o waits for an envelope.
func (l *session) queueFor(o *Op) *opList {
	if o.expedited {
		return &l.expedited
	}
	return &l.queued
}

// sendWaiting feeds the messages that waited for the session.
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

// noCredit counts a message for which the peer has no envelope free, and ends it if it must not wait for one.
func (l *session) noCredit(o *Op) {
	l.stalls++
	l.e.stats.Stalls++
	if o.hasty || l.e.dom.cfg.OnNoCredit != Queue && !o.patient && !o.expedited {
		l.e.finishOp(o, Result{Err: ErrNoCredit, Fate: NotRun})
	}
}

// noteHighWater looks at what the peer is not known to have accepted, and what waits here.
func (l *session) noteHighWater() {
	accepted := l.credits - l.peer.envelopes
	if n := int32(l.used-accepted) + int32(l.queued.n); n > l.highWater {
		l.highWater = n
		l.e.stats.HighWater = max(l.e.stats.HighWater, int(n))
	}
}

// holdLast holds on to a message that has left and used the last envelope: it ends when there is another (G10).
func (l *session) holdLast(o *Op) {
	o.id = l.seq
	if l.freeEnvelopes() > 0 {
		l.e.finishOp(o, l.sentResult(o))
		return
	}
	l.msgs.remove(o)
	l.heldLast.push(o)
	l.probeLater()
}

// sentResult is how a message ends that used the last envelope: it has left, also if it is canceled while it is held.
func (l *session) sentResult(o *Op) Result {
	return Result{N: int64(len(o.buf)), Addr: l.addr(), ID: o.id}
}

// releaseLast ends the messages that used the last envelope.
func (l *session) releaseLast() {
	for o := l.heldLast.head; o != nil; o = l.heldLast.head {
		l.e.finishOp(o, l.sentResult(o))
	}
}

// onCredit hears of the peer's credit.
func (l *session) onCredit(credit uint32) {
	l.credits = credit
	l.tookCredited()
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

// scheduleCredit has the peer hear of freed envelopes: with the next frame; by a frame of their own when so many are free, or
// when the peer has used all that it knows of.
func (l *session) scheduleCredit() {
	free := l.released + l.guaranteed - l.advertised
	if !l.creditDue && (free >= l.batch || free > 0 && int32(l.advertised-uint32(l.received)) <= 0) {
		l.creditDue = true
		l.markPending()
	}
}

// credit is the cumulative number of envelopes guaranteed to the peer, to be put into a header that is being sent.
func (l *session) credit() uint32 {
	l.advertised = l.released + l.guaranteed
	l.creditDue = false
	return l.advertised
}

// probeLater has tick ask the peer when messages still wait for an envelope then.
func (l *session) probeLater() {
	l.e.readClock()
	l.probed = l.e.now
	l.e.tickNoLaterThan(l.probed + l.e.dom.cfg.Probe)
}

// probeCredit asks the peer for its credit if messages have waited long enough (G20), and returns when to do so next; 0 when
// none waits.
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

// peerStats is what PeerStats says.
func (l *session) peerStats() PeerStats {
	s := PeerStats{
		Addr: l.addr(), Offered: int(l.guaranteed), Held: int(l.held), HeldMax: int(l.heldMax),
		Bytes:    GuaranteedBytes(1, l.reserved, l.e.dom.cfg.Eager),
		Promised: int(l.peer.envelopes), Free: max(l.freeEnvelopes(), 0), Queued: l.queuedLen(), HighWater: int(l.highWater), Stalls: l.stalls,
		Transport: l.route.scheme, Why: l.transportReason(),
		Process: l.peer.process, Remote: l.remoteAddr(), HeldBy: l.heldThere().String(),
	}
	s.Load = l.load.Load()
	l.roomGauges(&s)
	return s
}
