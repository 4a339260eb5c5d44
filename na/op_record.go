package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An endpointState is the part of an Op that describes its state in the endpoint. It is guarded by
// endpoint.mu. It is zero before takeInLocked and after finishOpLocked, so that an idle Op does not
// keep the user's memory reachable. An operation is in at most one list.
type endpointState struct {
	at       int // index in endpoint.ops plus 1; 0 if it is not there
	session  *session
	list     *opList
	prev     *Op
	next     *Op
	hashNext *Op // in a postedTable

	tag Tag
	// number of a request or probe, or of the message to withdraw; ID of a put or get; 0 if not
	// sent yet
	id       uint64
	buf      []byte // message until it is sent; for a call then the response buffer
	most     int    // maximum size in bytes of an expected message that the receive accepts
	reply    []byte // buf for the response of a call whose request has not been sent
	replyMax int    // most for the response of a call whose request has not been sent
	by       Deadline
	place    timeheap.Index // index in endpoint.timers, for a timer, or a call or probe with a deadline
	room     int            // room claimed for an unexpected message that has not been sent

	oneWay  bool // a call without a response
	bodies  bool // the receive also accepts a body
	last    bool // a message that uses a peer's last envelope, and completes when another one is free
	counted bool // counted in activeState.expediting

	x *opExtra // nil for most messages and calls
}

// An opExtra is the part of an operation's state that only some kinds need. It is taken from
// endpoint.exts, and returned there when the operation completes.
type opExtra struct {
	// For a put or get. A lease uses only mem.
	mem  *Mem // local side
	loff int64
	key  Key
	roff int64
	n    int64
	at   int64 // bytes sent or received so far
	sink *inboundBulk

	// For a message that has not been sent.
	body   []byte     // body sent separately from the message
	packed packedBody // copy of body, if there is one
	// ID of body while the peer may have part of it but not the message; otherwise 0
	bodyID    uint64
	streams   []*Stream // streams of a call
	streamsAt int       // offset in buf of the number of the first stream

	source *outboundBulk // source of a put or a body
	flow   carrier.Lane  // flow of source

	lookup *lookup
}

// A lookup is the state that an operation shares with the name resolver. It is guarded by
// endpoint.mu.
type lookup struct {
	op   *Op    // nil once the operation has completed
	stop func() // cancels the resolver, or nil
}

// A leaseKey identifies the lease that belongs to an expected message.
type leaseKey struct {
	session *session
	tag     Tag
}

// takeInLocked adds a started operation to the endpoint. Afterward, only endpoint.finishOpLocked
// may complete it. The caller must hold e.mu.
func (e *endpoint) takeInLocked(t ticket) *Op {
	e.ops = append(e.ops, t.op)
	t.op.at = len(e.ops)
	return t.op
}

// beginExtLocked adds a started operation to the endpoint, as takeInLocked does, and allocates an
// opExtra for it. e.mu must be held.
func (e *endpoint) beginExtLocked(t ticket) *Op {
	o := e.takeInLocked(t)
	o.x = e.exts.get()
	return o
}

// movedBytes returns the number of bytes of a put or get that have been sent or received.
func (o *Op) movedBytes() int64 {
	if o.x == nil {
		return 0
	}
	return o.x.at
}

// hasBody reports whether the message has a body and has not been sent.
func (o *Op) hasBody() bool { return o.x != nil && o.x.body != nil }

// lookupStop returns the function that cancels the resolver of a lookup, or nil. The function must
// be called without the lock held.
func (o *Op) lookupStop() func() {
	if o.kind != kindLookup {
		return nil
	}
	return o.x.lookup.stop
}

// refusalOfLocked returns an error if an operation that is being started must fail immediately,
// because the endpoint is closed or the operation was canceled. e.mu must be held.
func (e *endpoint) refusalOfLocked(t ticket) error {
	switch {
	case e.shut:
		return e.closedErrLocked()
	case t.isCanceling():
		return ErrCanceled
	}
	return nil
}

// refuseStart fails an operation that is being started with err. The caller must hold e.mu, which
// refuseStart unlocks.
func (e *endpoint) refuseStart(t ticket, err error) {
	e.mu.Unlock()
	t.finish(Result{Err: err, Fate: NotRun})
}

// finishOpLocked completes o with r, after removing o from all tables. Afterward, another
// goroutine may reuse o. e.mu must be held.
func (e *endpoint) finishOpLocked(o *Op, r Result) {
	e.detachOp(o)
	if r.Err != nil && o.kind == kindCall && o.x != nil {
		o.x.endClosedStreams()
	}
	e.finishDetachedLocked(o, r)
}

// finishDetachedLocked completes o, which detachOp has removed from all tables, with r. e.mu must
// be held.
func (e *endpoint) finishDetachedLocked(o *Op, r Result) {
	t, mem := o.ticket(), (*Mem)(nil)
	if o.x != nil {
		mem = o.x.mem
	}
	lease := o.kind == kindLease
	last := len(e.ops) - 1
	moved := e.ops[last]
	e.ops[o.at-1], moved.at = moved, o.at
	e.ops[last] = nil
	e.ops = e.ops[:last]
	if o.x != nil {
		e.exts.put(o.x)
	}
	o.endpointState = endpointState{}
	switch {
	case lease && mem.revoke(t, r):
		return
	case mem != nil && !lease:
		mem.Release()
	}
	t.finish(r)
}

// detachOp removes o from its list and from all tables.
func (e *endpoint) detachOp(o *Op) {
	if o.list != nil {
		if o.session != nil {
			o.session.waiting--
			if o.kind == kindSendExpected {
				o.session.answers--
			}
		}
		o.list.remove(o)
	}
	switch o.kind {
	case kindSendUnexpected, kindSendExpected:
		o.session.returnRoom(o.room)
		o.session.uncountExpedited(o)
	case kindCall:
		o.session.returnRoom(o.room)
		o.session.uncountExpedited(o)
		if !o.oneWay {
			o.session.posted.remove(o)
		}
		e.dropTimer(o)
	case kindRecvExpected:
		o.session.posted.remove(o)
	case kindLease:
		delete(e.leases, leaseKey{o.session, o.tag})
		delete(e.tokens, o.x.mem.Key().Token)
	case kindWithdraw:
		o.session.forgetWithdraw(o)
	case kindTimer, kindProbe:
		e.dropTimer(o)
	case kindLookup:
		o.x.lookup.op = nil
	case kindPut, kindGet:
		e.inFlight.remove(o.id)
		if o.x.source != nil {
			o.session.dropSource(o.x.source)
		}
		if o.x.sink != nil {
			e.dropSink(o.x.sink)
		}
		if o.session.queuedMoves.n > 0 { // another one may start
			o.session.markPending()
		}
		return
	}
	if x := o.x; x != nil {
		if x.packed.body != nil {
			x.packed.releaseLocked(x.source)
		}
		if x.bodyID != 0 {
			o.session.recallBody(o)
		}
	}
}

// cancelOpLocked completes o with err, and with the fate of its message or request. A put or get
// in flight is also canceled at the peer. A message that has been sent and is only held back by
// holdLast completes successfully instead. e.mu must be held.
func (e *endpoint) cancelOpLocked(o *Op, err error) {
	r := Result{Err: err, Fate: MaybeRan, N: o.movedBytes()}
	l, flow := o.session, carrier.Messages
	moving := uint64(0) // the ID of a put or get in flight
	switch o.kind {
	case kindSendUnexpected, kindSendExpected:
		// The message was not sent; otherwise it would have completed or be in heldLast.
		if r.Fate = NotRun; o.list == &l.heldLast {
			r = l.sentResult(o)
		}
		if o.kind == kindSendUnexpected && (o.list == &l.msgs || o.list == &l.bodies) {
			l.returnCredit()
		}
	case kindCall:
		if o.id == 0 && (o.list == &l.msgs || o.list == &l.bodies) {
			l.returnCredit()
		}
		o.completeCall(&r)
	case kindProbe:
		r.Fate = NotRun
	case kindPut, kindGet:
		flow = o.x.flow
		if moving = o.id; moving == 0 {
			r.Fate = NotRun
		}
	}
	e.finishOpLocked(o, r)
	if moving != 0 && l.Up() {
		l.controlOn(flow, cancelMove(moving)) // lets the peer stop early; last, because it may end l
	}
}
