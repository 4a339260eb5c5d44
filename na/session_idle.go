package na

import (
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A session in which nothing goes on ends when both sides agree: after Config.IdleTimeout, or sooner when its envelopes are needed for
// another peer, the least recently used first.
//
//	leaving side                                  its peer
//	nothing open: LEAVE n, m ───────────────────► nothing open, and n and m are all messages that it has sent?
//	what begins waits   ◄─────────── GOAWAY ───── yes: the session has ended
//	  begins anew in a new session
//	            ◄───────────────────── STAY ───── no
//	  leaves in this one
//
// Neither side has anything on its way to the other one when the session ends, so nothing is lost, and nobody is told of a fault.
// LEAVE and GOAWAY are on the flow of the messages: what was sent before them has come.

const (
	// byeIdle is the code of a GOAWAY that answers a LEAVE.
	byeIdle = ErrAgain
	// askAgain is when one more session is asked to end, if none has ended for one that waits for its envelopes.
	askAgain = 100 * time.Millisecond
	// keepFor is how long a session whose peer wants it to stay is not asked again. A peer that finds no other one to end meanwhile is
	// refused for good, with the reason: it is longer than the pause between two dials.
	keepFor = time.Second
	// maxRetired bounds the ended sessions of which the peer is remembered.
	maxRetired = 4096
)

var errMakingRoom = WithText(ErrAgain, "no room to guarantee envelopes to one more peer before an idle session has ended, which was asked to")

// An idleList is sessions in the order in which they became idle.
type idleList struct{ oldest, newest *session }

func (q *idleList) push(l *session) {
	l.resting, l.older, l.newer = q, q.newest, nil
	if q.newest == nil {
		q.oldest = l
	} else {
		q.newest.newer = l
	}
	q.newest = l
}

// remove takes l out of q, which is nil if l is in none.
func (q *idleList) remove(l *session) {
	if q == nil {
		return
	}
	if l.older == nil {
		q.oldest = l.newer
	} else {
		l.older.newer = l.newer
	}
	if l.newer == nil {
		q.newest = l.older
	} else {
		l.newer.older = l.older
	}
	l.resting, l.older, l.newer = nil, nil, nil
}

// onIdle lets go of what l, which is idle since then, does not need, and has it end some time. One of the process with itself costs nobody
// a connection, and stays.
func (e *endpoint) onIdle(l *session, since time.Duration) {
	l.activeState = nil
	if l.route == &e.dom.self.route {
		return
	}
	l.idleSince = since
	if !l.dialled {
		e.idle[0].push(l)
		return
	}
	e.idle[1].push(l)
	if timeout := e.idleTimeout(); timeout > 0 {
		e.tickNoLaterThan(since + timeout)
	}
}

// idleTimeout is that of sessions which this side has dialled; 0 for never. A process that serves and cannot be dialled is called in
// these alone: by default they stay.
func (e *endpoint) idleTimeout() time.Duration {
	switch timeout := e.dom.cfg.IdleTimeout; {
	case timeout != 0:
		return max(timeout, 0)
	case e.dom.own.Listen == "" && e.dom.cls.hasHandlers():
		return 0
	}
	return idleTimeout
}

// endIdle asks the peers of sessions that have been idle for long enough, and returns when to do so next; 0 for never.
func (e *endpoint) endIdle(now time.Duration) (next time.Duration) {
	timeout := e.idleTimeout()
	q := &e.idle[1]
	if timeout == 0 {
		return 0
	}
	for l := q.oldest; l != nil && now-l.idleSince >= timeout; l = q.oldest {
		if l.mayLeave() && l.keepUntil <= now {
			l.askToLeave()
			continue
		}
		q.remove(l)
		l.idleSince = now
		q.push(l)
	}
	if q.oldest == nil {
		return 0
	}
	return max(q.oldest.idleSince+timeout, now+e.tickEvery())
}

// mayLeave reports whether nothing is open, nothing waits to be sent, and nothing here needs this very session: memory that is registered
// needs every session of a process that cannot be dialled, because its peers reach the memory in no other way.
func (l *session) mayLeave() bool {
	if l.e.dom.own.Listen == "" && l.e.dom.cls.Regions() > 0 && (l.retiring == nil || !l.hasSuccessor()) {
		return false
	}
	return (l.activeState == nil || !l.hasWork() && l.sentAll()) && l.held == 0 &&
		(l.room == nil || l.room.claimed == 0 && l.room.held == 0) && !l.e.dom.isBound(l.id)
}

// askToLeave asks the peer whether the session may end.
func (l *session) askToLeave() {
	l.makeBusy()
	l.state = stateLeaving
	l.e.leaving++
	l.leftAt = l.received
	l.queueControl(frame.Header{Kind: frame.Leave, Op: l.received, Tag: l.receivedExpected})
}

// cancelLeave has a session that leaves go on.
func (l *session) cancelLeave() {
	if l.state == stateLeaving {
		l.state = stateUp
		l.stateDue = true
		l.e.leaving--
	}
}

// deliverLeave ends the session if this side has no use for it either. A message that the peer had not received is on its way.
func (l *session) deliverLeave(h *frame.Header) {
	if h.Op != l.seq || h.Tag != l.sentExpected || !l.mayLeave() {
		l.queueControl(frame.Header{Kind: frame.Stay})
		return
	}
	l.endByAgreement()
}

// deliverStay takes in the answer that the session goes on.
func (l *session) deliverStay(h *frame.Header) error {
	if l.state != stateLeaving {
		return WithText(ErrProtocol, "STAY frame without a LEAVE")
	}
	l.cancelLeave()
	l.keepUntil = l.e.now + keepFor
	l.sendWaiting()
	l.markPending()
	return nil
}

// endByAgreement ends a session as both sides want: each has taken everything.
func (l *session) endByAgreement() {
	l.Confirmed()
	for _, q := range []*opList{&l.withdraws.waiting, &l.withdraws.asked} {
		for o := q.head; o != nil; o = q.head {
			l.e.finishOp(o, Result{Err: ErrTooLate, Fate: Ran, Addr: l.addr(), ID: o.id})
		}
	}
	l.endIdle()
}

// leavesQuietly reports whether the end of the connection is the one that was asked for, its last words lost.
func (l *session) leavesQuietly(err error) bool {
	code := CodeOf(err)
	return l.state == stateLeaving && !l.silenced && code != ErrProtocol && code != ErrChecksum && !l.e.shut &&
		l.received == l.leftAt && l.unfreed == 0
}

// endIdle ends an idle session, or one that has retired. What has begun since it was asked to end begins anew.
func (l *session) endIdle() {
	e, a, also := l.e, l.wantedAddr(), l.also
	held := l.takeHeld()
	if len(e.retired) >= maxRetired {
		clear(e.retired)
	}
	e.retired[l.id] = l.peer.incarnation
	why := "the session was idle"
	if l.retiring != nil {
		why = l.retiring.why
	} else {
		e.stats.PeersIdle++
	}
	l.close(WithText(ErrPeerLost, "the session has ended: "+why), byeIdle, why, false)
	if len(held) == 0 {
		return
	}
	n, err := e.sessionAgain(a, l.peer.incarnation)
	if err == nil && !n.Up() {
		for _, host := range also {
			if !slices.Contains(n.also, host) {
				n.also = append(n.also, host)
			}
		}
	}
	for _, o := range held {
		if err != nil {
			e.finishOp(o, Result{Err: err, Fate: NotRun})
		} else {
			n.takeOver(o)
		}
	}
	if err == nil {
		n.markPending()
	}
}

// takeHeld takes what waits out of l, a session from which none of it has left.
func (l *session) takeHeld() (all []*Op) {
	for _, q := range []*opList{&l.recvs, &l.leases, &l.expedited, &l.queued, &l.msgs, &l.queuedMoves, &l.probes.waiting} {
		for o := q.head; o != nil; o = q.head {
			q.remove(o)
			l.waiting--
			l.uncountExpedited(o)
			switch o.kind {
			case kindSendExpected:
				l.answers--
			case kindRecvExpected:
				l.posted.remove(o)
			case kindCall:
				if !o.oneWay {
					l.posted.remove(o)
				}
			case kindLease:
				delete(l.e.leases, leaseKey{l, o.tag})
			}
			all = append(all, o)
		}
	}
	return all
}

// takeOver begins o, which takeHeld has taken out of another session of the peer.
func (l *session) takeOver(o *Op) {
	e := l.e
	o.session = l
	asks := o.kind == kindRecvExpected || o.kind == kindCall && !o.oneWay
	if asks && l.posted.find(o.tag) != nil || o.kind == kindLease && e.leases[leaseKey{l, o.tag}] != nil {
		l.posted.add(o) // as finish expects it
		e.finishOp(o, Result{Err: WithText(ErrBusy, "a receive, or lease, of this peer and tag is posted already"), Fate: NotRun})
		return
	}
	l.waiting++
	switch o.kind {
	case kindSendUnexpected:
		l.enqueueRequest(o)
	case kindCall:
		if !o.oneWay {
			l.posted.add(o)
		}
		l.countExpedited(o)
		l.enqueueRequest(o)
	case kindSendExpected:
		l.answers++
		l.enqueueSend(o)
	case kindRecvExpected:
		l.posted.add(o)
		l.recvs.push(o)
	case kindLease:
		e.leases[leaseKey{l, o.tag}] = o
		e.dom.rebindMem(o.x.mem, l.id)
		l.leases.push(o)
	case kindProbe:
		l.probes.waiting.push(o)
		l.stateDue = true
	default:
		l.queuedMoves.push(o)
	}
}

// sessionAgain returns a session to a peer that must still be the one that it was.
func (e *endpoint) sessionAgain(a Addr, incarnation [16]byte) (*session, error) {
	l := e.names[a.WithHost("")]
	var err error
	switch {
	case l != nil:
	case strings.HasPrefix(a.Name(), privatePrefix(e.dom.own.scheme)):
		return e.callerSession(a)
	default:
		if l, err = e.dialSession(a); err != nil {
			return nil, err
		}
	}
	l.makeBusy()
	switch {
	case !l.Up():
		l.only = incarnation
	case l.peer.incarnation != incarnation:
		return nil, WithText(ErrPeerLost, "the peer has restarted since the session that the address was bound to")
	}
	return l, l.mustBe(a)
}

// reserveForPeer takes envelopes for one more peer out of the budget. If that is short, and an idle session can make room, the error is
// errMakingRoom.
func (e *endpoint) reserveForPeer(need, want int) (int, error) {
	n, short, err := e.dom.reserveFor(need, want)
	if !short || !e.makeRoom() {
		return n, err
	}
	if err == nil {
		e.dom.returnEnvelopes(n)
	}
	return 0, errMakingRoom
}

// makeRoom asks the session of the class that has been idle for longest to end, and reports whether one is to.
func (e *endpoint) makeRoom() bool {
	if e.makeRoomHere() {
		return true
	}
	e.dom.mu.Lock()
	all := slices.Clone(e.dom.eps)
	e.dom.mu.Unlock()
	for _, other := range all {
		if other == e {
			continue
		}
		if !other.mu.TryLock() { // two are never waited for; it is asked again soon
			return true
		}
		found := !other.shut && other.makeRoomHere()
		other.mu.Unlock()
		if found {
			other.nctx.pollSoon()
			return true
		}
	}
	return false
}

// makeRoomHere is makeRoom for the sessions of one context.
func (e *endpoint) makeRoomHere() bool {
	e.readClock()
	l := e.leastRecent()
	if l == nil {
		e.sweepIdle()
		l = e.leastRecent()
	}
	if l != nil {
		l.askToLeave()
	}
	return e.leaving > 0
}

// leastRecent returns the session that has been idle for longest; nil if there is none.
func (e *endpoint) leastRecent() *session {
	a, b := e.idle[0].oldest, e.idle[1].oldest
	for a != nil || b != nil {
		next := &a
		if a == nil || b != nil && b.idleSince < a.idleSince {
			next = &b
		}
		l := *next
		if l.mayLeave() && l.keepUntil <= e.now {
			return l
		}
		*next = l.newer
	}
	return nil
}

// sweepIdle finds the sessions that have become idle since the last tick.
func (e *endpoint) sweepIdle() {
	var idle []*session
	e.busy = slices.DeleteFunc(e.busy, func(l *session) bool {
		found := l.state == stateUp && l.isIdle()
		if found {
			idle = append(idle, l)
		}
		return found
	})
	slices.SortStableFunc(idle, func(a, b *session) int { return int(a.lastHeard - b.lastHeard) })
	for _, l := range idle {
		e.onIdle(l, l.lastHeard)
	}
}

// reserveAgain takes the envelopes of a session that waits for them, and reports whether it has them.
func (l *session) reserveAgain() bool {
	n, err := l.e.reserveForPeer(0, 0)
	switch {
	case err == errMakingRoom:
		l.state, l.since, l.refusal = stateWaiting, l.e.now+askAgain, err
		return false
	case err != nil:
		l.close(err, OK, "", false)
		return false
	}
	l.reservedLate(n)
	return true
}

// reserveFor is reserveAgain for a peer that connects to us meanwhile.
func (l *session) reserveFor(g *frame.Greeting) bool {
	n, err := l.e.reserveForPeer(int(g.Need), int(g.Want))
	if err != nil {
		return false
	}
	l.reservedLate(n)
	return true
}

func (l *session) reservedLate(n int) {
	l.short = false
	l.e.shorts--
	l.reserved = n
	l.setGuarantee(n)
}

// hurryShort has sessions that wait for envelopes look at once.
func (e *endpoint) hurryShort() {
	if e.shorts == 0 {
		return
	}
	for _, l := range e.busy {
		if l.short {
			l.since = e.now
			e.tickNoLaterThan(e.now)
		}
	}
}
