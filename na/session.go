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
// operation with the same name makes a new one.
//
//	          pause over             peer's HELLO
//	waiting ◄──────────────► dialing ─────────────► up ──────────► down
//	    └──────────────────────┴──── refused, timeout ──┼─────────► ▲
//	                                     LEAVE sent, or │ STAY      │ GOAWAY
//	                                                 leaving ───────┘
//	 (a peer that dials this side makes a session that is up at once, or takes over one that is waiting or dialing)
type sessionState uint8

const (
	stateWaiting sessionState = iota
	stateDialing
	stateUp
	stateLeaving // up, but LEAVE was sent: operations that start now wait; see session_idle.go
	stateDown
)

// A session is the state that this context shares with one context of one peer. endpoint.mu guards
// it. There may be many idle sessions, so the state that only busy ones need is in activeState.
type session struct {
	conn any // the carrier's connection

	*activeState // nil: the session is idle

	e       *endpoint
	route   *route // transport and carrier of this session
	name    string // the name to dial
	host    string // the host name that the peer's certificate must contain; "": the address itself
	id      uint64
	named   Addr            // address for lookups of this session; zero if the peer cannot be dialed
	choices *addressChoices // addresses of the peer's host if there are several, else nil
	peer    peerInfo        // set by the peer's HELLO
	// the peer's proof, on this connection or on that of the offer; nil if none
	proof     *carrier.Proof
	why       *string      // reason for the choice of transport; nil if the class has only one
	remote    string       // the last result of remoteAddr
	label     *string      // label of the peer's addresses, set when up, or nil
	secret    frame.Secret // presented by the peer if it dials again after losing the session
	state     sessionState
	dialled   bool // this side has dialed
	converts  bool // requests are sent in an older version than the newest one: see Class.UseMessages
	forged    bool // the source address of the peer's HELLO may be forged
	pending   bool // it is in endpoint.pending
	looping   bool // it is in selfCarrier.todo, whose lock guards this field
	bulk      bool // the flow carrier.Bulk is up
	creditDue bool // a frame that announces freed envelopes is due
	asking    bool // askConfirmations has asked for a confirmation of the messages sent so far
	asked     bool // askConfirmations has asked for the confirmation of all messages

	short   bool // waits for envelopes in the budget before the dial
	watched bool // it is in endpoint.holding

	confirmed bool // the peer has confirmed all messages
	silenced  bool // ends because the peer is silent

	retiring *retirement   // nil unless retiring
	succeeds *frame.Secret // secret of the retired session that this one replaces, or nil

	leaves bool // the peer has announced its close

	// Sending.
	// the longest message in bytes: the smaller value of both sides; 0 until it is up
	eager             int
	credits           uint32   // the peer's credit: the cumulative number of guaranteed envelopes
	used              uint32   // the cumulative number of used envelopes
	seq               uint64   // the number of unexpected messages sent
	bodySeq           uint64   // the number of bodies started
	streamSeq         uint64   // the number of streams of sent requests
	shelved           int64    // bytes of streams on the carrier.Shelf
	unconfirmedOneWay []uint64 // messages without a posted receive that the peer is not known to have received
	stalls            int64
	room              *peerRoom // nil if none
	probeSeq          uint64    // the number of PROBEs sent
	highWater         int32

	// The number of expected messages: sent; sent when askConfirmations has asked; known to be
	// received by the peer.
	sentExpected, lastExpected, takenExpected uint64

	// Receiving.
	held       int32 // messages that were not accepted
	heldMax    int32
	guaranteed uint32                // envelopes guaranteed to the peer, which are reserved in the budget
	released   uint32                // the cumulative number of accepted messages
	advertised uint32                // the highest credit that was sent to the peer
	batch      uint32                // the number of freed envelopes that are announced in a frame of their own
	reserved   int                   // guaranteed envelopes that were not returned to the budget
	received   uint64                // the number of unexpected messages received
	lookedAt   uint64                // the value of received at the last reportHeldLocked
	load       atomic.Int64          // Envelope.Load
	guesses    map[[16]byte]struct{} // the tokens for which requests were refused

	// Idle sessions.
	resting          *idleList // the list of idle sessions that it is in, or nil
	older, newer     *session  // in resting
	idleSince        time.Duration
	receivedExpected uint64        // the number of expected messages received
	leftAt           uint64        // the value of received when LEAVE was sent
	keepUntil        time.Duration // no LEAVE is sent before this time, after a STAY
}

// A peerInfo holds the parts of the peer's HELLO that a session needs.
type peerInfo struct {
	features    uint64
	incarnation [16]byte
	host        string
	process     string
	envelopes   uint32
	context     uint16
	version     uint16 // the version of frames: the newest that both sides speak
	// the version of the headers in messages: the newest that both sides speak; 0: one side has
	// none
	messages uint16
	secret   frame.Secret // presented to the peer if this side dials again after losing the session
}

// A lastSession records a session that has ended or retires.
type lastSession struct {
	secret  frame.Secret // the peer's secret
	dialled bool         // this side had dialed
	retires bool
}

// maxProofs limits the peers without a session whose last secret is remembered.
const maxProofs = 1024

// Conn implements carrier.Session.
func (l *session) Conn() any { return l.conn }

// SetConn implements carrier.Session.
func (l *session) SetConn(conn any) { l.conn = conn }

// Name implements carrier.Session.
func (l *session) Name() string { return l.name }

// Target implements carrier.Session.
func (l *session) Target() int { return l.named.Target() }

// Up implements carrier.Session. The caller holds e.mu.
func (l *session) Up() bool { return l.state == stateUp || l.state == stateLeaving }

// Down implements carrier.Session. The caller holds e.mu.
func (l *session) Down() bool { return l.state == stateDown }

// addr returns the peer's address bound to the session, as receivers of its messages see it.
func (l *session) addr() Addr { return l.named.Bound(l.id).Labeled(l.label) }

// findSessionLocked returns the session of an address, or nil. It remembers the last result,
// because most programs use one peer for a while and a map has to hash the whole address.
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

// sessionForLocked returns the session for an operation that is being started. It dials if there is
// none.
func (e *endpoint) sessionForLocked(t ticket, a Addr) (*session, error) {
	if err := e.refusalOfLocked(t); err != nil {
		return nil, err
	}
	if l := e.findSessionLocked(a); l != nil {
		l.makeBusy()
		return l, l.checkHostLocked(a)
	}
	if s := a.Session(); s != 0 {
		if int(s&0xff) == e.id { // the low byte of a session's ID is its context: see addSession
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

// callerSession returns the session of a peer that has dialed this side and cannot be dialed. The
// name is chosen by the peer, so two peers with one name are an error.
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

// dialSession makes a session to a named address.
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
	// limits the dials of a loop of calls to a dead peer
	if w := e.waits[a]; w != nil && w.until > e.now {
		return nil, fmt.Errorf("%w (next dial in %v)", w.why, (w.until - e.now).Round(time.Millisecond))
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
	if l.state == stateDown { // the dial has failed at once
		return nil, WithText(ErrUnreachable, "dial failed")
	}
	e.tickNoLaterThan(l.nextTick())
	return l, nil
}

// newSession makes a session and reserves its envelopes. If the budget is short, an idle session is
// ending, and mayWait is true, the session is marked short and waits for its envelopes.
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

// addSession adds a session without envelopes.
func (e *endpoint) addSession(named Addr) *session {
	l := &session{e: e, named: named, id: e.dom.session.Add(1)<<8 | uint64(e.id)}
	e.found = nil
	e.sessions[l.id] = l
	l.makeBusy()
	return l
}

// setGuarantee sets the number of envelopes that the peer is guaranteed, before the session is up.
func (l *session) setGuarantee(n int) {
	l.guaranteed, l.advertised, l.batch = uint32(n), uint32(n), l.e.dom.creditBatch(n)
}

// connect starts the dial, if the envelopes of the session are reserved.
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

// startUp completes the handshake with the peer's HELLO g and sets stateUp.
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
	l.credits = g.Envelopes // sendWaiting sends as many waiting messages
	l.noteAlive()
	l.watchExpiryLocked()
	l.sinceHeard, l.sinceMessage = 0, 0
	delete(l.e.waits, l.wantedAddr())
	delete(l.e.proofs, l.named)
	l.sendWaiting()
	l.beginLater()
	l.markPending()
}

// Fail implements carrier.Session. It ends the session, or the attempt to make one, with err: it
// closes the connection and ends every operation. The caller holds e.mu.
func (l *session) Fail(err error) { l.failWith(err) }

// failWith implements Fail. While dialing it may dial again instead, depending on err.
func (l *session) failWith(err error) {
	if err == nil {
		err = brokenContract(l.route.scheme, "session ended without an error")
	}
	switch {
	case l.state == stateDown:
		return
	case l.activeState != nil && l.writing:
		// Pull uses the operation of the message; it fails the session after that
		l.writeErr = err
	case l.leavesQuietly(err):
		l.endIdle()
	case l.Up():
		code := CodeOf(err)
		if code == ErrProtocol || code == ErrChecksum {
			l.e.stats.Violations++ // the peer or the network is broken
		}
		if code != ErrPeerLost { // callers need one code for all lost sessions
			err = WithText(ErrPeerLost, "peer lost: "+err.Error())
		}
		l.close(err, code, err.Error(), true)
	case CodeOf(err) == ErrDuplicate && !l.e.shut:
		// The peer dials too, and its connection is kept. Dial again in case it does not arrive.
		l.dialAgain(err, backoffFirst*5)
	case l.state == stateDialing && l.onSecondary() && !l.e.shut:
		l.fallBackToPrimary(err)
	case (CodeOf(err) == ErrPeerLost || CodeOf(err) == ErrAgain) && l.state == stateDialing && !l.e.shut:
		// The connection was accepted and closed before a HELLO: many peers connect at once, or the
		// peer is just starting, or one of its idle sessions has to end first.
		l.dialAgain(err, l.e.lengthenBackoff(l.wantedAddr(), err))
	default:
		_, other := errors.AsType[otherHostError](err)
		if CodeOf(err) != ErrUnreachable { // an error has one code, so its text has the reason
			err = WithText(ErrUnreachable, ErrUnreachable.Error()+": "+err.Error())
		}
		if !other { // another host of the same address may be dialed at once
			l.e.lengthenBackoff(l.wantedAddr(), err)
		}
		l.close(err, OK, "", false)
	}
}

// close ends l. It closes the connection, with code and text for the peer, and ends every operation
// with err. If fault is true OnFault reports the loss.
func (l *session) close(err error, code Code, text string, fault bool) {
	if l.state == stateDown {
		return
	}
	wasUp := l.Up()
	// otherwise the HELLO may have been forged
	lost := wasUp && fault && (!l.forged || l.activeState != nil && l.waiting > 0)
	l.cancelLeave()
	l.state = stateDown
	e := l.e
	// The bye has the number of the first message that was not received: the peer reports NotRun
	// for it and later ones.
	next := l.received + 1
	// messages that no receive will take count as not received
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

// rememberSession records the secret for the next HELLO to a name. Without it the peer has to probe
// its old session first.
func (e *endpoint) rememberSession(name Addr, s lastSession) {
	if len(e.proofs) >= maxProofs {
		clear(e.proofs)
	}
	e.proofs[name] = s
}

// endAll ends every operation of the session. If the peer has reported which messages it has not
// accepted, a withdraw of one of them succeeds, a send of one ends with NotRun, and the results of
// receives have its number.
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
		notTaken *Result // result of a message that the peer has not accepted
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

// returnReserve returns the envelopes and the room to the budget, once the session has ended and
// its messages were accepted or freed.
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

// Refused implements carrier.Session. The carrier calls it when the peer has ended or refused the
// session with a bye. The caller holds e.mu.
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

// refusalError returns the error for a session that the peer has refused.
func refusalError(bye frame.Bye) error {
	code := bye.Code
	// in these cases the code would describe this process, not the peer
	if code == OK || code == ErrCanceled || code == ErrTimeout || code == ErrClosed {
		code = ErrUnreachable
	}
	return WithText(code, "refused by peer: "+bye.Text)
}

// sortedSessions returns the sessions in the order in which they began.
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
