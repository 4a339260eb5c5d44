package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
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

// full is the error of an operation of which as many wait as may.
func full(limit int, what string) error {
	return na.WithText(na.ErrAgain, fmt.Sprintf("%d %s already, which is the limit", limit, what))
}

// An Endpoint implements na.Endpoint over a Carrier.
type Endpoint struct {
	na.Driver // of a Driven class: the carrier

	eng     *Engine
	host    *na.Host
	id      int
	routes  []route
	timer   atomic.Int64 // when Poll is due; 0 when never
	due     atomic.Int64 // when the first of timers is; 0 when there is none
	pending atomic.Bool  // kicked is not empty

	mu        sync.Mutex // guards everything below and every Link
	shut      bool
	broken    error // why e has ended by itself: a panic under mu; nil: it has not
	draining  bool
	finishing bool             // Confirm was called
	lost      []na.Unconfirmed // of sessions that have ended
	kicks     int              // Unlocks since frames were held back
	corks     int              // frames are held back while it is not 0
	now       time.Duration    // as last told
	links     map[uint64]*Link
	names     map[na.Addr]*Link
	recent    na.Addr // what find was asked last,
	found     *Link   // and found; nil once that link has ended
	waits     map[na.Addr]*backoff
	proofs    map[na.Addr]frame.Secret // of dialable peers whose session has ended: what the next HELLO shows
	retired   map[uint64][16]byte      // incarnations of the peers of sessions that have ended because they were idle
	leaving   int                      // sessions in linkLeaving
	shorts    int                      // links that wait for envelopes
	idle      [2]linkList              // sessions with nothing going on; in the second those that we have dialled
	busy      []*Link                  // links with something open, or that connect
	lastTick  time.Duration
	kicked    []*Link
	flushing  []*Link // the other half of kicked

	leases    map[matchKey]*op
	tokens    map[[16]byte]*op
	inFlight  idTable
	receivers opList // RecvUnexpected that wait
	lookups   opList
	timers    timeheap.Heap[op]
	inbox     fifo[*na.Envelope]
	arrived   atomic.Int32 // messages in inbox that were not withdrawn
	gone      int          // of inbox, that were withdrawn

	ops       []*op // all that were ever made
	freeOps   *op
	freeEnvs  []*na.Envelope
	idleBytes int // of their buffers
	sources   pool[source]
	sinks     pool[sink]
	incoming  pool[body]
	arrivings pool[arriving]
	head      frame.Header // of the frame that leaves now
	stats     na.Stats
	messages  uint64 // sent and received
	reached   uint64 // gets and puts of peers that have begun
}

var _ na.Endpoint = (*Endpoint)(nil)

func newEndpoint(g *Engine, host *na.Host) *Endpoint {
	return &Endpoint{
		eng: g, host: host, id: host.Context().ID(),
		links: map[uint64]*Link{}, names: map[na.Addr]*Link{}, retired: map[uint64][16]byte{}, waits: map[na.Addr]*backoff{}, proofs: map[na.Addr]frame.Secret{},
		leases: map[matchKey]*op{}, tokens: map[[16]byte]*op{},
	}
}

// Engine returns the engine of the class.
func (e *Endpoint) Engine() *Engine { return e.eng }

// Host returns the context.
func (e *Endpoint) Host() *na.Host { return e.host }

// ID returns the target id.
func (e *Endpoint) ID() int { return e.id }

// Messages counts those that were sent and received. Locked.
func (e *Endpoint) Messages() uint64 { return e.messages }

// Lookup implements na.Endpoint.
func (e *Endpoint) Lookup(t na.Ticket, text string) {
	e.mu.Lock()
	if err := e.refusal(t); err != nil {
		e.refuse(t, err)
		return
	}
	addr, err := na.ParseAddr(text)
	if err == nil && addr.Scheme() != e.eng.own.Scheme {
		err = na.WithText(na.ErrUnsupported, fmt.Sprintf("address %s is not of transport %s: open another node or class, at %s://, to reach it",
			text, e.eng.own.Scheme, addr.Scheme()))
	}
	if err == nil && e.lookups.n >= maxLookups {
		err = full(maxLookups, "lookups of the context are under way")
	}
	if err != nil {
		e.refuse(t, err)
		return
	}
	o := e.begin(t, kindLookup)
	e.lookups.push(o)
	e.mu.Unlock()
	stop := e.eng.own.Names.Resolve(addr.Name(), func(name string, err error) {
		e.mu.Lock()
		if o.t == t {
			r := na.Result{Err: err}
			if err == nil {
				r.Addr, r.Err = e.lookedUp(addr, name)
			}
			e.finish(o, r)
		}
		e.mu.Unlock()
	})
	e.mu.Lock()
	switch {
	case o.t == t:
		o.stop = stop
	case stop != nil:
		defer stop()
	}
	e.mu.Unlock()
}

// SendUnexpected implements na.Endpoint.
func (e *Endpoint) SendUnexpected(t na.Ticket, to na.Addr, tag na.Tag, buf []byte, by na.Deadline) {
	e.send(t, kindSendUnexpected, to, tag, buf, packed{}, nil, by, 0)
}

// SendExpected implements na.Endpoint.
func (e *Endpoint) SendExpected(t na.Ticket, to na.Addr, tag na.Tag, buf, body []byte, copied bool, most int) {
	p := packed{body: body}
	var err error
	if copied && body != nil {
		p, err = e.pack(to, body)
	}
	e.send(t, kindSendExpected, to, tag, buf, p, err, na.Deadline{}, most)
}

func (e *Endpoint) send(t na.Ticket, k kind, to na.Addr, tag na.Tag, buf []byte, p packed, bad error, by na.Deadline, most int) {
	body := p.body
	if k == kindSendUnexpected && (e.eng.cfg.OnNoCredit != na.Queue && !t.Expedited() || t.Hasty()) && e.short(to) {
		e.host.Look() // credit may have arrived that nobody has read (G11)
	}
	e.mu.Lock()
	l, err := e.linkFor(t, to)
	claim, claimed := 0, (*Link)(nil)
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
	case k == kindSendUnexpected && l.sendQueue() >= e.eng.cfg.SendQueue && !t.Patient() && !t.Expedited():
		err = na.WithText(na.ErrNoCredit, fmt.Sprintf(
			"%d messages to the peer wait for an envelope or for room, as many as Config.SendQueue allows", e.eng.cfg.SendQueue))
	case k == kindSendExpected && l.answers >= maxAnswers:
		err = full(maxAnswers, "expected messages to the peer wait to leave")
	}
	if err != nil {
		p.unpack(nil)
		if claimed != nil {
			claimed.returnRoom(claim)
		}
		e.refuse(t, err)
		return
	}
	o := e.begin(t, k)
	o.link, o.tag, o.buf, o.body, o.packed, o.by, o.most, o.room = l, tag, buf, body, p, by, most, claim
	l.waiting++
	if k == kindSendExpected {
		l.answers++
		l.depart(o)
	} else {
		l.countExpedited(o)
		l.request(o)
	}
	l.kick()
	e.Unlock()
}

// RecvUnexpected implements na.Endpoint.
func (e *Endpoint) RecvUnexpected(t na.Ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusal(t); err != nil {
		t.Finish(na.Result{Err: err})
		return
	}
	if env := e.takeEnvelope(); env != nil {
		e.countArrived()
		t.Finish(na.Result{Envelope: env, Addr: env.From, Tag: env.Tag, N: int64(len(env.Data))})
		return
	}
	e.receivers.push(e.begin(t, kindRecvUnexpected))
}

// RecvExpected implements na.Endpoint.
func (e *Endpoint) RecvExpected(t na.Ticket, from na.Addr, tag na.Tag, buf []byte, most int) {
	e.mu.Lock()
	l, err := e.linkFor(t, from)
	switch {
	case err != nil:
	case l.match.find(tag) != nil:
		err = na.WithText(na.ErrBusy, "a receive of this peer and tag is posted already")
	case l.recvs.n-maxRecvs >= e.eng.cfg.SendQueue: // calls wait in the send queue with their receives posted
		err = full(l.recvs.n, "receives of the peer are posted")
	}
	if err != nil {
		e.refuse(t, err)
		return
	}
	o := e.begin(t, kindRecvExpected)
	o.link, o.tag, o.buf, o.most = l, tag, buf, most
	l.match.add(o)
	l.waiting++
	l.recvs.push(o)
	e.Unlock()
}

// Put implements na.Endpoint.
func (e *Endpoint) Put(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	e.startMove(t, kindPut, local, loff, to, key, roff, n)
}

// Get implements na.Endpoint.
func (e *Endpoint) Get(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	e.startMove(t, kindGet, local, loff, to, key, roff, n)
}

func (e *Endpoint) startMove(t na.Ticket, k kind, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	e.mu.Lock()
	l, err := e.linkFor(t, to)
	limit := maxQueuedMoves
	if t.Expedited() {
		limit *= 2
	}
	if err == nil && l.queuedMoves.n >= limit {
		err = full(limit, "gets and puts to the peer wait to begin")
	}
	if err != nil {
		e.mu.Unlock()
		local.Release()
		t.Finish(na.Result{Err: err, Fate: na.NotRun})
		return
	}
	o := e.begin(t, k)
	o.link, o.mem, o.loff, o.key, o.roff, o.n = l, local, loff, key, roff, n
	l.waiting++
	l.queuedMoves.push(o)
	l.kick()
	e.Unlock()
}

// Lease implements na.Endpoint.
func (e *Endpoint) Lease(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem) {
	e.mu.Lock()
	l, err := e.linkFor(t, to)
	limit := maxLeases
	if t.Expedited() {
		limit = maxExpeditedLeases
	}
	if err == nil && l.leases.n >= limit {
		err = full(limit, "leases of the peer have not ended")
	}
	if err == nil && e.leases[matchKey{l, tag}] != nil {
		err = na.WithText(na.ErrBusy, "a lease for this peer and tag has not ended")
	}
	if err != nil {
		e.mu.Unlock()
		if r := (na.Result{Err: err, Fate: na.NotRun}); !m.Revoke(t, r) {
			t.Finish(r)
		}
		return
	}
	o := e.begin(t, kindLease)
	o.link, o.tag, o.mem = l, tag, m
	e.leases[matchKey{l, tag}] = o
	e.tokens[m.Key().Token] = o
	e.eng.publish(m, l.session)
	l.waiting++
	l.leases.push(o)
	e.Unlock()
}

// GiveBack implements na.Endpoint.
func (e *Endpoint) GiveBack(to na.Addr, key na.Key) {
	e.mu.Lock()
	if l := e.find(to); l != nil && l.Up() && !e.shut {
		l.control(giveBack(key))
	}
	e.Unlock()
}

// Cancel implements na.Endpoint.
func (e *Endpoint) Cancel(t na.Ticket) {
	e.mu.Lock()
	o, _ := t.Impl().(*op)
	if o == nil || o.t != t {
		e.mu.Unlock()
		return // being started: it will see Canceling; or ended
	}
	stop := o.stop
	e.cancel(o, na.ErrCanceled)
	e.Unlock()
	if stop != nil {
		stop()
	}
}

// Shut implements na.Endpoint.
func (e *Endpoint) Shut() {
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
		e.finish(o, na.Result{Err: na.ErrClosed})
	}
	var stops []func()
	for o := e.lookups.head; o != nil; o = e.lookups.head {
		if o.stop != nil {
			stops = append(stops, o.stop)
		}
		e.finish(o, na.Result{Err: na.ErrClosed})
	}
	for _, l := range e.sorted() {
		l.close(na.ErrClosed, na.ErrClosed, "the process closed the context", false)
	}
	for o, _ := e.timers.First(); o != nil; o, _ = e.timers.First() { // without those of calls by now
		e.finish(o, na.Result{Err: na.ErrClosed})
	}
	for env := e.takeEnvelope(); env != nil; env = e.takeEnvelope() {
		e.accept(env)
		e.recycle(env)
	}
	e.countArrived()
	e.kicked = e.kicked[:0]
	e.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// Release implements na.Endpoint.
func (e *Endpoint) Release() {
	for i := range e.routes {
		e.routes[i].carrier.Release()
	}
}

// Lingering implements na.Endpoint.
func (e *Endpoint) Lingering() bool {
	if e.host.Broken() {
		return false
	}
	now := e.eng.opts.Now()
	return slices.ContainsFunc(e.routes, func(r route) bool { return r.carrier.Lingering(now) })
}

// Stats implements na.Endpoint.
func (e *Endpoint) Stats() na.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	for _, l := range e.links {
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
	}
	e.eng.mu.Lock()
	s.Reserved = e.eng.reserved + e.eng.room
	e.eng.mu.Unlock()
	return s
}

// Peers implements na.Endpoint.
func (e *Endpoint) Peers() []na.PeerStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []na.PeerStats
	for _, l := range e.sorted() {
		if l.Up() {
			all = append(all, l.gauges())
		}
	}
	return all
}
