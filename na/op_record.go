package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// op is the endpoint's record of an operation. It is in at most one list; endpoint.mu guards it.
type op struct {
	t        ticket
	kind     opKind
	session  *session
	list     *opList
	prev     *op
	next     *op
	hashNext *op // in a tagTable

	tag      Tag
	buf      []byte
	body     []byte   // beside buf, of a message that has not left
	packed   packed   // has body, if it was copied
	bodyID   uint64   // while the peer may have some of it, and no message
	by       Deadline // of an unexpected message
	mem      *Mem     // local side of a put or get; memory of a lease
	loff     int64
	key      Key
	roff     int64
	n        int64
	at       int64          // bytes sent or received so far
	id       uint64         // of a put or get; of the message of a withdraw
	place    timeheap.Place // in endpoint.timers, of a timer, or of a call that has a deadline
	most     int            // bytes that the receive of an expected message takes
	into     []byte         // receives the answer of a call whose request has not left: then it becomes buf
	intoMost int            // likewise most
	oneWay   bool           // a call without an answer
	// expedited says that the message of the op counts in active.expediting.
	expedited bool
	bodies    bool         // the receive takes a body, too
	room      int          // claimed for an unexpected message that has not left
	last      bool         // a message that uses the last envelope of a peer, and ends when there is another
	flow      carrier.Lane // of a put
	source    *source
	sink      *sink
	stop      func()    // ends a lookup
	streams   []*Stream // of a call whose request has not left
	streamsAt int       // where in buf they are named
}

// leaseKey finds the lease that goes with an expected message.
type leaseKey struct {
	session *session
	tag     Tag
}

// begin makes the record of an operation, or finishes it when it must not begin. Locked.
func (e *endpoint) begin(t ticket, k opKind) *op {
	o := e.freeOps
	if o == nil {
		o = &op{}
		e.ops = append(e.ops, o)
	} else {
		e.freeOps, o.next = o.next, nil
	}
	o.t, o.kind = t, k
	t.setImpl(o)
	return o
}

// refusal tells why an operation that is just being started must end at once. Locked.
func (e *endpoint) refusal(t ticket) error {
	switch {
	case e.shut:
		return e.closedErr()
	case t.isCanceling():
		return ErrCanceled
	}
	return nil
}

// refuse ends a start that must not begin. Locked; it returns the lock.
func (e *endpoint) refuse(t ticket, err error) {
	e.mu.Unlock()
	t.finish(Result{Err: err, Fate: NotRun})
}

// finish ends o: takes it out of every table, and gives the ticket its result. Locked.
func (e *endpoint) finish(o *op, r Result) {
	e.detach(o)
	t, mem := o.t, o.mem
	lease := o.kind == kindLease
	t.setImpl(nil)
	*o = op{next: e.freeOps}
	e.freeOps = o
	if lease {
		if !mem.revoke(t, r) {
			t.finish(r)
		}
		return
	}
	if mem != nil {
		mem.Release()
	}
	t.finish(r)
}

// detach takes o out of its list and of the tables.
func (e *endpoint) detach(o *op) {
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
		delete(e.tokens, o.mem.Key().Token)
	case kindWithdraw:
		o.session.forgetWithdraw(o)
	case kindTimer, kindProbe:
		e.dropTimer(o)
	case kindPut, kindGet:
		e.inFlight.remove(o.id)
		if o.source != nil {
			o.session.dropSource(o.source)
		}
		if o.sink != nil {
			e.dropSink(o.sink)
		}
		if o.session.queuedMoves.n > 0 { // one of them may begin
			o.session.markPending()
		}
	}
	if o.packed.body != nil {
		o.packed.unpack(o)
	}
	if o.bodyID != 0 {
		o.session.recallBody(o)
	}
}

// cancel ends o with err. Locked.
func (e *endpoint) cancel(o *op, err error) {
	r := Result{Err: err, Fate: MaybeRan, N: o.at}
	l, flow := o.session, o.flow
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
		o.ended(&r)
	case kindProbe:
		r.Fate = NotRun
	case kindPut, kindGet:
		if moving = o.id; moving == 0 {
			r.Fate = NotRun
		}
	}
	e.finish(o, r)
	if moving != 0 && l.Up() {
		l.controlOn(flow, cancelMove(moving)) // a courtesy: the peer may stop early. It may also be what ends l.
	}
}
