package na

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A sessionState is the state of a session. A session is not reused after stateDown: the next
// operation with the same name creates a new one.
//
//	          pause expired          peer's HELLO
//	waiting ◄──────────────► dialing ─────────────► up ──────────► down
//	    └──────────────────────┴──── refused, timeout ──┼─────────► ▲
//	                                     LEAVE sent, or │ STAY      │ GOAWAY
//	                                                 leaving ───────┘
//	 (a peer that dials this side creates a session that is up at once, or takes over one that is waiting or dialing)
type sessionState uint8

const (
	stateWaiting sessionState = iota
	stateDialing
	stateUp
	stateLeaving // up, but LEAVE has been sent: new operations wait; see session_idle.go
	stateDown
)

// A session is the connection state between this context and one context of a peer. It is guarded
// by endpoint.mu. There may be many idle sessions, so state that only busy sessions need is kept in
// activeState.
type session struct {
	conn any // the carrier's connection

	*activeState // nil if the session is idle

	e       *endpoint
	route   *route // transport and carrier of the session
	name    string // name to dial
	host    string // host name that the peer's certificate must contain, or "" for the address itself
	id      uint64
	named   Addr            // peer's address, by which operations find the session; zero if the peer cannot be dialed
	choices *addressChoices // addresses of the peer's host if there are several, or nil
	peer    peerInfo        // from the peer's HELLO
	// the peer's proof, from this connection or, over the second transport, from the connection over
	// which the offer was exchanged; nil if none
	proof     *carrier.Proof
	why       *string      // reason for the choice of transport, or nil if the class has only one
	remote    string       // last result of remoteAddr
	label     *string      // label of the peer's addresses, set when the session comes up, or nil
	secret    frame.Secret // presented by the peer if it dials again after losing the session
	state     sessionState
	dialled   bool // this side dialed
	converts  bool // requests are sent in an older version of the message format; see Class.UseMessages
	forged    bool // source address of the peer's HELLO may be forged
	pending   bool // in endpoint.pending
	looping   bool // in selfCarrier.todo; guarded by that carrier's lock
	bulk      bool // lane carrier.Bulk is up
	creditDue bool // a CREDIT frame announcing freed envelopes must be sent
	asking    bool // askConfirmations has requested confirmation of the messages sent so far
	asked     bool // askConfirmations has requested confirmation of all messages

	short   bool // waiting for envelopes in the budget before dialing
	watched bool // in endpoint.holding

	confirmed bool // the peer has confirmed all messages
	silenced  bool // closing because the peer is silent

	retiring *retirement   // nil unless retiring
	succeeds *frame.Secret // secret of the retired session that this one replaces, or nil

	leaves bool // the peer has announced that it is closing

	// Sending.
	// maximum message length in bytes, the smaller of both sides' values; 0 until the session is up
	eager             int
	credits           uint32   // the peer's credit: cumulative number of guaranteed envelopes
	used              uint32   // cumulative number of used envelopes
	seq               uint64   // number of unexpected messages sent
	bodySeq           uint64   // number of bodies started
	streamSeq         uint64   // number of streams of sent requests
	shelved           int64    // bytes of streams on the carrier.Shelf
	unconfirmedOneWay []uint64 // sequence numbers of messages without a posted receive that the peer is not known to have received
	stalls            int64
	room              *peerRoom // nil if none
	probeSeq          uint64    // number of PROBEs sent
	highWater         int32

	// Numbers of expected messages: those sent, those sent before askConfirmations requested the
	// final confirmation, and those the peer is known to have received.
	sentExpected, lastExpected, takenExpected uint64

	// Receiving.
	held       int32 // number of messages not yet accepted
	heldMax    int32
	guaranteed uint32                // number of envelopes guaranteed to the peer, reserved in the budget
	released   uint32                // cumulative number of accepted messages
	advertised uint32                // highest credit sent to the peer
	batch      uint32                // number of freed envelopes that are announced in a separate frame
	reserved   int                   // guaranteed envelopes not yet returned to the budget
	received   uint64                // number of unexpected messages received
	lookedAt   uint64                // value of received at the last reportHeldLocked
	load       atomic.Int64          // see Envelope.Load
	guesses    map[[16]byte]struct{} // tokens for which requests were refused

	// Idle sessions.
	resting          *idleList // list of idle sessions that contains the session, or nil
	older, newer     *session  // neighbors in resting
	idleSince        time.Duration
	receivedExpected uint64        // number of expected messages received
	leftAt           uint64        // value of received when LEAVE was sent
	keepUntil        time.Duration // no LEAVE is sent before this time; set by a STAY
}

// A peerInfo holds the parts of a peer's HELLO that a session needs.
type peerInfo struct {
	features    uint64
	incarnation [16]byte
	host        string
	process     string
	envelopes   uint32
	context     uint16
	version     uint16 // frame version: the newest that both sides support
	// version of the headers in messages: the newest that both sides support, or 0 if either side has
	// none
	messages uint16
	secret   frame.Secret // presented to the peer if this side dials again after losing the session
}

// A lastSession holds what the next HELLO to a peer says about the previous session, which has been
// closed or is retiring.
type lastSession struct {
	secret  frame.Secret // the peer's secret
	dialled bool         // this side dialed
	retires bool
}

// maxProofs is the maximum number of entries in endpoint.proofs, which holds the last secrets of
// peers without a session.
const maxProofs = 1024

// Conn implements carrier.Session.
func (l *session) Conn() any { return l.conn }

// SetConn implements carrier.Session.
func (l *session) SetConn(conn any) { l.conn = conn }

// Name implements carrier.Session.
func (l *session) Name() string { return l.name }

// Target implements carrier.Session.
func (l *session) Target() int { return l.named.Target() }

// Up implements carrier.Session. e.mu must be held.
func (l *session) Up() bool { return l.state == stateUp || l.state == stateLeaving }

// Down implements carrier.Session. e.mu must be held.
func (l *session) Down() bool { return l.state == stateDown }

// addr returns the peer's address, bound to the session. Received messages have it as their sender.
func (l *session) addr() Addr { return l.named.Bound(l.id).Labeled(l.label) }

// findSessionLocked returns the session for address a, or nil if there is none. It caches the last
// result, because a map lookup hashes the whole address and consecutive operations often use the
// same peer. e.mu must be held.
func (e *endpoint) findSessionLocked(a Addr) *session {
	if e.found != nil && a == e.recent {
		return e.found
	}
	var l *session
	if s := a.Session(); s != 0 {
		l = e.sessions[s]
	} else {
		l = e.names[a.WithHost("")]
		if l == nil {
			l = e.upAtLocked(e.expandHost(a))
		}
	}
	e.recent, e.found = a, l
	return l
}

// sessionForLocked returns the session for the operation t, which is about to be started with peer
// a. If there is no session, it creates one and starts dialing. e.mu must be held.
func (e *endpoint) sessionForLocked(t ticket, a Addr) (*session, error) {
	if err := e.refusalOfLocked(t); err != nil {
		return nil, err
	}
	if l := e.findSessionLocked(a); l != nil {
		l.makeBusy()
		return l, l.checkHostLocked(a)
	}
	if s := a.Session(); s != 0 {
		if int(s&0xff) == e.id { // the low byte of a session's ID is its context; see addSession
			incarnation, ok := e.retired[s]
			if !ok {
				return nil, WithText(ErrPeerLost, "the session of the address has ended")
			}
			return e.sessionAgain(a.Named(), incarnation)
		}
		a = a.Named() // the session belongs to another context
		if l := e.names[a]; l != nil {
			l.makeBusy()
			return l, nil
		}
	}
	if strings.HasPrefix(a.Name(), privatePrefix(e.dom.own.scheme)) && a.Name() != e.dom.own.self {
		return e.callerSession(a)
	}
	return e.dialSession(a)
}

// callerSession returns the session for a, the name of a peer that dialed this side and cannot be
// dialed. Because such peers choose their own names, callerSession returns an error if two of them
// have chosen the same name.
func (e *endpoint) callerSession(a Addr) (found *session, err error) {
	for _, l := range e.sessions {
		switch {
		case l.named != a || !l.Up() || l.retiring != nil && l.hasSuccessorLocked():
		case found != nil:
			return nil, WithText(ErrDuplicate, fmt.Sprintf("two peers claim the name %v", a))
		default:
			found = l
		}
	}
	if found == nil {
		return nil, WithText(ErrUnreachable, fmt.Sprintf("%v does not listen and has no open session", a))
	}
	found.makeBusy()
	return found, nil
}

// dialSession creates a session with the peer at a and starts dialing it.
func (e *endpoint) dialSession(a Addr) (*session, error) {
	self := a.Name() == e.dom.own.self
	if !self {
		if a.Scheme() != e.dom.own.scheme {
			return nil, WithText(ErrUnsupported, fmt.Sprintf("address %v does not use transport %s", a, e.dom.own.scheme))
		}
		if err := e.dom.own.Names.Check(a.Name()); err != nil {
			return nil, err
		}
	}
	e.readClock()
	// The backoff limits the dial rate if a caller retries an unreachable peer in a loop.
	if w := e.waits[a]; w != nil && w.until > e.now {
		return nil, fmt.Errorf("%w; next dial in %v", w.why, (w.until - e.now).Round(time.Millisecond))
	}
	host := a.Host()
	a = a.WithHost("")
	l, err := e.newSession(a, 0, 0, !self)
	if err != nil {
		return nil, err
	}
	l.host = host
	if self {
		l.connectSelf()
		return l, nil
	}
	l.usePrimary()
	l.chooseAddresses(e.expandHost(a))
	l.dialled = true
	l.born, l.since = e.now, e.now
	if l.short {
		l.since += askAgain
	} else {
		l.connect()
	}
	if l.state == stateDown { // the dial failed immediately
		return nil, WithText(ErrUnreachable, "dial failed")
	}
	e.tickNoLaterThan(l.nextTick())
	return l, nil
}

// newSession creates a session and reserves envelopes for its peer out of the budget. If too few
// are left but an idle session is being closed to free some, newSession marks the new session as
// short if mayWait is true, and returns errMakingRoom otherwise. A short session is not dialed
// until its envelopes have been reserved.
func (e *endpoint) newSession(named Addr, need, want uint32, mayWait bool) (*session, error) {
	n, err := e.reserveForPeer(int(need), int(want))
	short := err == errMakingRoom && mayWait
	if err != nil && !short {
		return nil, err
	}
	l := e.addSession(named)
	if l.short = short; short {
		e.shorts++
	}
	l.setGuarantee(n)
	l.reserved = n
	e.dom.rand(l.secret[:])
	if !named.IsZero() && e.names[named] == nil {
		e.names[named] = l
	}
	return l, nil
}

// addSession creates a session, for which no envelopes are reserved yet, and adds it to the table
// of sessions.
func (e *endpoint) addSession(named Addr) *session {
	l := &session{e: e, named: named, id: e.dom.session.Add(1)<<8 | uint64(e.id)}
	e.found = nil
	e.sessions[l.id] = l
	l.makeBusy()
	return l
}

// setGuarantee sets the number of envelopes guaranteed to the peer to n. It must be called before
// the session is up.
func (l *session) setGuarantee(n int) {
	l.guaranteed, l.advertised, l.batch = uint32(n), uint32(n), l.e.dom.creditBatch(n)
}

// connect starts dialing, provided that the session's envelopes have been reserved.
func (l *session) connect() {
	if l.short && !l.reserveAgain() {
		return
	}
	l.state = stateDialing
	if l.choices.isUndecided() {
		l.startRace()
		return
	}
	l.route.carrier.Dial(l)
}

// startUp completes the handshake, in which the peer has sent g, and changes l to stateUp.
func (l *session) startUp(g frame.Greeting) {
	if l.activeState != nil && l.only != ([16]byte{}) && l.only != g.Incarnation {
		l.endAll(WithText(ErrPeerLost, "the address is bound to a session that ended when the peer restarted"), false)
	}
	l.state = stateUp
	l.peer = peerInfo{
		features: g.Features, incarnation: g.Incarnation, host: g.Host, process: g.Process, envelopes: g.Envelopes, context: g.Context,
		secret: g.Secret,
	}
	l.peer.version, _ = frame.Versions().Common(g.Versions)
	if ours := l.e.dom.cls.messages.Range; g.Messages != (frame.Range{}) {
		l.peer.messages, _ = ours.Common(g.Messages)
		l.converts = l.peer.messages < ours.Newest && l.peer.messages != 0
	}
	if l.refusal = nil; !l.onSecondary() {
		l.proof = proofOf(l.conn)
	}
	l.setLabel()
	if l.e.secondRoute() != nil {
		why := l.routeReason(&g)
		l.why = &why
	}
	l.eager = min(l.e.dom.cfg.Eager, int(g.Eager))
	l.credits = g.Envelopes // sendWaiting then sends that many waiting messages
	l.noteAlive()
	l.watchExpiryLocked()
	l.sinceHeard, l.sinceMessage = 0, 0
	delete(l.e.waits, l.wantedAddr())
	delete(l.e.proofs, l.named)
	l.sendWaiting()
	l.beginLater()
	l.markPending()
}

// Fail implements carrier.Session. It closes the session, or the attempt to establish one, along
// with its connection, and completes every operation with an error based on err. e.mu must be held.
func (l *session) Fail(err error) { l.failWith(err) }

// failWith implements Fail. If l is being dialed and err permits another attempt, failWith
// schedules one instead of closing the session.
func (l *session) failWith(err error) {
	if err == nil {
		err = brokenContract(l.route.scheme, "session ended without an error")
	}
	switch {
	case l.state == stateDown:
		return
	case l.activeState != nil && l.writing:
		// Pull is using the message's operation. It fails the session afterward.
		l.writeErr = err
	case l.leavesQuietly(err):
		l.endIdle()
	case l.Up():
		code := CodeOf(err)
		if code == ErrProtocol || code == ErrChecksum {
			l.e.stats.Violations++ // the peer or the network is broken
		}
		if code != ErrPeerLost { // callers need a single code for all lost sessions
			err = WithText(ErrPeerLost, "peer lost: "+err.Error())
		}
		l.close(err, code, err.Error(), true)
	case CodeOf(err) == ErrDuplicate && !l.e.shut:
		// The peer is dialing too, and its connection is kept. Dial again in case it does not arrive.
		l.dialAgain(err, backoffFirst*5)
	case l.state == stateDialing && l.onSecondary() && !l.e.shut:
		code := CodeOf(err)
		l.fallBackToPrimary(err, code == ErrUnreachable || code == ErrPeerLost || code == ErrNoEntry)
	case (CodeOf(err) == ErrPeerLost || CodeOf(err) == ErrAgain) && l.state == stateDialing && !l.e.shut:
		// The connection was accepted and closed before a HELLO. Many peers may be connecting at once,
		// the peer may be starting, or one of its idle sessions may have to be closed first.
		l.dialAgain(err, l.e.lengthenBackoff(l.wantedAddr(), err))
	default:
		_, other := errors.AsType[otherHostError](err)
		if CodeOf(err) != ErrUnreachable { // an error has one code, so its text holds the reason
			err = WithText(ErrUnreachable, ErrUnreachable.Error()+": "+err.Error())
		}
		if !other { // another host of the same address may be dialed immediately
			l.e.lengthenBackoff(l.wantedAddr(), err)
		}
		l.close(err, OK, "", false)
	}
}

// close closes l and its connection after sending code and text to the peer, and completes every
// operation of l with err. If fault is true, OnFault reports the loss of the session.
func (l *session) close(err error, code Code, text string, fault bool) {
	if l.state == stateDown {
		return
	}
	wasUp := l.Up()
	// A session whose HELLO may have been forged counts as lost only if an operation was waiting.
	lost := wasUp && fault && (!l.forged || l.activeState != nil && l.waiting > 0)
	l.cancelLeave()
	l.state = stateDown
	e := l.e
	// The bye contains the number of the first message that was not received. The peer completes that
	// message and all later ones with the fate NotRun.
	next := l.received + 1
	// Messages that no receive will consume count as not received.
	for e.shut && l.activeState != nil && l.destroyMessage(next-1) {
		next--
	}
	l.cutConnection(frame.Bye{Code: code, Next: next, Text: text})
	e.found = nil
	l.resting.remove(l)
	if l.short {
		l.short = false
		e.shorts--
	}
	delete(e.sessions, l.id)
	if e.names[l.named] == l {
		delete(e.names, l.named)
		if wasUp {
			e.rememberSession(l.named, lastSession{secret: l.peer.secret, dialled: l.dialled})
		}
	}
	l.forgetChoices()
	l.forgetSuccession()
	if wasUp && !e.shut {
		l.noteLost()
	}
	if l.activeState != nil {
		l.endAll(err, wasUp)
	}
	l.forgetProbe()
	l.returnReserve()
	if lost {
		if l.leaves {
			e.stats.PeersLeft++
		} else {
			e.stats.PeersLost++
		}
		e.nctx.reportLost(l.addr(), err)
	}
}

// rememberSession records s, so that the next HELLO to the named peer proves that this process had
// the previous session. Without the proof, the peer would have to probe its old session before
// accepting a new one.
func (e *endpoint) rememberSession(name Addr, s lastSession) {
	if len(e.proofs) >= maxProofs {
		clear(e.proofs)
	}
	e.proofs[name] = s
}

// endAll completes every operation of the session with err. If the peer has reported which messages
// it did not accept, then for those messages a withdrawal succeeds and a send fails with the fate
// NotRun. Results of receives contain the number of the first such message.
func (l *session) endAll(err error, wasUp bool) {
	addr := Addr{}
	if l.firstNotTaken != 0 {
		addr = l.addr()
	}
	notRun := Result{Err: err, Fate: NotRun}
	maybe := Result{Err: err, Fate: MaybeRan, Addr: addr, ID: l.firstNotTaken}
	if !wasUp {
		maybe = notRun
	}
	for _, q := range []struct {
		list     *opList
		r        Result
		notTaken *Result // result for a message that the peer has not accepted
	}{{list: &l.msgs, r: notRun}, {list: &l.bodies, r: notRun}, {list: &l.queued, r: notRun}, {list: &l.expedited, r: notRun}, {list: &l.queuedMoves, r: notRun},
		{list: &l.probes.waiting, r: notRun}, {list: &l.probes.asked, r: notRun}, {list: &l.inFlight, r: maybe},
		{&l.recvs, maybe, &notRun}, {list: &l.leases, r: maybe}, {&l.heldLast, maybe, &notRun},
		{&l.withdraws.waiting, maybe, &Result{Addr: addr}}, {&l.withdraws.asked, maybe, &Result{Addr: addr}}} {
		for o := q.list.head; o != nil; o = q.list.head {
			r := q.r
			if q.notTaken != nil && l.firstNotTaken != 0 && o.id >= l.firstNotTaken {
				r = *q.notTaken
				r.ID = o.id
			}
			if o.kind == kindCall && o.id != 0 {
				r.Addr, r.ID = l.addr(), o.id
			}
			r.N = o.movedBytes()
			l.e.finishOpLocked(o, r)
		}
	}
	for i := range l.flows {
		endSources(&l.flows[i].sources)
		endSources(&l.flows[i].bodies)
	}
	l.endBodies()
	l.endStreams(err)
	l.served, l.sinks, l.flows = nil, nil, [carrier.Lanes]laneQueue{}
}

// returnReserve returns the session's envelopes and room to the budget. It does nothing unless the
// session is down and all of its messages have been accepted or freed.
func (l *session) returnReserve() {
	if l.state == stateDown && l.held == 0 && l.reserved > 0 {
		l.e.dom.returnEnvelopes(l.reserved)
		l.reserved = 0
		l.e.hurryShort()
	}
	if r := l.room; l.state == stateDown && r != nil && r.held == 0 && r.reserved > 0 {
		l.e.dom.unreserveRoom(r.reserved)
		r.reserved = 0
	}
}

// Refused implements carrier.Session. The carrier calls it when the peer has closed or refused the
// session by sending bye. e.mu must be held.
func (l *session) Refused(bye frame.Bye) {
	if l.state == stateLeaving && bye.Code == byeIdle {
		l.endByAgreement()
		return
	}
	if l.Up() {
		l.makeBusy()
		l.firstNotTaken, l.leaves = bye.Next, bye.Code == ErrClosed
		l.failWith(WithText(ErrPeerLost, "session closed by peer: "+bye.Text))
		return
	}
	if bye.Offer != nil {
		if l.followOffer(bye.Offer) {
			return
		}
		bye = frame.Bye{Code: ErrProtocol, Text: "offered a transport that was not requested"}
	}
	l.failWith(refusalError(bye))
}

// refusalError returns the error with which operations fail if the peer has refused the session
// with bye.
func refusalError(bye frame.Bye) error {
	code := bye.Code
	// In these cases the code would describe this process rather than the peer.
	if code == OK || code == ErrCanceled || code == ErrTimeout || code == ErrClosed {
		code = ErrUnreachable
	}
	return WithText(code, "refused by peer: "+bye.Text)
}

// sortedSessions returns all sessions of e in the order in which they were created.
func (e *endpoint) sortedSessions() []*session {
	all := make([]*session, 0, len(e.sessions))
	for _, l := range e.sessions {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *session) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}
