package na

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Limits that are not settable.
const (
	maxInFlight        = 128      // gets and puts under way to one peer; more wait here
	maxServing         = 256      // gets and puts of one peer that are served at a time; more are answered ErrAgain
	maxControl         = 8192     // control frames that wait for a peer that does not read; then it is cut
	maxDenials         = 16       // tokens of memory that is not allowed, or never was, that a peer may try; then it is cut
	maxLeases          = 1024     // leases of one peer
	maxExpeditedLeases = 64 << 10 // the same for what is lent with an expedited message
	maxCredit          = 4096     // unused envelopes that a peer may say it has free
	maxAnswers         = 64 << 10 // expected messages that wait to leave to one peer
	maxQueuedMoves     = 64 << 10 // gets and puts to one peer that have not begun
	maxAsking          = 64 << 10 // withdraws at one peer that have not been asked
	maxRecvs           = 64 << 10 // receives of expected messages of one peer, beyond Config.SendQueue
	maxLookups         = 1024     // lookups of one context
)

// queueFullError is the error of an operation of which as many wait as may.
func queueFullError(limit int, what string) error {
	return WithText(ErrAgain, fmt.Sprintf("%d %s already, which is the limit", limit, what))
}

// An endpoint is what a context has of the network: sessions, and the operations that are under way on them. It implements
// carrier.Core.
type endpoint struct {
	dom        *domain
	nctx       *Context
	id         int
	routes     []route
	faults     simhook.Faults // of a simulator; or nil
	counted    atomic.Bool    // by faults: the startSendExpected that follows an answer
	timer      atomic.Int64   // when Poll is due; 0 when never
	due        atomic.Int64   // when the first of timers is; 0 when there is none
	hasPending atomic.Bool    // pending is not empty
	heldDue    atomic.Int64   // when reportHeld is due; 0 when never

	mu         sync.Mutex // guards everything below and every session
	shut       bool
	broken     error // why e has ended by itself: a panic under mu; nil: it has not
	draining   bool
	finishing  bool          // Confirm was called
	lost       []Unconfirmed // of sessions that have ended
	unlocks    int           // Unlocks since frames were held back
	now        time.Duration // as last told
	sessions   map[uint64]*session
	names      map[Addr]*session
	choosing   []*session // that have several addresses, and have not settled on one
	recent     Addr       // what find was asked last,
	found      *session   // and found; nil once that session has ended
	waits      map[Addr]*backoff
	proofs     map[Addr]lastSession      // of dialable peers whose session has ended, or retires: what the next HELLO shows
	retired    map[uint64][16]byte       // incarnations of the peers of sessions that have ended because they were idle, or had retired
	successors map[frame.Secret]*session // of sessions that retire: the next session of the peer, by the secret of the one before
	expiryDue  time.Duration             // when certificates of peers are looked at; 0: never
	leaving    int                       // sessions in stateLeaving
	shorts     int                       // sessions that wait for envelopes
	idle       [2]idleList               // sessions with nothing going on; in the second those that we have dialled
	busy       []*session                // sessions with something open, or that connect
	lastTick   time.Duration
	pending    []carrier.Session // *session
	flushing   []carrier.Session // the other half of pending

	leases    map[leaseKey]*Op
	tokens    map[[16]byte]*Op
	inFlight  idTable
	receivers opList // RecvUnexpected that wait
	lookups   opList
	timers    timeheap.Heap[Op]
	probed    []*session // whose PROBE waits for Trigger, which runs probeTask
	probeTask Task
	holding   []*session // with messages that are not accepted
	inbox     inbox
	arrived   atomic.Int32 // messages in it

	ops       []*Op // the operations that are taken in
	exts      spares[opExtra]
	freeEnvs  []*Envelope
	buffers   []*messageBuffer // that nobody uses,
	idleBytes int              // and their bytes
	sources   spares[outboundBulk]
	sinks     spares[inboundBulk]
	incoming  spares[body]
	arrivings spares[placedMessage]
	views     spares[view]
	head      frame.Header // of the frame that leaves now
	stats     Stats
	messages  uint64 // sent and received
	reached   uint64 // gets and puts of peers that have begun
}

var _ carrier.Core = (*endpoint)(nil)

func newEndpoint(d *domain, c *Context) *endpoint {
	e := &endpoint{
		dom: d, nctx: c, id: c.id,
		sessions: map[uint64]*session{}, names: map[Addr]*session{}, retired: map[uint64][16]byte{}, waits: map[Addr]*backoff{}, proofs: map[Addr]lastSession{},
		successors: map[frame.Secret]*session{},
		leases:     map[leaseKey]*Op{}, tokens: map[[16]byte]*Op{},
	}
	e.probeTask.Init(e.answerProbes, nil)
	return e
}

// Now implements carrier.Core.
func (e *endpoint) Now() time.Duration { return e.dom.now() }

// Poller implements carrier.Core.
func (e *endpoint) Poller() carrier.Poller {
	if e.nctx.poller == nil || !pollerSupported {
		return nil
	}
	return e.nctx.poller
}

// PollSoon implements carrier.Core. Where nobody leads the background poller polls: the endpoint's own timers, which call pollSoon, do not need that.
func (e *endpoint) PollSoon() {
	e.nctx.pollSoon()
	if e.nctx.driver == nil && !e.nctx.isAsleep() {
		e.nctx.background.startTicking()
	}
}

// FlushSoon implements carrier.Core.
func (e *endpoint) FlushSoon() { e.nctx.flushSoon() }

// HandshakeFailed implements carrier.Core.
func (e *endpoint) HandshakeFailed(peer, why string) { e.nctx.handshakeFailed(peer, why) }

// ID returns the target id.
func (e *endpoint) ID() int { return e.id }

// Messages counts those that were sent and received. Locked.
func (e *endpoint) Messages() uint64 { return e.messages }

// startLookup resolves the text of an address. It does not connect. Ends with Result.Addr, or ErrNoEntry, ErrInvalid.
func (e *endpoint) startLookup(t ticket, text string) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	if err := e.refusalOf(t); err != nil {
		e.refuseStart(t, err)
		return
	}
	addr, err := ParseAddr(text)
	if err == nil && addr.Scheme() != e.dom.own.scheme {
		err = WithText(ErrUnsupported, fmt.Sprintf("address %s is not of transport %s: open another node or class, at %s://, to reach it",
			text, e.dom.own.scheme, addr.Scheme()))
	}
	if err == nil && e.lookups.n >= maxLookups {
		err = queueFullError(maxLookups, "lookups of the context are under way")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o, lk := e.beginExt(t), &lookup{op: t.op}
	o.x.lookup = lk
	e.lookups.push(o)
	e.mu.Unlock()
	stop := e.dom.own.Names.Resolve(addr.Name(), func(name string, err error) {
		e.mu.Lock()
		if lk.op != nil {
			r := Result{Err: err}
			if err == nil {
				r.Addr, r.Err = e.lookedUp(addr, name)
			}
			e.finishOp(lk.op, r)
		}
		e.mu.Unlock()
	})
	e.mu.Lock()
	switch {
	case lk.op != nil:
		lk.stop = stop
	case stop != nil:
		defer stop()
	}
	e.mu.Unlock()
}

// startSendUnexpected sends buf to any receive of the peer. Without an envelope of the peer it does what Config.OnNoCredit
// says; a Patient one waits, a Hasty one ends. It ends when the message has been handed to the system, or with ErrUnreachable,
// ErrPeerLost, ErrNoCredit (no envelope, or the local queue is full), ErrCanceled, ErrClosed. A canceled send that ends
// with Fate NotRun has put nothing on the wire. A message with a deadline that has passed when its turn comes is not
// sent: it ends with ErrTimeout and NotRun. Otherwise the time that is left is written into it then, and the receiver is
// told to note when it arrives: Envelope.Arrived.
func (e *endpoint) startSendUnexpected(t ticket, to Addr, tag Tag, buf []byte, by Deadline) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		e.returnRoom(to, len(buf)) // a claim ends with the send
		return
	}
	e.send(t, kindSendUnexpected, to, tag, buf, packedBody{}, nil, by, 0)
}

// startSendExpected sends buf to the receive that the peer has posted for this context and tag. No envelope is used. A
// message that meets no receive is dropped and counted there. It may be longer than the peer's messages are if the
// receive takes most bytes. body, if there is one, goes beside it: room for it has been claimed, as for a CallSpec.Body, and copied
// is its Copy.
func (e *endpoint) startSendExpected(t ticket, to Addr, tag Tag, buf, body []byte, copied bool, most int) {
	if e.faults != nil && !e.counted.Swap(false) && e.failsAtOnce(t, nil) {
		if body != nil {
			e.returnRoom(to, len(body))
		}
		return
	}
	p := packedBody{body: body}
	var err error
	if copied && body != nil {
		p, err = e.packBody(to, body)
	}
	e.send(t, kindSendExpected, to, tag, buf, p, err, Deadline{}, most)
}

func (e *endpoint) send(t ticket, k opKind, to Addr, tag Tag, buf []byte, p packedBody, bad error, by Deadline, most int) {
	body := p.body
	if k == kindSendUnexpected && (e.dom.cfg.OnNoCredit != Queue && !t.op.expedited || t.op.hasty) && e.hasNoEnvelope(to) {
		e.nctx.tryPoll() // credit may have arrived that nobody has read (G11)
	}
	e.mu.Lock()
	l, err := e.sessionFor(t, to)
	claim, claimed := 0, (*session)(nil)
	switch {
	case body != nil:
		claim, claimed = e.claimOf(to, len(body))
	case k == kindSendUnexpected:
		claim, claimed = e.claimOf(to, len(buf))
	}
	if err == nil && l.eager != 0 && (len(buf) > max(l.eager, most) || body != nil) && claim == 0 {
		err = errTooLong
	}
	if err == nil {
		err = bad
	}
	switch { // requests and answers are bounded apart: neither may keep the other from going
	case err != nil:
	case k == kindSendUnexpected && l.sendQueue() >= e.dom.cfg.SendQueue && !t.op.patient && !t.op.expedited:
		err = WithText(ErrNoCredit, fmt.Sprintf(
			"%d messages to the peer wait for an envelope or for room, as many as Config.SendQueue allows", e.dom.cfg.SendQueue))
	case k == kindSendExpected && l.answers >= maxAnswers:
		err = queueFullError(maxAnswers, "expected messages to the peer wait to leave")
	}
	if err != nil {
		p.release(nil)
		if claimed != nil {
			claimed.returnRoom(claim)
		}
		e.refuseStart(t, err)
		return
	}
	o := e.takeIn(t)
	o.session, o.tag, o.buf, o.by, o.most, o.room = l, tag, buf, by, most, claim
	if body != nil {
		o.x = e.exts.get()
		o.x.body, o.x.packed = body, p
	}
	l.waiting++
	if k == kindSendExpected {
		l.answers++
		l.enqueueSend(o)
	} else {
		l.countExpedited(o)
		l.enqueueRequest(o)
	}
	l.markPending()
	e.Unlock()
}

// startRecvUnexpected takes the oldest message of the context, or waits for one.
func (e *endpoint) startRecvUnexpected(t ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusalOf(t); err != nil {
		t.finish(Result{Err: err})
		return
	}
	if env := e.takeEnvelope(); env != nil {
		e.countArrived()
		t.finish(Result{Envelope: env, Addr: env.From, Tag: env.Tag, N: int64(len(env.Data))})
		return
	}
	e.receivers.push(e.takeIn(t))
}

// startRecvExpected receives the message with tag from a peer into buf; a longer one of up to most bytes in Result.Envelope,
// which is accepted already. A longer message still ends it with ErrOverflow.
func (e *endpoint) startRecvExpected(t ticket, from Addr, tag Tag, buf []byte, most int) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	l, err := e.sessionFor(t, from)
	switch {
	case err != nil:
	case l.posted.find(tag) != nil:
		err = WithText(ErrBusy, "a receive of this peer and tag is posted already")
	case l.recvs.n-maxRecvs >= e.dom.cfg.SendQueue: // calls wait in the send queue with their receives posted
		err = queueFullError(l.recvs.n, "receives of the peer are posted")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeIn(t)
	o.session, o.tag, o.buf, o.most = l, tag, buf, most
	l.posted.add(o)
	l.waiting++
	l.recvs.push(o)
	e.Unlock()
}

// startPut writes n bytes of local at loff into the peer's memory; Get reads them. The caller has acquired local; the
// endpoint releases it before it finishes t. It ends when the last byte is in place, or with ErrPermission,
// ErrRevoked, ErrPeerLost, ErrCanceled. After a failure the destination's contents are undefined.
func (e *endpoint) startPut(t ticket, local *Mem, loff int64, to Addr, key Key, roff, n int64) {
	if e.faults != nil && e.failsAtOnce(t, local) {
		return
	}
	e.startMove(t, local, loff, to, key, roff, n)
}

func (e *endpoint) startGet(t ticket, local *Mem, loff int64, to Addr, key Key, roff, n int64) {
	if e.faults != nil && e.failsAtOnce(t, local) {
		return
	}
	e.startMove(t, local, loff, to, key, roff, n)
}

func (e *endpoint) startMove(t ticket, local *Mem, loff int64, to Addr, key Key, roff, n int64) {
	e.mu.Lock()
	l, err := e.sessionFor(t, to)
	limit := maxQueuedMoves
	if t.op.expedited {
		limit *= 2
	}
	if err == nil && l.queuedMoves.n >= limit {
		err = queueFullError(limit, "gets and puts to the peer wait to begin")
	}
	if err != nil {
		e.mu.Unlock()
		local.Release()
		t.finish(Result{Err: err, Fate: NotRun})
		return
	}
	o := e.beginExt(t)
	o.session = l
	o.x.mem, o.x.loff, o.x.key, o.x.roff, o.x.n = local, loff, key, roff, n
	l.waiting++
	l.queuedMoves.push(o)
	l.markPending()
	e.Unlock()
}

// startLease lets one peer read m until it gives it back, is lost, or drops the expected message with tag; then it ends
// t through m.Revoke.
func (e *endpoint) startLease(t ticket, to Addr, tag Tag, m *Mem) {
	if err := e.failOp(); err != nil {
		if r := (Result{Err: err, Fate: NotRun}); !m.revoke(t, r) {
			t.finish(r)
		}
		return
	}
	e.mu.Lock()
	l, err := e.sessionFor(t, to)
	limit := maxLeases
	if t.op.expedited {
		limit = maxExpeditedLeases
	}
	if err == nil && l.leases.n >= limit {
		err = queueFullError(limit, "leases of the peer have not ended")
	}
	if err == nil && e.leases[leaseKey{l, tag}] != nil {
		err = WithText(ErrBusy, "a lease for this peer and tag has not ended")
	}
	if err != nil {
		e.mu.Unlock()
		if r := (Result{Err: err, Fate: NotRun}); !m.revoke(t, r) {
			t.finish(r)
		}
		return
	}
	o := e.beginExt(t)
	o.session, o.tag, o.x.mem = l, tag, m
	e.leases[leaseKey{l, tag}] = o
	e.tokens[m.Key().Token] = o
	e.dom.bindToSession(m, l.id)
	l.waiting++
	l.leases.push(o)
	e.Unlock()
}

// giveBack tells the owner of a lease that it is not needed any more. Best effort, no completion.
func (e *endpoint) giveBack(to Addr, key Key) {
	e.mu.Lock()
	if l := e.findSession(to); l != nil && l.Up() && !e.shut {
		l.queueControl(giveBack(key))
	}
	e.Unlock()
}

// cancelTicket ends the operation of t if it has not ended. Called after t.isCanceling began to report true, or while another
// goroutine ends it: then Cancel returns when that one has, for which it takes the lock under which tickets are finished.
func (e *endpoint) cancelTicket(t ticket) {
	e.mu.Lock()
	if !t.isTakenIn() {
		e.mu.Unlock()
		return // being started: it will see Canceling; or ended
	}
	stop := t.op.lookupStop()
	e.cancelOp(t.op, ErrCanceled)
	e.Unlock()
	if stop != nil {
		stop()
	}
}

// shutDown begins the end: every operation finishes with ErrClosed, connections close. Called once.
func (e *endpoint) shutDown() {
	e.mu.Lock()
	if e.shut {
		e.mu.Unlock()
		return
	}
	e.shut = true
	for i := range e.routes {
		e.routes[i].carrier.Shut()
	}
	for o := e.receivers.head; o != nil; o = e.receivers.head {
		e.finishOp(o, Result{Err: ErrClosed})
	}
	var stops []func()
	for o := e.lookups.head; o != nil; o = e.lookups.head {
		if stop := o.lookupStop(); stop != nil {
			stops = append(stops, stop)
		}
		e.finishOp(o, Result{Err: ErrClosed})
	}
	for _, l := range e.sortedSessions() {
		l.close(ErrClosed, ErrClosed, "the process closed the context", false)
	}
	for o, _ := e.timers.First(); o != nil; o, _ = e.timers.First() { // without those of calls by now
		e.finishOp(o, Result{Err: ErrClosed})
	}
	for env := e.takeEnvelope(); env != nil; env = e.takeEnvelope() {
		e.acceptMessage(env)
		e.discardMessage(env)
	}
	e.countArrived()
	e.pending = e.pending[:0]
	e.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// release frees what is left. Called once, by the goroutine that leads, when every callback has run.
func (e *endpoint) release() {
	for i := range e.routes {
		e.routes[i].carrier.Release()
	}
}

// isLingering reports whether last words are still owed to peers, for a bounded time: until then the endpoint is polled, not released.
// Called after Shut, from anywhere.
func (e *endpoint) isLingering() bool {
	if e.nctx.isBroken() {
		return false
	}
	now := e.dom.now()
	return slices.ContainsFunc(e.routes, func(r route) bool { return r.carrier.Lingering(now) })
}

// collectStats answers the gauges, Peers those of each session that is up.
func (e *endpoint) collectStats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	for _, l := range e.sessions {
		if l.Up() {
			s.Peers++
			if l.bulk {
				s.BulkFlows++
			}
		}
	}
	for _, l := range e.busy {
		s.Outstanding += l.waiting
		s.Queued += l.toLeave()
		s.Leases += l.leases.n
		s.Streams += len(l.streams)
	}
	e.dom.mu.Lock()
	s.Reserved = e.dom.reserved + e.dom.room
	e.dom.mu.Unlock()
	return s
}

func (e *endpoint) peerStats() []PeerStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []PeerStats
	for _, l := range e.sortedSessions() {
		if l.Up() {
			all = append(all, l.peerStats())
		}
	}
	return all
}
