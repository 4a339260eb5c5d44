package na

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// The functions in this file implement guaranteed envelopes. A credit is cumulative: it is the
// number of messages that the peer may send during the whole session. It therefore does not matter
// if a frame with a credit is lost or arrives twice.
//
// The destination computes the credit as the number of messages that it has accepted plus the
// number of envelopes that it guarantees, and writes the credit into the header of every frame.
// The source sends a message only if it has sent fewer messages than the last credit allows.
// Otherwise it queues the message until a higher credit arrives. If none arrives within
// Config.Probe, the source sends a PING, and the PONG carries the current credit.
//
// In addition, each peer always has ExpeditedEnvelopes, which are not part of the credit and can
// be used only by expedited messages. Expedited messages wait in a separate queue, which is served
// first.

// reserveEnvelopes reserves memory in the budget for up to want envelopes, and in addition for
// ExpeditedEnvelopes. It returns the number of envelopes reserved, without ExpeditedEnvelopes, and
// whether that number is less than want. If fewer than least envelopes are available, it reserves
// none and returns an error.
func (d *domain) reserveEnvelopes(want, least int) (n int, short bool, err error) {
	each := envelopeBytes(d.cfg.Eager)
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.budgetLeftLocked()
	n = int(min(int64(want), left/each-ExpeditedEnvelopes))
	if n < max(least, 1) {
		return 0, true, WithText(ErrNoMemory, fmt.Sprintf("no envelopes left for another peer: "+
			"want %d of %d bytes, at least %d, have %d with %d of %d bytes left (na.Config.Budget)",
			want, each, max(least, 1), max(n, 0), left, d.cfg.Budget))
	}
	d.reserved += int64(n+ExpeditedEnvelopes) * each
	return n, n < want, nil
}

// budgetLeftLocked returns the number of unreserved bytes in the budget. The caller must hold d.mu.
func (d *domain) budgetLeftLocked() int64 {
	left := d.cfg.Budget - d.reserved
	if d.cfg.Room == 0 { // room is part of the budget
		left -= d.room
	}
	return left
}

// returnEnvelopes releases the memory that reserveEnvelopes reserved for n envelopes.
func (d *domain) returnEnvelopes(n int) {
	d.mu.Lock()
	d.reserved -= GuaranteedBytes(1, n, d.cfg.Eager)
	d.mu.Unlock()
}

// creditBatch returns the number of freed envelopes that triggers a separate credit frame to a
// peer that is guaranteed n envelopes.
func (d *domain) creditBatch(n int) uint32 {
	b := d.cfg.CreditBatch
	if b == 0 {
		b = n / 4
	}
	return uint32(min(max(b, 1), n))
}

// reserveFor reserves envelopes for a peer whose HELLO specifies need and want, as in Config. Zero
// means unspecified. short reports whether the budget was too small for all the envelopes that the
// peer could have been offered.
func (d *domain) reserveFor(need, want int) (n int, short bool, err error) {
	most, least := d.cfg.Envelopes, d.cfg.MinEnvelopes
	if want != 0 {
		most = min(most, want)
		least = min(least, want)
	}
	if need > most {
		return 0, false, WithText(ErrNoMemory, fmt.Sprintf(
			"the peer needs %d envelopes, limit %d (na.Config.Envelopes)", need, most))
	}
	return d.reserveEnvelopes(d.cfg.guaranteedEnvelopes(most), d.cfg.guaranteedEnvelopes(max(least, need)))
}

// checkNeed returns an error if the peer needs more envelopes than were reserved before its HELLO
// arrived.
func (l *session) checkNeed(g *frame.Greeting) error {
	if g.Need <= l.guaranteed {
		return nil
	}
	return WithText(ErrNoMemory, fmt.Sprintf("the peer needs %d envelopes (its na.Config.Need), %d are guaranteed", g.Need, l.guaranteed))
}

// keepsLastEnvelope reports whether the peer's last envelope is reserved for patient sends.
func (l *session) keepsLastEnvelope() bool {
	switch l.e.dom.cfg.Reserve {
	case LiteralReserve:
		return true
	case HonestReserve:
		return l.peer.features&frame.FeatureReserve != 0
	}
	return false
}

// freeEnvelopes returns the number of the peer's envelopes that are known to be free. The number
// is negative while expedited messages use ExpeditedEnvelopes.
func (l *session) freeEnvelopes() int { return int(int32(l.credits - l.used)) }

// hasNoEnvelope reports whether the session with the peer is up but has no envelope that a message
// without SetPatient could use immediately.
func (e *endpoint) hasNoEnvelope(to Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSessionLocked(to)
	return l != nil && l.state == stateUp && (l.queuedLen() > 0 || l.freeEnvelopes() <= 0 || l.freeEnvelopes() == 1 && l.keepsLastEnvelope())
}

// takeCredit takes one of the peer's envelopes for o and reports whether one was free. The caller
// must ensure that no message that must be sent before o's is waiting.
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

// returnCredit returns an envelope that was taken by takeCredit but not used. It then sends queued
// messages that can use the envelope.
func (l *session) returnCredit() {
	l.used--
	l.sendQueued()
}

// sendQueued sends messages that were waiting for an envelope while envelopes are free, expedited
// messages first.
func (l *session) sendQueued() {
	for _, q := range []*opList{&l.expedited, &l.queued} {
		for o := q.head; o != nil && l.takeCredit(o); o = q.head {
			l.enqueueSend(q.pop())
			l.markPending()
		}
	}
}

// queuedLen returns the number of messages waiting for an envelope.
func (l *session) queuedLen() int {
	if l.activeState == nil {
		return 0
	}
	return l.queued.n + l.expedited.n
}

// enqueueRequest sends an unexpected message if an envelope is free. Otherwise it queues the
// message or fails the operation, according to Config.OnNoCredit.
func (l *session) enqueueRequest(o *Op) {
	switch {
	case l.takeCredit(o): // implies that no other message is waiting
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

// sendWaiting sends or queues the messages that were waiting for the session to come up.
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

// noCredit records that no envelope is free for o's message. It fails o with ErrNoCredit unless
// the message may wait.
func (l *session) noCredit(o *Op) {
	l.stalls++
	l.e.stats.Stalls++
	if o.hasty || l.e.dom.cfg.OnNoCredit != Queue && !o.patient && !o.expedited {
		l.e.finishOpLocked(o, Result{Err: ErrNoCredit, Fate: NotRun})
	}
}

// noteHighWater updates the high-water mark of messages to the peer that are queued here, or that
// were sent but are not known to be accepted.
func (l *session) noteHighWater() {
	accepted := l.credits - l.peer.envelopes
	if n := int32(l.used-accepted) + int32(l.queued.n); n > l.highWater {
		l.highWater = n
		l.e.stats.HighWater = max(l.e.stats.HighWater, int(n))
	}
}

// holdLast delays the completion of o, whose message was sent and used the last envelope, until
// the peer has a free envelope again.
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

// sentResult returns the result of a message that used the last envelope. The message counts as
// sent even if it is canceled while its completion is delayed by holdLast.
func (l *session) sentResult(o *Op) Result {
	return Result{N: int64(len(o.buf)), Addr: l.addr(), ID: o.id}
}

// releaseLast completes the operations that holdLast has delayed.
func (l *session) releaseLast() {
	for o := l.heldLast.head; o != nil; o = l.heldLast.head {
		l.e.finishOpLocked(o, l.sentResult(o))
	}
}

// onCredit handles a new credit from the peer.
func (l *session) onCredit(credit uint32) {
	l.credits = credit
	l.noteCredited()
	l.releaseLast()
	l.sendQueued()
}

// returnEnvelope returns an envelope to the peer, because its message was accepted. If the session
// has ended, it releases the reserved memory instead.
func (l *session) returnEnvelope() {
	l.held--
	if l.state == stateDown {
		l.returnReserve()
		return
	}
	l.released++
	l.scheduleCredit()
}

// scheduleCredit queues a credit frame if a batch of envelopes has been freed or the peer has used
// all the envelopes announced to it. Otherwise the next frame carries the credit.
func (l *session) scheduleCredit() {
	free := l.released + l.guaranteed - l.advertised
	if !l.creditDue && (free >= l.batch || free > 0 && int32(l.advertised-uint32(l.received)) <= 0) {
		l.creditDue = true
		l.markPending()
	}
}

// credit returns the credit to write into a header that is about to be sent, and records that it
// has been announced to the peer.
func (l *session) credit() uint32 {
	l.advertised = l.released + l.guaranteed
	l.creditDue = false
	return l.advertised
}

// probeLater schedules a credit probe after Config.Probe. The probe is sent only if messages are
// still waiting then.
func (l *session) probeLater() {
	l.e.readClock()
	l.probed = l.e.now
	l.e.tickNoLaterThan(l.probed + l.e.dom.cfg.Probe)
}

// probeCredit requests the peer's current credit if messages have been waiting for Config.Probe.
// It returns the time of the next probe, or 0 if no message is waiting.
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

// peerStats returns the session's gauges.
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
