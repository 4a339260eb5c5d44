package na

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/simhook"
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Limits that cannot be configured.
const (
	maxInFlight = 128 // gets and puts in flight to one peer; more wait here
	// gets and puts served concurrently for one peer; more are refused with ErrAgain
	maxServing = 256
	// control frames waiting for a peer that does not read; beyond it the session ends
	maxControl         = 8192
	maxDenials         = 16       // requests by a peer for memory that it may not access; beyond it the session ends
	maxLeases          = 1024     // leases per peer
	maxExpeditedLeases = 64 << 10 // leases per peer for expedited messages
	maxCredit          = 4096     // unused envelopes that a peer may announce
	maxAnswers         = 64 << 10 // expected messages to one peer waiting to be sent
	maxQueuedMoves     = 64 << 10 // gets and puts to one peer that have not started
	maxAsking          = 64 << 10 // withdrawals to one peer that have not been sent
	maxRecvs           = 64 << 10 // posted receives of expected messages per peer, in addition to Config.SendQueue
	maxLookups         = 1024     // lookups per context
)

// queueFullError returns the error for an operation that would exceed a limit on queued operations.
func queueFullError(limit int, what string) error {
	return WithText(ErrAgain, fmt.Sprintf("limit of %d %s reached", limit, what))
}

// An endpoint is the network state of a context, which consists of its sessions and their
// operations. It implements carrier.Core.
type endpoint struct {
	dom        *domain
	nctx       *Context
	id         int
	routes     []route
	faults     simhook.Faults // faults injected by the simulator, or nil if there is none
	counted    atomic.Bool    // set if sendAnswer has called failOp, so that the next startSendExpected does not
	timer      atomic.Int64   // time of the next Poll; 0 if none
	due        atomic.Int64   // expiry of the first entry in timers; 0 if none
	hasPending atomic.Bool    // pending is not empty
	heldDue    atomic.Int64   // time of the next reportHeldLocked; 0 if none

	mu        sync.Mutex // guards the fields below and every session
	shut      bool
	broken    error // panic under mu that has terminated e, or nil
	draining  bool
	finishing bool          // Confirm has been called
	lost      []Unconfirmed // unconfirmed messages of sessions that have ended
	unlocks   int           // number of Unlock calls since frames were held back
	now       time.Duration // most recent time at which the clock was read
	sessions  map[uint64]*session
	names     map[Addr]*session
	choosing  []*session // sessions with several addresses that have not yet settled on one
	recent    Addr       // last argument of findSessionLocked
	found     *session   // result of findSessionLocked for recent; nil if that session has ended
	waits     map[Addr]*backoff
	// last session with each dialable peer, if it has ended or is retiring; used in the next HELLO
	proofs map[Addr]lastSession
	// incarnation of the peer, by number of a session that has retired or was closed because it was idle
	retired    map[uint64][16]byte
	successors map[frame.Secret]*session // the session that replaces a retiring one, by the secret of the latter
	expiryDue  time.Duration             // time of the next check of peers' certificates; 0 if none
	leaving    int                       // number of sessions in stateLeaving
	shorts     int                       // number of sessions waiting for envelopes
	// idle sessions dialed by peers, and those dialed by this side
	idle     [2]idleList
	busy     []*session // sessions that are connecting or have something in flight
	lastTick time.Duration
	pending  []carrier.Session // sessions with frames to send
	flushing []carrier.Session // slice that is swapped with pending

	leases    map[leaseKey]*Op
	tokens    map[[16]byte]*Op
	inFlight  idTable
	receivers opList // waiting RecvUnexpected operations
	lookups   opList
	timers    timeheap.Heap[Op]
	probed    []*session // sessions whose PROBE waits for Trigger, which runs probeTask
	probeTask Task
	holding   []*session // sessions with messages not yet accepted
	inbox     inbox
	arrived   atomic.Int32 // number of messages in inbox

	ops       []*Op // operations held by the endpoint
	exts      spares[opExtra]
	freeEnvs  []*Envelope
	buffers   []*messageBuffer // unused buffers
	idleBytes int              // total size in bytes of buffers
	sources   spares[outboundBulk]
	sinks     spares[inboundBulk]
	incoming  spares[body]
	arrivings spares[placedMessage]
	views     spares[view]
	head      frame.Header // header of the frame being sent
	stats     Stats
	messages  uint64 // number of messages sent and received
	reached   uint64 // number of peers' gets and puts that have been started
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

// PollSoon implements carrier.Core. If no goroutine leads, it makes the background poller poll. The
// endpoint's own timers do not need that and call pollSoon.
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

// ID implements carrier.Core.
func (e *endpoint) ID() int { return e.id }

// Messages implements carrier.Core. It returns the number of messages sent and received. The caller
// must hold e.mu.
func (e *endpoint) Messages() uint64 { return e.messages }

// startLookup resolves the text form of an address. It does not connect. The operation completes
// with Result.Addr set, or with ErrNoEntry or ErrInvalid.
func (e *endpoint) startLookup(t ticket, text string) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	if err := e.refusalOfLocked(t); err != nil {
		e.refuseStart(t, err)
		return
	}
	addr, err := ParseAddr(text)
	if err == nil && addr.Scheme() != e.dom.own.scheme {
		err = WithText(ErrUnsupported, fmt.Sprintf("address %s does not use transport %s: open another node or class at %s://",
			text, e.dom.own.scheme, addr.Scheme()))
	}
	if err == nil && e.lookups.n >= maxLookups {
		err = queueFullError(maxLookups, "lookups in flight")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o, lk := e.beginExtLocked(t), &lookup{op: t.op}
	o.x.lookup = lk
	e.lookups.push(o)
	e.mu.Unlock()
	stop := e.dom.own.Names.Resolve(addr.Name(), func(name string, err error) {
		e.mu.Lock()
		if lk.op != nil {
			r := Result{Err: err}
			if err == nil {
				r.Addr, r.Err = e.lookedUpLocked(addr, name)
			}
			e.finishOpLocked(lk.op, r)
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

// startSendUnexpected sends buf as an unexpected message. If the peer has no free envelope,
// Config.OnNoCredit applies, except that a patient operation always waits and a hasty one always
// fails. The operation completes when the message has been passed to the operating system, or with
// ErrUnreachable, ErrPeerLost, ErrNoCredit (no envelope, or the local queue is full), ErrCanceled
// or ErrClosed. If it is canceled and completes with Fate NotRun, nothing was sent.
//
// If the deadline has passed by the time the message can be sent, the message is not sent and the
// operation completes with ErrTimeout and NotRun. Otherwise the remaining time is written into the
// message at that point, and a flag makes the receiver record the arrival time in
// Envelope.Arrived.
func (e *endpoint) startSendUnexpected(t ticket, to Addr, tag Tag, buf []byte, by Deadline) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		e.returnRoom(to, len(buf)) // the claim ends with the send
		return
	}
	e.send(t, kindSendUnexpected, to, tag, buf, packedBody{}, nil, by, 0)
}

// startSendExpected sends buf to the receive that the peer has posted for this context and tag. It
// does not use an envelope. If there is no such receive, the peer drops and counts the message.
// most is the maximum length in bytes that the receive accepts, which may exceed the peer's Eager.
// If body is not nil, it is sent separately, and the caller must have claimed room for it, as
// described for CallSpec.Body. If copied is set, body is copied, as with CallSpec.Copy.
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

// send starts an operation that sends a message. If bad is not nil, the operation fails with bad
// and nothing is sent.
func (e *endpoint) send(t ticket, k opKind, to Addr, tag Tag, buf []byte, p packedBody, bad error, by Deadline, most int) {
	body := p.body
	if k == kindSendUnexpected && (e.dom.cfg.OnNoCredit != Queue && !t.op.expedited || t.op.hasty) && e.hasNoEnvelope(to) {
		e.nctx.tryPoll() // credit may have arrived that has not been read yet (G11)
	}
	e.mu.Lock()
	l, err := e.sessionForLocked(t, to)
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
	switch { // requests and responses have separate limits, so that neither blocks the other
	case err != nil:
	case k == kindSendUnexpected && l.sendQueue() >= e.dom.cfg.SendQueue && !t.op.patient && !t.op.expedited:
		err = WithText(ErrNoCredit, fmt.Sprintf(
			"send queue full: %d messages to the peer (na.Config.SendQueue)", e.dom.cfg.SendQueue))
	case k == kindSendExpected && l.answers >= maxAnswers:
		err = queueFullError(maxAnswers, "queued expected messages")
	}
	if err != nil {
		p.releaseLocked(nil)
		if claimed != nil {
			claimed.returnRoom(claim)
		}
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
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

// startRecvUnexpected receives the oldest message of the context, or waits for one.
func (e *endpoint) startRecvUnexpected(t ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusalOfLocked(t); err != nil {
		t.finish(Result{Err: err})
		return
	}
	if env := e.takeEnvelope(); env != nil {
		e.countArrived()
		t.finish(Result{Envelope: env, Addr: env.From, Tag: env.Tag, N: int64(len(env.Data))})
		return
	}
	e.receivers.push(e.takeInLocked(t))
}

// startRecvExpected receives the message with the given tag from a peer into buf. A message that
// does not fit in buf but has up to most bytes is returned in Result.Envelope, already accepted.
// A longer message makes the operation fail with ErrOverflow.
func (e *endpoint) startRecvExpected(t ticket, from Addr, tag Tag, buf []byte, most int) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	l, err := e.sessionForLocked(t, from)
	switch {
	case err != nil:
	case l.posted.find(tag) != nil:
		err = WithText(ErrBusy, "a receive for this peer and tag is already posted")
	case l.recvs.n-maxRecvs >= e.dom.cfg.SendQueue: // includes the receives of calls in the send queue
		err = queueFullError(l.recvs.n, "posted receives")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
	o.session, o.tag, o.buf, o.most = l, tag, buf, most
	l.posted.add(o)
	l.waiting++
	l.recvs.push(o)
	e.Unlock()
}

// startPut writes n bytes of local, starting at offset loff, to the peer's memory. startGet reads
// them. The caller must have acquired local, which the endpoint releases before it finishes t. The
// operation completes when the last byte is in place, or with ErrPermission, ErrRevoked,
// ErrPeerLost or ErrCanceled. After a failure the contents of the destination are undefined.
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
	l, err := e.sessionForLocked(t, to)
	limit := maxQueuedMoves
	if t.op.expedited {
		limit *= 2
	}
	if err == nil && l.queuedMoves.n >= limit {
		err = queueFullError(limit, "queued gets and puts")
	}
	if err != nil {
		e.mu.Unlock()
		local.Release()
		t.finish(Result{Err: err, Fate: NotRun})
		return
	}
	o := e.beginExtLocked(t)
	o.session = l
	o.x.mem, o.x.loff, o.x.key, o.x.roff, o.x.n = local, loff, key, roff, n
	l.waiting++
	l.queuedMoves.push(o)
	l.markPending()
	e.Unlock()
}

// startLease lets one peer read m. The lease ends when the peer returns it, is lost, or drops the
// expected message with the given tag. m.revoke then completes t.
func (e *endpoint) startLease(t ticket, to Addr, tag Tag, m *Mem) {
	if err := e.failOp(); err != nil {
		if r := (Result{Err: err, Fate: NotRun}); !m.revoke(t, r) {
			t.finish(r)
		}
		return
	}
	e.mu.Lock()
	l, err := e.sessionForLocked(t, to)
	limit := maxLeases
	if t.op.expedited {
		limit = maxExpeditedLeases
	}
	if err == nil && l.leases.n >= limit {
		err = queueFullError(limit, "leases")
	}
	if err == nil && e.leases[leaseKey{l, tag}] != nil {
		err = WithText(ErrBusy, "a lease for this peer and tag exists already")
	}
	if err != nil {
		e.mu.Unlock()
		if r := (Result{Err: err, Fate: NotRun}); !m.revoke(t, r) {
			t.finish(r)
		}
		return
	}
	o := e.beginExtLocked(t)
	o.session, o.tag, o.x.mem = l, tag, m
	e.leases[leaseKey{l, tag}] = o
	e.tokens[m.Key().Token] = o
	e.dom.bindToSession(m, l.id)
	l.waiting++
	l.leases.push(o)
	e.Unlock()
}

// giveBack notifies the owner of a lease that the lease is no longer needed. The notification is
// best effort and has no completion.
func (e *endpoint) giveBack(to Addr, key Key) {
	e.mu.Lock()
	if l := e.findSessionLocked(to); l != nil && l.Up() && !e.shut {
		l.queueControl(giveBack(key))
	}
	e.Unlock()
}

// cancelTicket cancels the operation of t if it has not completed. The caller must have set t's
// canceling flag. If another goroutine is completing the operation, cancelTicket returns only after
// that, because operations complete under the lock.
func (e *endpoint) cancelTicket(t ticket) {
	e.mu.Lock()
	if !t.isTakenIn() {
		e.mu.Unlock()
		return // it is being started, in which case the start checks isCanceling, or it has completed
	}
	stop := t.op.lookupStop()
	e.cancelOpLocked(t.op, ErrCanceled)
	e.Unlock()
	if stop != nil {
		stop()
	}
}

// shutDown completes every operation with ErrClosed and closes the sessions. Further calls do
// nothing.
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
		e.finishOpLocked(o, Result{Err: ErrClosed})
	}
	var stops []func()
	for o := e.lookups.head; o != nil; o = e.lookups.head {
		if stop := o.lookupStop(); stop != nil {
			stops = append(stops, stop)
		}
		e.finishOpLocked(o, Result{Err: ErrClosed})
	}
	for _, l := range e.sortedSessions() {
		l.close(ErrClosed, ErrClosed, errtext.Closed, false)
	}
	// The timers of calls have already been removed with the sessions.
	for o, _ := e.timers.First(); o != nil; o, _ = e.timers.First() {
		e.finishOpLocked(o, Result{Err: ErrClosed})
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

// release releases the carriers. It is called once, by the leader, after every callback has run.
func (e *endpoint) release() {
	for i := range e.routes {
		e.routes[i].carrier.Release()
	}
}

// isLingering reports whether a carrier is still waiting for its last packets to be acknowledged,
// which takes a limited time. Until then the endpoint must be polled and must not be released.
// isLingering is called after shutDown and is safe for concurrent use.
func (e *endpoint) isLingering() bool {
	if e.nctx.isBroken() {
		return false
	}
	now := e.dom.now()
	return slices.ContainsFunc(e.routes, func(r route) bool { return r.carrier.Lingering(now) })
}

// collectStats returns the context's counters and gauges.
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
		s.Queued += l.unsentLen()
		s.Leases += l.leases.n
		s.Streams += len(l.streams)
	}
	e.dom.mu.Lock()
	s.Reserved = e.dom.reserved + e.dom.room
	e.dom.mu.Unlock()
	return s
}

// peerStats returns the counters and gauges of each session that is up.
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
