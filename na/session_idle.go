package na

import (
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// An idle session is closed when both sides agree. One side proposes this after Config.IdleTimeout,
// or earlier if the session's envelopes are needed for another peer, starting with the least
// recently used session.
//
//	leaving side                                  its peer
//	nothing in flight: LEAVE n, m ──────────────► nothing in flight, and n and m are all messages that it has sent?
//	operations wait     ◄─────────── GOAWAY ───── yes: the session has ended
//	  and use a new session
//	            ◄───────────────────── STAY ───── no
//	  and use this session
//
// When the session is closed, neither side has a message in flight to the other, so nothing is
// lost, and OnFault is not called. LEAVE and GOAWAY are sent in the message lane, so everything
// sent before them has arrived.

const (
	// byeIdle is the code of a GOAWAY that answers a LEAVE.
	byeIdle = ErrAgain
	// askAgain is the time after which a session that is waiting for envelopes retries, which may send
	// another LEAVE to an idle peer.
	askAgain = 100 * time.Millisecond
	// keepFor is how long no LEAVE is sent after a STAY. It is longer than the pause between two
	// dials, so that a new peer is refused, with the reason, if no other session can be closed.
	keepFor = time.Second
	// maxRetired is the maximum number of entries in endpoint.retired, which remembers sessions that
	// were closed because they were idle.
	maxRetired = 4096
)

var errMakingRoom = WithText(ErrAgain, "no envelopes left for another peer; waiting for an idle session to close")

// An idleList is a list of sessions in the order in which they became idle.
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

// remove removes l from q. If q is nil, which means that l is in no list, it does nothing.
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

// onIdle discards l's activeState and adds l to the idle sessions, which are closed after
// IdleTimeout. A loopback session is not added, because it uses no connection that closing it would
// free. since is the time at which l became idle.
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

// idleTimeout returns the idle timeout of sessions dialed by this side, or 0 if they are never
// closed. By default, they are not closed if this process serves calls but cannot be dialed,
// because peers can reach it only through these sessions.
func (e *endpoint) idleTimeout() time.Duration {
	switch timeout := e.dom.cfg.IdleTimeout; {
	case timeout != 0:
		return max(timeout, 0)
	case e.dom.own.Listen == "" && e.dom.cls.hasHandlers():
		return 0
	}
	return idleTimeout
}

// endIdle sends LEAVE to the peers of sessions that have been idle for IdleTimeout. It returns the
// time of the next check, or 0 if none is necessary.
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

// mayLeave reports whether the session may be closed for being idle: nothing is in flight or
// waiting to be sent, and nothing in this process needs the session. If this process has registered
// memory and cannot be dialed, it needs every session, because peers cannot reach the memory
// otherwise.
func (l *session) mayLeave() bool {
	if l.e.dom.own.Listen == "" && l.e.dom.cls.Regions() > 0 && (l.retiring == nil || !l.hasSuccessorLocked()) {
		return false
	}
	return (l.activeState == nil || !l.hasWork() && l.sentAll()) && l.held == 0 &&
		(l.room == nil || l.room.claimed == 0 && l.room.held == 0) && !l.e.dom.isBound(l.id)
}

// askToLeave sends LEAVE, which proposes to the peer that the session be closed, and changes l to
// stateLeaving.
func (l *session) askToLeave() {
	l.makeBusy()
	l.state = stateLeaving
	l.e.leaving++
	l.leftAt = l.received
	l.queueControl(frame.Header{Kind: frame.Leave, Op: l.received, Tag: l.receivedExpected})
}

// cancelLeave changes l from stateLeaving to stateUp and schedules the operations that were waiting
// to be sent. In other states it does nothing.
func (l *session) cancelLeave() {
	if l.state == stateLeaving {
		l.state = stateUp
		l.stateDue = true
		l.e.leaving--
	}
}

// deliverLeave handles a LEAVE frame. If this side does not need the session either and the peer
// has received all of this side's messages, deliverLeave closes the session. Otherwise it responds
// with STAY.
func (l *session) deliverLeave(h *frame.Header) {
	if h.Op != l.seq || h.Tag != l.sentExpected || !l.mayLeave() {
		l.queueControl(frame.Header{Kind: frame.Stay})
		return
	}
	l.endByAgreement()
}

// deliverStay handles a STAY frame, with which the peer refuses a LEAVE. The session remains up.
func (l *session) deliverStay(h *frame.Header) error {
	if l.state != stateLeaving {
		return WithText(ErrProtocol, "unexpected STAY frame")
	}
	l.cancelLeave()
	l.keepUntil = l.e.now + keepFor
	l.sendWaiting()
	l.markPending()
	return nil
}

// endByAgreement closes a session that both sides agree to close and in which each has received all
// messages.
func (l *session) endByAgreement() {
	l.Confirmed()
	for _, q := range []*opList{&l.withdraws.waiting, &l.withdraws.asked} {
		for o := q.head; o != nil; o = q.head {
			l.e.finishOpLocked(o, Result{Err: ErrTooLate, Fate: Ran, Addr: l.addr(), ID: o.id})
		}
	}
	l.endIdle()
}

// leavesQuietly reports whether the loss of the connection with err counts as agreement to a LEAVE,
// because the peer's GOAWAY may have been lost along with the connection.
func (l *session) leavesQuietly(err error) bool {
	code := CodeOf(err)
	return l.state == stateLeaving && !l.silenced && code != ErrProtocol && code != ErrChecksum && !l.e.shut &&
		l.received == l.leftAt && l.unfreed == 0
}

// endIdle closes an idle session or one that has retired. Operations that have started since the
// LEAVE was sent are moved to a new session.
func (l *session) endIdle() {
	e, a, also := l.e, l.wantedAddr(), l.also
	held := l.takeHeld()
	if len(e.retired) >= maxRetired {
		clear(e.retired)
	}
	e.retired[l.id] = l.peer.incarnation
	why := "idle"
	if l.retiring != nil {
		why = l.retiring.why
	} else {
		e.stats.PeersIdle++
	}
	l.close(WithText(ErrPeerLost, "session closed: "+why), byeIdle, why, false)
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
			e.finishOpLocked(o, Result{Err: err, Fate: NotRun})
		} else {
			n.takeOver(o)
		}
	}
	if err == nil {
		n.markPending()
	}
}

// takeHeld removes the operations of l of which nothing has been sent, and returns them.
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

// takeOver starts o in l. takeHeld has removed o from another session with the same peer.
func (l *session) takeOver(o *Op) {
	e := l.e
	o.session = l
	asks := o.kind == kindRecvExpected || o.kind == kindCall && !o.oneWay
	if asks && l.posted.find(o.tag) != nil || o.kind == kindLease && e.leases[leaseKey{l, o.tag}] != nil {
		l.posted.add(o) // because finishOpLocked removes it
		e.finishOpLocked(o, Result{Err: WithText(ErrBusy, "a receive or lease for this peer and tag is already posted"), Fate: NotRun})
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

// sessionAgain returns a session with the peer at a, dialing if there is none. It returns an error
// if the peer's incarnation is known to differ from the given one. If the session is not up, the
// incarnation is checked once it is.
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
		return nil, WithText(ErrPeerLost, "the address is bound to a session that ended when the peer restarted")
	}
	return l, l.checkHostLocked(a)
}

// reserveForPeer reserves envelopes for another peer and returns their number. If too few are left
// in the budget and an idle session can be closed, reserveForPeer starts closing it and returns
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

// makeRoom starts closing the least recently used idle session of e or, if e has none, of another
// context of the class. It reports whether any session is being closed.
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
		if !other.mu.TryLock() { // never wait for a second endpoint's lock; the caller soon tries again
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

// makeRoomHere is like makeRoom, but it considers only the sessions of e.
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

// leastRecent returns the session that has been idle longest among those that may be closed, or nil
// if there is none.
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

// sweepIdle calls onIdle for the sessions that have become idle since the last tick.
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

// reserveAgain retries reserving envelopes for l, which is waiting for them before it dials, and
// reports whether it succeeded.
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

// reserveFor is like reserveAgain, for the case that the peer has dialed this side in the meantime.
// g is the peer's HELLO, which states the number of envelopes that the peer needs.
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

// hurryShort makes all sessions that are waiting for envelopes retry immediately.
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
