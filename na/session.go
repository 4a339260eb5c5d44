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

// The life of a session. It is never used again: the next operation to the same name makes a new one.
//
//	          pause over             peer's HELLO
//	waiting ◄──────────────► dialing ─────────────► up ──────────► down
//	    └──────────────────────┴──── refused, timeout ──┼─────────► ▲
//	                                     LEAVE sent, or │ STAY      │ GOAWAY
//	                                                 leaving ───────┘
//	 (a peer that connects to us makes a session that is up at once, or takes over one that waits or dials)
type sessionState uint8

const (
	stateWaiting sessionState = iota
	stateDialing
	stateUp
	stateLeaving // up, and asked to end: what begins waits. See idle.go
	stateDown
)

// A session is what this context shares with one context of one peer. endpoint.mu guards it. There may be many that are idle,
// so what they do not need is in active.
type session struct {
	conn any // the carrier's: what it knows of the connection

	*activeState // nil while nothing goes on

	e         *endpoint
	route     *route // its transport and carrier
	name      string // to dial
	host      string // that the peer there must prove to be; empty for the address itself
	id        uint64
	named     Addr            // how operations find it; zero for a peer that cannot be dialled
	choices   *addressChoices // the addresses of its host, if there are several; else nil
	peer      peerInfo        // from the HELLO on
	proof     *carrier.Proof  // what Conn, or that by which the offer was made, has proven of the peer, likewise; nil for nothing
	why       *string         // the transport is this one, of two; nil for one
	remote    string          // what remoteAddr has returned last
	label     *string         // of its addresses, once it is up; nil for none
	secret    frame.Secret    // what the peer shows when it has lost the session and connects anew
	state     sessionState
	dialled   bool // by us
	converts  bool // requests leave in an older version than the newest one: see Class.UseMessages
	forged    bool // perhaps: the peer has not shown that it receives where its HELLO came from
	pending   bool
	looping   bool // in self.todo, whose lock guards this
	bulk      bool // carrier.Bulk is up
	creditDue bool // the peer should hear of freed envelopes
	asking    bool // by Confirm, for a sign of what has left so far
	asked     bool // by Confirm, for a sign that the peer has taken everything

	short   bool // waits for envelopes in the budget before it dials
	watched bool // in endpoint.holding

	confirmed bool // it has given it
	silenced  bool // the session ends because the peer is silent

	retiring *retirement   // nil unless it does
	succeeds *frame.Secret // of the session that retires, in whose place the peer has made this one; nil: none

	leaves bool // the peer has said that it closes

	// Sending.
	eager             int      // bytes of one message: the smaller of both sides; 0 until up
	credits           uint32   // envelopes the peer has ever guaranteed
	used              uint32   // envelopes we have used
	seq               uint64   // unexpected messages that have left
	bodySeq           uint64   // bodies that have begun to leave
	streamSeq         uint64   // streams of requests that have left
	shelved           int64    // bytes of streams in its carrier.Shelf
	unconfirmedOneWay []uint64 // those that no receive was posted for, and that the peer is not known to have taken
	stalls            int64
	room              *peerRoom // nil without
	probeSeq          uint64    // PROBEs that have left
	highWater         int32

	// Expected messages that have left; when Confirm asked; that the peer is known to have taken.
	sentExpected, lastExpected, takenExpected uint64

	// Receiving.
	held       int32 // envelopes that are not accepted
	heldMax    int32
	guaranteed uint32 // envelopes guaranteed to the peer at a time (reserved in the budget)
	released   uint32
	advertised uint32                // highest credit that the peer may have seen
	batch      uint32                // freed envelopes that make a frame
	reserved   int                   // of those guaranteed, not yet returned to the budget
	received   uint64                // unexpected messages
	lookedAt   uint64                // received when reportHeld looked last
	load       atomic.Int64          // of the layer above na
	guesses    map[[16]byte]struct{} // tokens for which requests were refused

	// While it is idle, and leaves.
	resting          *idleList // the list of idle sessions that it is in; nil otherwise
	older, newer     *session  // in that
	idleSince        time.Duration
	receivedExpected uint64        // expected messages
	leftAt           uint64        // received when LEAVE was sent
	keepUntil        time.Duration // its peer wants it, and is not asked again before
}

// A peerInfo is what a session keeps of the HELLO.
type peerInfo struct {
	features    uint64
	incarnation [16]byte
	host        string
	process     string
	envelopes   uint32
	context     uint16
	version     uint16       // of frames: the newest that both sides speak
	messages    uint16       // likewise of the headers in messages; 0 when one side has none
	secret      frame.Secret // what we show, likewise
}

// A lastSession is what is kept of a session that has ended, or retires.
type lastSession struct {
	secret  frame.Secret // of the peer
	dialled bool         // by us
	retires bool
}

// mostProofs bounds the peers whose last secret is known though no session is up.
const mostProofs = 1024

// Conn implements carrier.Session.
func (l *session) Conn() any { return l.conn }

// SetConn implements carrier.Session.
func (l *session) SetConn(conn any) { l.conn = conn }

// Name returns the canonical name to dial, of the carrier's transport.
func (l *session) Name() string { return l.name }

// Target returns the context id that is wanted.
func (l *session) Target() int { return l.named.Target() }

// Up reports whether the session is established. Locked.
func (l *session) Up() bool { return l.state == stateUp || l.state == stateLeaving }

// Down reports whether the session has ended. Locked.
func (l *session) Down() bool { return l.state == stateDown }

// addr is the peer's address as receivers of its messages see it, bound to the session.
func (l *session) addr() Addr { return l.named.Bound(l.id).Labeled(l.label) }

// findSession returns the session of an address, or nil. Locked.
func (e *endpoint) findSession(a Addr) *session {
	if e.found != nil && a == e.recent { // most programs talk to one peer for a while, and a map has to hash the whole address
		return e.found
	}
	var l *session
	if s := a.Session(); s != 0 {
		l = e.sessions[s]
	} else {
		l = e.names[a.WithHost("")]
		if l == nil {
			l = e.upAt(e.expandHost(a))
		}
	}
	e.recent, e.found = a, l
	return l
}

// sessionFor returns the session of an operation that is being started, and dials if there is none. Locked.
func (e *endpoint) sessionFor(t ticket, a Addr) (*session, error) {
	if err := e.refusalOf(t); err != nil {
		return nil, err
	}
	if l := e.findSession(a); l != nil {
		l.makeBusy()
		return l, l.mustBe(a)
	}
	if s := a.Session(); s != 0 {
		if int(s&0xff) == e.id { // the low byte of a session is the context that made it: see addSession
			incarnation, ok := e.retired[s]
			if !ok {
				return nil, WithText(ErrPeerLost, "the session that the address was bound to has ended")
			}
			return e.sessionAgain(a.Named(), incarnation)
		}
		a = a.Named() // it came in on another context: that session is not ours
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

// callerSession returns the session of a peer that has dialled us and that nobody can dial. Its name is what it says itself, so if two
// say the same, neither is taken.
func (e *endpoint) callerSession(a Addr) (found *session, err error) {
	for _, l := range e.sessions {
		switch {
		case l.named != a || !l.Up() || l.retiring != nil && l.hasSuccessor():
		case found != nil:
			return nil, WithText(ErrDuplicate, fmt.Sprintf("two peers say that they are %v", a))
		default:
			found = l
		}
	}
	if found == nil {
		return nil, WithText(ErrUnreachable, fmt.Sprintf("%v does not listen, and has no session here", a))
	}
	found.makeBusy()
	return found, nil
}

// dialSession makes a session to a named address.
func (e *endpoint) dialSession(a Addr) (*session, error) {
	self := a.Name() == e.dom.own.self
	if !self {
		if a.Scheme() != e.dom.own.scheme {
			return nil, WithText(ErrUnsupported, fmt.Sprintf("address %v is not of transport %s", a, e.dom.own.scheme))
		}
		if err := e.dom.own.Names.Check(a.Name()); err != nil {
			return nil, err
		}
	}
	e.readClock()
	if w := e.waits[a]; w != nil && w.until > e.now { // a loop of calls to a dead peer is no storm of connections
		return nil, fmt.Errorf("%w (not dialed again for another %v)", w.why, (w.until - e.now).Round(time.Millisecond))
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
	if l.state == stateDown { // the carrier knew at once
		return nil, WithText(ErrUnreachable, "the address cannot be reached")
	}
	e.tickNoLaterThan(l.nextTick())
	return l, nil
}

// newSession makes a session with its envelopes reserved. If they are to be had as soon as an idle session has ended, one that may wait for
// that is short.
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

// setGuarantee sets how many envelopes the peer is guaranteed, before the session is up.
func (l *session) setGuarantee(n int) {
	l.guaranteed, l.advertised, l.batch = uint32(n), uint32(n), l.e.dom.creditBatch(n)
}

// connect has the carrier connect, once the envelopes of the session are reserved.
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

// startUp starts the session.
func (l *session) startUp(g frame.Greeting) {
	if l.activeState != nil && l.only != ([16]byte{}) && l.only != g.Incarnation {
		l.endAll(WithText(ErrPeerLost, "the peer has restarted since the session that the address was bound to"), false)
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
	l.credits = g.Envelopes // what waited before may leave now, as far as the peer has guaranteed envelopes
	l.noteAlive()
	l.watchExpiry()
	l.sinceHeard, l.sinceMessage = 0, 0
	delete(l.e.waits, l.wantedAddr())
	delete(l.e.proofs, l.named)
	l.sendWaiting()
	l.beginLater()
	l.markPending()
}

// Fail ends the session, or the attempt to make one, because of err: the connection is cut and every operation ends.
// Locked.
func (l *session) Fail(err error) { l.failWith(err) }

func (l *session) failWith(err error) {
	if err == nil {
		err = brokenContract(l.route.scheme, "it ended a session without an error")
	}
	switch {
	case l.state == stateDown:
		return
	case l.activeState != nil && l.writing: // Pull goes on with the operation of the message, and then fails
		l.writeErr = err
	case l.leavesQuietly(err):
		l.endIdle()
	case l.Up():
		code := CodeOf(err)
		if code == ErrProtocol || code == ErrChecksum {
			l.e.stats.Violations++ // the peer, or what is between, is broken: somebody should look at it
		}
		if code != ErrPeerLost { // whatever it was, what the caller can do about it is the same
			err = WithText(ErrPeerLost, "peer lost: "+err.Error())
		}
		l.close(err, code, err.Error(), true)
	case CodeOf(err) == ErrDuplicate && !l.e.shut:
		// The peer says that it dials too, and that its connection stays. If it does not come, dial again.
		l.dialAgain(err, backoffFirst*5)
	case l.state == stateDialing && l.onSecondary() && !l.e.shut:
		l.fallBackToPrimary(err)
	case (CodeOf(err) == ErrPeerLost || CodeOf(err) == ErrAgain) && l.state == stateDialing && !l.e.shut:
		// Somebody accepted, and ended the connection before an answer: many connect at once, or the peer is just starting, or an idle
		// session has to end there first.
		l.dialAgain(err, l.e.lengthenBackoff(l.wantedAddr(), err))
	default:
		_, other := errors.AsType[otherHostError](err)
		if CodeOf(err) != ErrUnreachable { // the reason is in the text: an error has one code
			err = WithText(ErrUnreachable, ErrUnreachable.Error()+": "+err.Error())
		}
		if !other { // by its own name the peer may be reached at once
			l.e.lengthenBackoff(l.wantedAddr(), err)
		}
		l.close(err, OK, "", false)
	}
}

// close ends l: cuts the connection, for which the peer is told code and text, and finishes every operation with err.
func (l *session) close(err error, code Code, text string, fault bool) {
	if l.state == stateDown {
		return
	}
	wasUp := l.Up()
	lost := wasUp && fault && (!l.forged || l.activeState != nil && l.waiting > 0) // else there may have been no peer
	l.cancelLeave()
	l.state = stateDown
	e := l.e
	// Our bye says which message would have been the next: the peer may tell its callers that those from it on have not run.
	next := l.received + 1
	for e.shut && l.activeState != nil && l.destroyMessage(next-1) { // nobody will accept them
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

// rememberSession keeps what the next HELLO to a name shows. Without it the peer asks whether its old session lives, and that takes longer.
func (e *endpoint) rememberSession(name Addr, s lastSession) {
	if len(e.proofs) >= mostProofs {
		clear(e.proofs)
	}
	e.proofs[name] = s
}

// endAll ends everything that goes on. If the peer has said which of our messages it has not taken, a withdraw of one of them has
// come true, and receives tell the layer above.
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
		notTaken *Result // of a message that the peer has not taken
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
			l.e.finishOp(o, r)
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

// returnReserve returns the reserve to the budget once the session is over and its envelopes have been dealt with.
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

// Refused is called when the peer ends the session, or refuses it, and says why. Locked.
func (l *session) Refused(bye frame.Bye) {
	if l.state == stateLeaving && bye.Code == byeIdle {
		l.endByAgreement()
		return
	}
	if l.Up() {
		l.makeBusy()
		l.firstNotTaken, l.leaves = bye.Next, bye.Code == ErrClosed
		l.failWith(WithText(ErrPeerLost, "the peer ended the session: "+bye.Text))
		return
	}
	if bye.Offer != nil {
		if l.followOffer(bye.Offer) {
			return
		}
		bye = frame.Bye{Code: ErrProtocol, Text: "it offers another transport, for which nobody has asked"}
	}
	l.failWith(refusalError(bye))
}

// refusalError is the error of a peer that refuses a session.
func refusalError(bye frame.Bye) error {
	code := bye.Code
	if code == OK || code == ErrCanceled || code == ErrTimeout || code == ErrClosed { // only this process can say so of its operations
		code = ErrUnreachable
	}
	return WithText(code, "the peer refused: "+bye.Text)
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
