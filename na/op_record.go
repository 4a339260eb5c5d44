package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// endpointState is what an endpoint has of an operation that it has taken in: the part of an Op that endpoint.mu guards. It is zero before begin and
// after finish, so an idle Op keeps no memory of the program alive. An operation is in at most one list.
type endpointState struct {
	at       int // in endpoint.ops, counted from 1; 0: it is not taken in
	session  *session
	list     *opList
	prev     *Op
	next     *Op
	hashNext *Op // in a postedTable

	tag      Tag
	id       uint64 // number of the request, of what a withdraw asks for, of a probe; identity of a put or get. 0: it has not left
	buf      []byte // the message until it has left; then what receives
	most     int    // bytes that the receive of an expected message takes
	reply    []byte // receives the answer of a call whose request has not left: then it becomes buf
	replyMax int    // likewise most
	by       Deadline
	place    timeheap.Index // in endpoint.timers, of a timer, or of a call that has a deadline
	room     int            // claimed for an unexpected message that has not left

	oneWay  bool // a call without an answer
	bodies  bool // the receive takes a body, too
	last    bool // a message that uses the last envelope of a peer, and ends when there is another
	counted bool // in active.expediting

	x *opExtra // nil for most messages and calls
}

// An opExtra is what only some operations have. It comes from endpoint.exts, and goes back when the operation ends.
type opExtra struct {
	// Of a put or get; of a lease there is mem only.
	mem  *Mem // the local side
	loff int64
	key  Key
	roff int64
	n    int64
	at   int64 // bytes sent or received so far
	sink *inboundBulk

	// Of a message that has not left.
	body      []byte     // beside it
	packed    packedBody // has body, if it was copied
	bodyID    uint64     // while the peer may have some of it, and no message
	streams   []*Stream  // of a call
	streamsAt int        // where in buf they are named

	source *outboundBulk // of a put or a body,
	flow   carrier.Lane  // which leaves there

	lookup *lookup
}

// A lookup is what the resolver of names has of an operation. endpoint.mu guards it.
type lookup struct {
	op   *Op    // nil when it has ended
	stop func() // ends the resolver's part; or nil
}

// leaseKey finds the lease that goes with an expected message.
type leaseKey struct {
	session *session
	tag     Tag
}

// takeIn takes in an operation that was started. From now on endpoint.finishOp ends it, and ticket.finish alone does not. Locked.
func (e *endpoint) takeIn(t ticket) *Op {
	e.ops = append(e.ops, t.op)
	t.op.at = len(e.ops)
	return t.op
}

// beginExt is begin of one that has an opExtra. Locked.
func (e *endpoint) beginExt(t ticket) *Op {
	o := e.takeIn(t)
	o.x = e.exts.get()
	return o
}

// movedBytes is how many bytes of a put or get have been sent or received.
func (o *Op) movedBytes() int64 {
	if o.x == nil {
		return 0
	}
	return o.x.at
}

// hasBody reports whether a message that has not left has a body beside it.
func (o *Op) hasBody() bool { return o.x != nil && o.x.body != nil }

// lookupStop returns what ends the resolver's part of a lookup, with the lock returned; or nil.
func (o *Op) lookupStop() func() {
	if o.kind != kindLookup {
		return nil
	}
	return o.x.lookup.stop
}

// refusalOf tells why an operation that is just being started must end at once. Locked.
func (e *endpoint) refusalOf(t ticket) error {
	switch {
	case e.shut:
		return e.closedErr()
	case t.isCanceling():
		return ErrCanceled
	}
	return nil
}

// refuseStart ends a start that must not begin. Locked; it returns the lock.
func (e *endpoint) refuseStart(t ticket, err error) {
	e.mu.Unlock()
	t.finish(Result{Err: err, Fate: NotRun})
}

// finishOp ends o, which was taken in: removes it from every table, and fixes its outcome. From then on o may be anybody's. Locked.
func (e *endpoint) finishOp(o *Op, r Result) {
	e.detachOp(o)
	if r.Err != nil && o.kind == kindCall && o.x != nil {
		o.x.endClosedStreams()
	}
	e.finishDetached(o, r)
}

// finishDetached is finish of an operation that is in no table any more. Locked.
func (e *endpoint) finishDetached(o *Op, r Result) {
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

// detachOp takes o out of its list and of the tables.
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
		if o.session.queuedMoves.n > 0 { // one of them may begin
			o.session.markPending()
		}
		return
	}
	if x := o.x; x != nil {
		if x.packed.body != nil {
			x.packed.release(x.source)
		}
		if x.bodyID != 0 {
			o.session.recallBody(o)
		}
	}
}

// cancelOp ends o with err. Locked.
func (e *endpoint) cancelOp(o *Op, err error) {
	r := Result{Err: err, Fate: MaybeRan, N: o.movedBytes()}
	l, flow := o.session, carrier.Messages
	moving := uint64(0) // what the peer may stop
	switch o.kind {
	case kindSendUnexpected, kindSendExpected: // not pulled yet, else it would have ended, or be held
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
	e.finishOp(o, r)
	if moving != 0 && l.Up() {
		l.controlOn(flow, cancelMove(moving)) // a courtesy: the peer may stop early. It may also be what ends l.
	}
}
