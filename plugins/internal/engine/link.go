package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// The life of a Link. A link is never used again: the next operation to the same name makes a new one.
//
//	          backoff over           peer's HELLO
//	waiting ───────────────► dialing ─────────────► up ──────────► down
//	    └──────────────────────┴──── refused, timeout ────────────►
//	 (a peer that connects to us makes a link that is up at once, or takes over one that waits or dials)
type linkState uint8

const (
	linkWaiting linkState = iota
	linkDialing
	linkUp
	linkDown
)

// A Link is a session between this context and one context of one peer. Endpoint.mu guards it.
type Link struct {
	// Conn is the carrier's: what it knows of the connection.
	Conn any

	// Proof is what Conn has proven of the peer, from the HELLO on. Host and Incarnation in it do not count.
	Proof na.Identity

	e       *Endpoint
	carrier Carrier
	state   linkState
	session uint64
	named   na.Addr // how operations find it; zero for a peer that cannot be dialled
	peer    frame.Greeting
	dialled bool          // by us
	born    time.Duration // when the first operation wanted it; later by what this process was frozen since
	since   time.Duration // when dialing began, or begins (waiting)
	spared  bool          // from the end of its time, after a freeze of this process
	kicked  bool
	looping bool // in loop.todo, whose lock guards this
	eager   int  // bytes of one message: the smaller of both sides; 0 until up

	// Liveness.
	waiting int // operations that wait for the peer
	busy    bool
	doubted bool          // the peer may have lost the session: its silence counts though no operation waits
	heard   bool          // a message, or bulk data, arrived since the last tick
	bytes   bool          // bytes did
	silent  time.Duration // without bytes
	partial time.Duration // without a message

	pingTag   uint64 // of the PINGs that we send
	confirmed bool   // the peer has taken what was sent before Confirm

	// Sending.
	flows   [flows]flow
	pong    bool
	pongTag uint64
	owed    bool           // the peer should hear of freed envelopes
	msgs    opList         // messages that may go
	starved opList         // unexpected messages without an envelope
	kept    opList         // those that left and used the last one
	answers int            // expected messages in msgs
	moving  opList         // puts and gets that have not begun
	flying  opList         // puts and gets under way
	recvs   opList         // expected receives
	match   map[na.Tag]*op // the same by their tags
	leases  opList
	credits uint32 // envelopes the peer has ever guaranteed
	used    uint32 // envelopes we have used
	seq     uint64 // unexpected messages that have left
	asks    withdrawals

	probed    time.Duration // when the peer was last asked for its credit, or messages began to wait for it
	highWater int
	stalls    int64

	// Receiving.
	offered   uint32 // envelopes guaranteed to the peer at a time (reserved in the budget)
	reserved  int    // of those, not yet returned to the budget
	arrived   uint64 // unexpected messages
	released  uint32
	announced uint32 // highest credit that the peer may have seen
	batch     uint32 // freed envelopes that make a frame
	held      int    // envelopes that are not accepted
	heldMax   int
	load      atomic.Int64 // of the layer above na
	waiters   waiters
	answered  int                // answers to withdraws that wait to leave
	sinks     map[uint64]*sink   // puts of the peer, by its operation id
	served    map[uint64]*source // gets of the peer, likewise
	guesses   [][16]byte         // tokens for which requests were refused
}

// backoff slows down dialling a name that fails.
type backoff struct {
	until time.Duration
	step  time.Duration
}

// The bounds of the backoff.
const (
	backoffFirst = 10 * time.Millisecond
	backoffLast  = time.Second
	backoffNames = 1024
)

// Name returns the canonical name to dial.
func (l *Link) Name() string { return l.named.Name() }

// Target returns the context id that is wanted.
func (l *Link) Target() int { return l.named.Target() }

// Endpoint returns the endpoint that l belongs to.
func (l *Link) Endpoint() *Endpoint { return l.e }

// Up tells whether the session is established. Locked.
func (l *Link) Up() bool { return l.state == linkUp }

// Down tells whether the session has ended. Locked.
func (l *Link) Down() bool { return l.state == linkDown }

// addr is the peer's address as receivers of its messages see it, bound to the session.
func (l *Link) addr() na.Addr { return l.named.Bound(l.session) }

// find returns the link of an address, or nil. Locked.
func (e *Endpoint) find(a na.Addr) *Link {
	if e.found != nil && a == e.recent {
		return e.found
	}
	l := e.names[a]
	if s := a.Session(); s != 0 {
		l = e.links[s]
	}
	e.recent, e.found = a, l
	return l
}

// linkFor returns the link of an operation that is being started, and dials if there is none. Locked.
func (e *Endpoint) linkFor(t na.Ticket, a na.Addr) (*Link, error) {
	if err := e.refusal(t); err != nil {
		return nil, err
	}
	if l := e.find(a); l != nil {
		return l, nil
	}
	if s := a.Session(); s != 0 {
		if int(s&0xff) == e.id {
			return nil, na.WithText(na.ErrPeerLost, "the session that the address was bound to has ended")
		}
		a = a.Named() // it came in on another context: that session is not ours
		if l := e.names[a]; l != nil {
			return l, nil
		}
	}
	return e.dial(a)
}

// dial makes a link to a named address.
func (e *Endpoint) dial(a na.Addr) (*Link, error) {
	self := a.Name() == e.eng.opts.Self
	if !self {
		if a.Scheme() != e.eng.opts.Scheme {
			return nil, na.WithText(na.ErrUnsupported, fmt.Sprintf("address %v is not of transport %s", a, e.eng.opts.Scheme))
		}
		if err := e.carrier.Check(a.Name()); err != nil {
			return nil, err
		}
	}
	l, err := e.newLink(a, 0, 0)
	if err != nil {
		return nil, err
	}
	if self {
		l.carrier = &e.eng.loop
		l.connectLoop()
		return l, nil
	}
	l.dialled = true
	e.readClock()
	l.born, l.since = e.now, e.now
	if w := e.waits[a]; w != nil && w.until > e.now {
		l.since = w.until
	} else {
		l.dial()
	}
	if l.state == linkDown { // the carrier knew at once
		return nil, na.WithText(na.ErrUnreachable, "the address cannot be reached")
	}
	l.makeBusy()
	return l, nil
}

// newLink makes a link with its envelopes reserved.
func (e *Endpoint) newLink(named na.Addr, need, want uint32) (*Link, error) {
	n, err := e.eng.offer(int(need), int(want))
	if err != nil {
		return nil, err
	}
	l := &Link{
		e: e, carrier: e.carrier, named: named,
		session: e.eng.session.Add(1)<<8 | uint64(e.id),
		offered: uint32(n), reserved: n, announced: uint32(n), batch: e.eng.batch(n),
	}
	e.found = nil
	e.links[l.session] = l
	if !named.IsZero() {
		e.names[named] = l
	}
	return l, nil
}

func (l *Link) dial() {
	l.state = linkDialing
	l.carrier.Dial(l)
}

// Hello appends to dst what our HELLO says on l, and returns it: as often as the carrier likes, it changes nothing. label is
// the carrier's own, for its other side. Locked.
func (l *Link) Hello(dst, label []byte) []byte {
	g := l.greeting()
	g.Label = label
	return g.Append(dst)
}

// Greet takes the HELLO with which the peer answers ours. An error means that it cannot be accepted: the carrier calls Fail
// with it. Locked.
func (l *Link) Greet(g *frame.Greeting) error {
	if l.state != linkDialing {
		return na.WithText(na.ErrProtocol, "HELLO frame inside a session")
	}
	if err := l.e.checkGreeting(g); err != nil {
		return err
	}
	if int(g.Target) != l.e.id || int(g.Context) != l.named.Target() {
		return na.WithText(na.ErrProtocol, "HELLO is for another context")
	}
	if g.Incarnation == l.e.eng.inc {
		return na.WithText(na.ErrUnreachable, "the address leads back to this process, which does not listen there")
	}
	if err := l.checkNeed(g); err != nil {
		return err
	}
	l.up(*g)
	return nil
}

// Incarnation is that of the peer of a session that is up. Locked.
func (l *Link) Incarnation() [16]byte { return l.peer.Incarnation }

func (l *Link) greeting() frame.Greeting {
	features := uint64(frame.FeatureWithdraw)
	if l.e.eng.cfg.Reserve == na.HonestReserve {
		features |= frame.FeatureReserve
	}
	return frame.Greeting{
		Features: features, Version: frame.Version, Incarnation: l.e.eng.inc, Listen: l.e.eng.opts.Listen, Host: l.e.eng.opts.Host,
		Context: uint16(l.e.id), Target: uint16(l.named.Target()), Envelopes: l.offered, Eager: uint32(l.e.eng.cfg.Eager),
		Need: uint32(l.e.eng.cfg.Need), Want: uint32(l.e.eng.cfg.Want),
	}
}

// check tells why a peer's greeting cannot be accepted.
func (e *Endpoint) checkGreeting(g *frame.Greeting) error {
	if g.Version != frame.Version {
		return na.WithText(na.ErrVersion, fmt.Sprintf("peer speaks protocol version %d, this is version %d", g.Version, frame.Version))
	}
	if g.Envelopes < 1 || g.Envelopes > 4096 || g.Eager < 256 || g.Eager > 48<<10 {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("peer offers %d envelopes of %d bytes, out of bounds", g.Envelopes, g.Eager))
	}
	if need := e.eng.cfg.Need; int(g.Envelopes) < need {
		return na.WithText(na.ErrNoMemory, fmt.Sprintf(
			"the peer guarantees %d envelopes, and %d are needed here (Config.Need)", g.Envelopes, need))
	}
	return nil
}

// Admit takes in a peer that connected to us and sent g. verified tells that the machine it connected from is the one
// that g.Listen names, so that operations to that name may use this session. conn becomes the link's Conn. An error is
// what the carrier tells the peer before it closes the connection. Locked.
func (e *Endpoint) Admit(conn any, g *frame.Greeting, verified bool) (*Link, error) {
	if e.shut {
		return nil, na.WithText(na.ErrClosed, "the context is closed")
	}
	if err := e.checkGreeting(g); err != nil {
		return nil, err
	}
	if int(g.Target) != e.id {
		return nil, na.WithText(na.ErrNoEntry, fmt.Sprintf("there is no context %d", g.Target))
	}
	if g.Incarnation == e.eng.inc {
		return nil, na.WithText(na.ErrUnreachable, "the address leads back to the process itself, whose name is another")
	}
	if e.draining {
		return nil, na.WithText(na.ErrClosed, "the process is shutting down")
	}
	var named na.Addr // nobody else is reached by our own name, whatever he says
	if g.Listen != "" && g.Listen != e.eng.opts.Self && verified &&
		strings.HasPrefix(g.Listen, e.eng.opts.Scheme+"://") && e.carrier.Check(g.Listen) == nil {
		named = na.MakeAddr(g.Listen, int(g.Context))
	}
	if old := e.names[named]; old != nil && !named.IsZero() {
		if err := e.compete(old, g); err != nil {
			return nil, err
		}
		if old.state != linkDown {
			old.adopt(conn, g)
			return old, nil
		}
	}
	l, err := e.newLink(named, g.Need, g.Want)
	if err != nil {
		return nil, err
	}
	if named.IsZero() {
		l.named = na.MakeAddr(privateName(e.eng.opts.Scheme, g.Incarnation), int(g.Context))
	}
	l.adopt(conn, g)
	return l, nil
}

// compete decides between a link that exists and a connection that the same peer has made. Of two that were dialled at
// the same time the one that the larger incarnation dialled stays. It returns nil with old taken down, or fit to adopt
// the new connection, and an error when the new one must go.
func (e *Endpoint) compete(old *Link, g *frame.Greeting) error {
	ours := slices.Compare(e.eng.inc[:], g.Incarnation[:]) > 0
	switch {
	case old.state == linkUp && old.peer.Incarnation != g.Incarnation:
		old.fail(na.WithText(na.ErrPeerLost, "the peer restarted"))
	case old.state == linkUp && old.dialled && ours:
		old.suspect()
		return na.WithText(na.ErrDuplicate, "a connection of this pair is in use")
	case old.state == linkUp:
		old.fail(na.WithText(na.ErrPeerLost, "the peer connected anew"))
	case ours && old.state == linkDialing:
		return na.WithText(na.ErrDuplicate, "a connection of this pair is being made")
	default: // it waits or dials, and the peer's connection is the one that stays
		if err := old.checkNeed(g); err != nil {
			return err
		}
		e.carrier.Cut(old, na.OK, "")
		old.dialled = false
	}
	return nil
}

// adopt brings l up over a connection that the peer made.
func (l *Link) adopt(conn any, g *frame.Greeting) {
	l.Conn = conn
	l.up(*g)
}

// up starts the session.
func (l *Link) up(g frame.Greeting) {
	l.state = linkUp
	l.peer, l.Proof = g, proofOf(l.Conn)
	l.eager = min(l.e.eng.cfg.Eager, int(g.Eager))
	l.credits = g.Envelopes
	l.heard, l.silent, l.partial = true, 0, 0
	delete(l.e.waits, l.named)
	l.starts()
	l.kick()
}

// Fail ends the session, or the attempt to make one, because of err: the connection is cut and every operation ends.
// Locked.
func (l *Link) Fail(err error) { l.fail(err) }

func (l *Link) fail(err error) {
	switch {
	case l.state == linkDown:
		return
	case l.state == linkUp:
		code := na.CodeOf(err)
		if code == na.ErrProtocol || code == na.ErrChecksum {
			l.e.stats.Violations++
		}
		if code != na.ErrPeerLost {
			err = na.WithText(na.ErrPeerLost, "peer lost: "+err.Error())
		}
		l.close(err, code, err.Error(), true)
	case na.CodeOf(err) == na.ErrDuplicate && !l.e.shut:
		// The peer says that it dials too, and that its connection stays. If it does not come, dial again.
		l.carrier.Cut(l, na.OK, "")
		l.state = linkWaiting
		l.e.readClock()
		l.since = l.e.now + backoffFirst*5
		l.e.hurry(l.since)
	default:
		l.e.failed(l.named)
		if code := na.CodeOf(err); code != na.ErrUnreachable {
			err = na.WithText(na.ErrUnreachable, "peer unreachable: "+err.Error())
		}
		l.close(err, na.OK, "", false)
	}
}

// failed lengthens the backoff of a name.
func (e *Endpoint) failed(name na.Addr) {
	e.readClock()
	w := e.waits[name]
	if w == nil {
		if len(e.waits) >= backoffNames {
			for n, old := range e.waits {
				if old.until <= e.now {
					delete(e.waits, n)
				}
			}
			if len(e.waits) >= backoffNames {
				return
			}
		}
		w = &backoff{}
		e.waits[name] = w
	}
	w.step = min(max(w.step*2, backoffFirst), backoffLast, e.eng.cfg.ConnectTimeout/4)
	w.until = e.now + w.step
}

// close ends l: cuts the connection, for which the peer is told code and text, and finishes every operation with err.
func (l *Link) close(err error, code na.Code, text string, fault bool) {
	if l.state == linkDown {
		return
	}
	wasUp := l.state == linkUp
	l.state = linkDown
	e := l.e
	l.carrier.Cut(l, code, text)
	e.found = nil
	delete(e.links, l.session)
	if e.names[l.named] == l {
		delete(e.names, l.named)
	}
	notRun := na.Result{Err: err, Fate: na.NotRun}
	maybe := na.Result{Err: err, Fate: na.MaybeRan}
	if !wasUp {
		maybe = notRun
	}
	for _, q := range []struct {
		list *opList
		r    na.Result
	}{{&l.msgs, notRun}, {&l.starved, notRun}, {&l.moving, notRun}, {&l.flying, maybe}, {&l.recvs, maybe}, {&l.leases, maybe}, {&l.kept, maybe},
		{&l.asks.waiting, maybe}, {&l.asks.asked, maybe}} {
		for o := q.list.head; o != nil; o = q.list.head {
			r := q.r
			r.N = o.at
			e.finish(o, r)
		}
	}
	for i := range l.flows {
		endSources(&l.flows[i].sources)
	}
	l.served, l.sinks, l.flows = nil, nil, [flows]flow{}
	l.settle()
	if wasUp && fault {
		e.stats.PeersLost++
		e.nctx.Fault(l.addr(), err)
	}
}

// settle returns the reserve to the budget once the session is over and its envelopes have been dealt with.
func (l *Link) settle() {
	if l.state == linkDown && l.held == 0 && l.reserved > 0 {
		l.e.eng.unreserve(l.reserved)
		l.reserved = 0
	}
}

// Refused is called when the peer ends the session, or refuses it, and says why. Locked.
func (l *Link) Refused(code na.Code, text string) {
	if len(text) > 512 {
		text = text[:512]
	}
	if l.state == linkUp {
		l.fail(na.WithText(na.ErrPeerLost, "the peer ended the session: "+text))
		return
	}
	l.fail(na.WithText(code, "the peer refused: "+text))
}

// enter counts an operation that waits for the peer.
func (l *Link) enter() {
	l.waiting++
	l.makeBusy()
}

func (l *Link) leave() { l.waiting-- }

// readClock is for the rare steps that happen long after a Poll: a program may drive nothing for minutes, then dial.
func (e *Endpoint) readClock() { e.now = max(e.now, e.eng.opts.Now()) }

// makeBusy has the tick look after l.
func (l *Link) makeBusy() {
	if l.busy {
		return
	}
	l.busy = true
	l.silent, l.partial, l.heard, l.bytes = 0, 0, false, false
	e := l.e
	if len(e.busy) == 0 {
		e.readClock()
		e.lastTick = -1 // e.now may be old: the first tick only takes the time
		e.timer.Store(int64(e.now + e.tickEvery()))
		e.nctx.Nudge()
	}
	e.busy = append(e.busy, l)
	switch l.state {
	case linkWaiting:
		e.hurry(min(l.since, l.born+e.eng.cfg.ConnectTimeout))
	case linkDialing:
		e.hurry(l.born + e.eng.cfg.ConnectTimeout)
	}
}

// hurry makes the next tick no later than at.
func (e *Endpoint) hurry(at time.Duration) {
	if t := e.timer.Load(); t == 0 || int64(at) < t {
		e.timer.Store(max(int64(at), 1))
		e.nctx.Nudge()
	}
}

// tickEvery is how often links that operations wait for are looked after.
func (e *Endpoint) tickEvery() time.Duration {
	every := e.eng.cfg.PeerTimeout
	if limit := e.eng.opts.TakeTimeout; limit > 0 {
		every = min(every, limit)
	}
	return every / 10
}

// tick looks after the busy links: dials after a backoff, gives up dialling, asks silent peers for a sign of life and
// gives up those that have been silent for PeerTimeout. Silence, and the time that a dial takes, count only as fast as ticks
// come: after a freeze of this process a peer is asked afresh, and what it has answered is read, before it is judged.
func (e *Endpoint) tick(now time.Duration) {
	frozen := e.frozen(now)
	passed := time.Duration(0)
	if e.lastTick >= 0 {
		passed = min(now-e.lastTick, 2*e.tickEvery())
	}
	e.lastTick = now
	next := now + e.tickEvery()
	links := e.busy
	e.busy = nil
	for _, l := range links {
		if l.state < linkUp {
			l.born = min(l.born+frozen, now)
		}
		switch {
		case l.state == linkUp:
			l.tick(passed)
			if at := l.probe(now); at != 0 {
				next = min(next, at)
			}
		case l.state == linkDown:
		case now-l.born >= e.eng.cfg.ConnectTimeout && frozen > 0 && !l.spared: // the answer may have come
			l.spared = true
			l.born += e.grace()
		case now-l.born >= e.eng.cfg.ConnectTimeout:
			l.fail(na.WithText(na.ErrUnreachable, fmt.Sprintf("no connection within %v", e.eng.cfg.ConnectTimeout)))
		case l.state == linkWaiting && now >= l.since:
			l.since, l.dialled = now, true
			l.dial()
		}
		switch {
		case l.state == linkDown || l.state == linkUp && l.waiting == 0 && !l.doubted && !l.waits():
			l.busy = false
			continue
		case l.state == linkWaiting:
			next = min(next, l.since, l.born+e.eng.cfg.ConnectTimeout)
		case l.state == linkDialing:
			next = min(next, l.born+e.eng.cfg.ConnectTimeout)
		}
		e.busy = append(e.busy, l)
	}
	if len(e.busy) == 0 {
		next = 0
	}
	e.timer.Store(int64(next))
}

// frozen is how much too late a tick comes, if that is more than a busy machine explains.
func (e *Endpoint) frozen(now time.Duration) time.Duration {
	late := now - max(time.Duration(e.timer.Load()), e.lastTick)
	if late <= e.grace() {
		return 0
	}
	return late
}

// grace is how late a tick may come without being a freeze, and what a dial is left with after one that outlasts it.
func (e *Endpoint) grace() time.Duration { return min(e.tickEvery(), e.eng.cfg.ConnectTimeout/2) }

func (l *Link) tick(passed time.Duration) {
	if !l.checkTaken(passed) {
		return
	}
	bytes := l.bytes
	l.bytes = false
	if l.heard {
		l.heard, l.doubted, l.silent, l.partial = false, false, 0, 0
		return
	}
	if l.waiting == 0 && !l.doubted {
		return
	}
	timeout := l.e.eng.cfg.PeerTimeout
	l.partial += passed
	if l.silent += passed; bytes {
		l.silent = 0
	}
	switch {
	case l.silent >= timeout:
		l.fail(na.WithText(na.ErrPeerLost, fmt.Sprintf("the peer was silent for %v", timeout)))
		return
	case l.partial >= maxPartial*timeout:
		l.fail(na.WithText(na.ErrPeerLost, fmt.Sprintf("no message of the peer was complete for %v", maxPartial*timeout)))
		return
	}
	l.ping()
}

// suspect asks the peer for a sign of life, and judges it, whether an operation waits or not: it has connected although it has a
// session, and may have lost that one without a word.
func (l *Link) suspect() {
	if !l.doubted {
		l.makeBusy()
		l.doubted, l.heard, l.silent, l.partial = true, false, 0, 0
	}
	l.ping()
	l.kick()
}

// maxPartial times PeerTimeout bytes of the peer are a sign of life without a message that is complete. What they are part of may
// be damaged: a length that is too large swallows what comes after it, signs of life included, and no checksum tells until
// there are as many bytes.
const maxPartial = 3

// ping asks the peer for a sign of life. One at a time: a peer that reads slowly is not flooded.
func (l *Link) ping() {
	if slices.ContainsFunc(l.flows[FlowMessages].ctl.all(), func(h frame.Header) bool { return h.Kind == frame.Ping }) {
		return
	}
	l.control(frame.Header{Kind: frame.Ping, Tag: l.pingTag})
}

// Heard notes that bytes of the peer arrived: of bulk data whose front was verified, or of a message that may not be complete.
// Locked.
func (l *Link) Heard(bulk bool) {
	if bulk {
		l.heard = true
	} else {
		l.bytes = true
	}
}

// sorted returns the links in the order of their sessions.
func (e *Endpoint) sorted() []*Link {
	all := make([]*Link, 0, len(e.links))
	for _, l := range e.links {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *Link) int {
		if a.session < b.session {
			return -1
		}
		return 1
	})
	return all
}
