package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An endpointState is the state of an operation in the endpoint: the part of an Op that endpoint.mu
// guards. It is zero before takeInLocked and after finishOpLocked, so that an idle Op does not keep
// the user's memory alive. An operation is in at most one list.
type endpointState struct {
	at       int // index in endpoint.ops plus 1; 0 if it is not there
	session  *session
	list     *opList
	prev     *Op
	next     *Op
	hashNext *Op // in a postedTable

	tag Tag
	// the number of a request or probe, or of the message of a withdraw; the ID of a put or get; 0:
	// it was not sent
	id       uint64
	buf      []byte // the message until it is sent; for a call then the buffer of the answer
	most     int    // the bytes that the receive of an expected message takes
	reply    []byte // buf for the answer of a call whose request was not sent
	replyMax int    // most for the answer of a call whose request was not sent
	by       Deadline
	place    timeheap.Index // the index in endpoint.timers, for a timer, or a call or probe with a deadline
	room     int            // the room claimed for an unexpected message that was not sent

	oneWay  bool // a call without an answer
	bodies  bool // the receive takes a body too
	last    bool // a message that uses the last envelope of a peer, and ends when there is another one
	counted bool // it is counted in activeState.expediting

	x *opExtra // nil for most messages and calls
}

// An opExtra is the part of an operation's state that only some kinds need. It comes from
// endpoint.exts, and returns there when the operation ends.
type opExtra struct {
	// For a put or get; for a lease only mem.
	mem  *Mem // the local side
	loff int64
	key  Key
	roff int64
	n    int64
	at   int64 // the bytes sent or received so far
	sink *inboundBulk

	// For a message that was not sent.
	body   []byte     // the body beside it
	packed packedBody // the copy of body, if there is one
	// the ID of body, while the peer may have a part of it and not the message; otherwise 0
	bodyID    uint64
	streams   []*Stream // the streams of a call
	streamsAt int       // the offset in buf of the number of the first stream

	source *outboundBulk // the source of a put or a body
	flow   carrier.Lane  // the flow of source

	lookup *lookup
}

// A lookup is the state that an operation shares with the resolver of names. endpoint.mu guards it.
type lookup struct {
	op   *Op    // nil: it has ended
	stop func() // cancels the resolver; or nil
}

// A leaseKey identifies the lease of an expected message.
type leaseKey struct {
	session *session
	tag     Tag
}

// takeInLocked adds a started operation to the endpoint. From then on only endpoint.finishOpLocked
// ends it.
func (e *endpoint) takeInLocked(t ticket) *Op {
	e.ops = append(e.ops, t.op)
	t.op.at = len(e.ops)
	return t.op
}

// beginExtLocked calls takeInLocked and allocates an opExtra for the operation.
func (e *endpoint) beginExtLocked(t ticket) *Op {
	o := e.takeInLocked(t)
	o.x = e.exts.get()
	return o
}

// movedBytes returns how many bytes of a put or get have been sent or received.
func (o *Op) movedBytes() int64 {
	if o.x == nil {
		return 0
	}
	return o.x.at
}

// hasBody reports whether a message that was not sent has a body.
func (o *Op) hasBody() bool { return o.x != nil && o.x.body != nil }

// lookupStop returns the function that cancels the resolver of a lookup, to be called without the
// lock, or nil.
func (o *Op) lookupStop() func() {
	if o.kind != kindLookup {
		return nil
	}
	return o.x.lookup.stop
}

// refusalOfLocked returns an error if an operation that is being started must end at once.
func (e *endpoint) refusalOfLocked(t ticket) error {
	switch {
	case e.shut:
		return e.closedErrLocked()
	case t.isCanceling():
		return ErrCanceled
	}
	return nil
}

// refuseStart unlocks e.mu, and ends an operation that is being started with err.
func (e *endpoint) refuseStart(t ticket, err error) {
	e.mu.Unlock()
	t.finish(Result{Err: err, Fate: NotRun})
}

// finishOpLocked ends o: it removes o from every table, and decides its result. After it another
// goroutine may reuse o.
func (e *endpoint) finishOpLocked(o *Op, r Result) {
	e.detachOp(o)
	if r.Err != nil && o.kind == kindCall && o.x != nil {
		o.x.endClosedStreams()
	}
	e.finishDetachedLocked(o, r)
}

// finishDetachedLocked ends an operation that detachOp has removed from all tables.
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

// detachOp removes o from its list and from the tables.
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

// cancelOpLocked ends o with err.
func (e *endpoint) cancelOpLocked(o *Op, err error) {
	r := Result{Err: err, Fate: MaybeRan, N: o.movedBytes()}
	l, flow := o.session, carrier.Messages
	moving := uint64(0) // the ID of a put or get in flight
	switch o.kind {
	case kindSendUnexpected, kindSendExpected:
		// it was not sent: otherwise it would have ended, or be in heldLast
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
		l.controlOn(flow, cancelMove(moving)) // so that the peer can stop early. Last, because it may end l.
	}
}
