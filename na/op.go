package na

import "sync/atomic"

// The life of an Op, all of it in one atomic word (generation, holds, canceling, phase):
//
//	       start              Finish (first one wins)                  Trigger
//	idle ─────────► active ───────────────────────────────► queued ───────────► idle, generation+1
//	                 │  ▲ └─ while it is held ─► decided ──────▲
//	                 └──┘                         │  ▲   no holds left
//	             Hold, Release: a transport       └──┘ borrows the operation's memory
//
// The endpoint lists the Op itself from begin to finish (see endpointState), under its lock. What may outlive that keeps a ticket: the Op and
// the generation that it was given. A ticket of an earlier life changes nothing. Delivery waits until every hold is released, so that nobody
// touches the memory after the callback.
const (
	opIdle uint64 = iota
	opActive
	opDecided
	opQueued

	opPhaseMask  = 0x0f
	opCanceling  = 0x10
	opDue        = 0x20 // in the completion queue, though it may not have ended: ticket.setDue
	opHoldOne    = 1 << 8
	opHoldMask   = 0xffff << 8
	opGenShift   = 24
	opHoldsLimit = opHoldMask
)

// opKind names an operation in errors.
type opKind uint8

const (
	kindLookup opKind = iota
	kindRecvUnexpected
	kindDeregister
	kindPost
	kindTimer
	kindSendUnexpected
	kindSendExpected
	kindRecvExpected
	kindCall
	kindPut
	kindGet
	kindLease
	kindWithdraw
	kindProbe

	kindsOfPeer = kindSendUnexpected // these and those behind are with a peer
)

var kindText = [...]string{"lookup", "receive unexpected", "deregister", "post", "timer", "send unexpected", "send expected",
	"receive expected", "call", "put", "get", "lease", "withdraw", "probe"}

// A Done is called with the outcome of one operation. It runs inside Trigger. The Op is idle again when it runs, so Done may start
// it anew.
type Done func(op *Op, r Result)

// A Result is how an operation ended. Of a RecvExpected or Lease that ended because the peer ended the session in order, Addr is
// bound to that session and ID is the first message in it which the peer has not taken, nor any after it.
type Result struct {
	Err      error     // nil, or an *OpError
	Fate     Fate      // for a failed send: whether a byte of it left
	N        int64     // bytes sent, received or moved
	Addr     Addr      // Lookup: the address; receives: the sender; Put, Get, SendUnexpected, Call: the peer; bound to its session
	ID       uint64    // SendUnexpected, Call: what Withdraw needs to name the message in that session
	Tag      Tag       // receives: the message's tag
	Envelope *Envelope // RecvUnexpected, and RecvExpectedLong of a message longer than its buffer: the message; the caller owns it now
}

// An Op is one operation at a time: reusable, never copied. It belongs to the context that made it.
type Op struct {
	word    atomic.Uint64
	nctx    *Context
	step    Step // runs done, or is a layer's
	kind    opKind
	addr    Addr
	result  Result
	task    Task
	data    any  // the user's
	patient bool // see SetPatient
	hasty   bool // see SetHasty

	expedited bool // see SetExpedited

	endpointState
}

// NewOp returns an idle operation that calls done at its end. It may be started again after each end.
func (c *Context) NewOp(done Done) *Op {
	return c.NewStep(done.step)
}

// A Step is a Done of a layer above: it returns how many callbacks of the program it has run.
type Step func(op *Op, r Result) (ran int)

func (d Done) step(op *Op, r Result) int {
	d(op, r)
	return 1
}

// NewStep is NewOp for a layer above.
func (c *Context) NewStep(step Step) *Op {
	op := &Op{}
	op.InitStep(c, step, nil)
	return op
}

// InitStep is Init for a layer above.
func (op *Op) InitStep(c *Context, step Step, data any) {
	if op.Busy() {
		panic("na: Init of an operation that is under way")
	}
	op.nctx, op.step, op.data = c, step, data
	op.task.Init(endOp, op)
}

// endOp is what Trigger does with an operation that has ended.
func endOp(data any) (ran int) {
	op := data.(*Op)
	if op.word.Load()&opDue != 0 && !op.expire() {
		return 0
	}
	step := op.step // op may be started anew, or be another's, once take has returned
	return step(op, op.takeResult())
}

// Init makes op, which is zero or idle, an operation of c that calls done at its end, and keeps data with it: NewOp for
// operations that are part of something else.
func (op *Op) Init(c *Context, done Done, data any) {
	op.InitStep(c, done.step, data)
}

// Data returns what Init kept.
func (op *Op) Data() any { return op.data }

// SetPatient says whether SendUnexpected of the idle operation may wait for an envelope whatever Config.OnNoCredit says,
// because its caller waits too. What waits so does not count against Config.SendQueue.
func (op *Op) SetPatient(on bool) { op.patient = on }

// SetHasty has SendUnexpected of the idle operation end with ErrNoCredit if no envelope is free, whatever Config.OnNoCredit says.
func (op *Op) SetHasty(on bool) { op.hasty = on }

// SetExpedited says whether what the idle operation sends is expedited: for a call that is in flight already, or a probe. Such a
// message passes by the ordinary ones that wait for an envelope, may use the peer's ExpeditedEnvelopes, which they may not, and
// neither counts against Config.SendQueue nor is refused for Config.OnNoCredit; a Lease and a Get are not refused for what ordinary
// ones hold. The peer's program has to accept expedited messages without waiting for anything, else only the sender stands still.
func (op *Op) SetExpedited(on bool) { op.expedited = on }

// Busy reports whether the operation was started and its callback has not begun.
func (op *Op) Busy() bool { return op.word.Load()&opPhaseMask != opIdle }

// Cancel asks for the end of the operation. It never blocks, and an operation that is idle or has ended stays as it
// is. The callback still runs once: with ErrCanceled if the cancel won, with the result otherwise. It is ready for Trigger
// when Cancel returns, also if another goroutine was about to end the operation: the endpoint, whose lock that goroutine
// holds, is asked in any case.
func (op *Op) Cancel() {
	if t, ok := op.markCanceling(); ok {
		op.nctx.cancelOp(t)
	}
}

// markCanceling has whoever starts op see that it is to end, and reports whether there is anything to end.
func (op *Op) markCanceling() (t ticket, ok bool) {
	for {
		w := op.word.Load()
		if w&opPhaseMask == opIdle {
			return ticket{}, false
		}
		if w&opPhaseMask != opActive || w&opCanceling != 0 || op.word.CompareAndSwap(w, w|opCanceling) {
			return ticket{op, w >> opGenShift}, true
		}
	}
}

// beginLife takes an idle operation into a new life.
func (op *Op) beginLife(kind opKind, addr Addr) (ticket, error) {
	w := op.word.Load()
	if w&opPhaseMask != opIdle || !op.word.CompareAndSwap(w, w|opActive) {
		return ticket{}, &OpError{Op: kindText[kind], Addr: addr, Fate: NotRun, Err: ErrBusy}
	}
	op.kind, op.addr = kind, addr
	if !op.nctx.Upper().Hold() {
		op.word.Store(w)
		return ticket{}, op.nctx.refusedError(kind, addr, ErrClosed)
	}
	return ticket{op, w >> opGenShift}, nil
}

// undoStart undoes start when nothing was handed to a plugin.
func (op *Op) undoStart() {
	w := op.word.Load()
	op.word.Store((w>>opGenShift + 1) << opGenShift)
	op.nctx.callbackReturned()
}

// errTimerCanceled is how canceled timers end, all of them alike.
var errTimerCanceled = &OpError{Op: kindText[kindTimer], Fate: MaybeRan, Err: ErrCanceled}

// expire ends an operation that is due, and reports false if a transport has its memory: the last Release queues it once more.
func (op *Op) expire() bool {
	op.nctx.ep.abandonCall(ticket{op, op.word.Load() >> opGenShift}, ErrTimeout) // if somebody else is ending it right now, he has then
	for {
		w := op.word.Load()
		if w&opPhaseMask == opQueued {
			return true
		}
		op.nctx.Upper().Hold() // what is run now counts as ended
		if op.word.CompareAndSwap(w, w&^opDue) {
			return false
		}
		op.nctx.Upper().Unhold()
	}
}

// takeResult ends the queued life of op and returns its result: what Trigger does before it runs the callback.
func (op *Op) takeResult() Result {
	r := op.result
	op.result.Err, op.result.Envelope = nil, nil
	switch {
	case r.Err == nil:
	case op.kind == kindTimer && r.Err == ErrCanceled: // as it is with each call in time that has a deadline
		r.Err = errTimerCanceled
	default:
		r.Err = &OpError{Op: kindText[op.kind], Addr: op.addr, Fate: r.Fate, Err: r.Err}
	}
	w := op.word.Load()
	op.word.Store((w>>opGenShift + 1) << opGenShift)
	return r
}

// ticket returns that of the life of an operation that an endpoint has taken in.
func (op *Op) ticket() ticket { return ticket{op, op.word.Load() >> opGenShift} }

// A ticket is one life of an Op: what is held by those who may outlive it, as a View that a carrier has.
type ticket struct {
	op  *Op
	gen uint64
}

// isValid reports whether t is a ticket at all.
func (t ticket) isValid() bool { return t.op != nil }

// isTakenIn reports whether the endpoint has taken this life in and not ended it. The caller holds endpoint.mu.
func (t ticket) isTakenIn() bool { return t.op.at != 0 && t.op.word.Load()>>opGenShift == t.gen }

// isCanceling reports whether Cancel was called on this life. An endpoint asks under its lock when it takes the operation in:
// either it sees the cancel here, or the cancel finds the operation taken in.
func (t ticket) isCanceling() bool {
	w := t.op.word.Load()
	return w>>opGenShift == t.gen && w&opCanceling != 0
}

// hold borrows the operation's memory. It reports false when the outcome is fixed: the memory must not be touched.
// Every Hold that reported true is followed by a Release. Holds are short: a copy or one system call that does not block.
func (t ticket) hold() bool {
	for {
		w := t.op.word.Load()
		if w>>opGenShift != t.gen || w&opPhaseMask != opActive || w&opHoldMask == opHoldsLimit {
			return false
		}
		if t.op.word.CompareAndSwap(w, w+opHoldOne) {
			return true
		}
	}
}

// release gives the memory back. The last release of a decided operation delivers it.
func (t ticket) release() {
	for {
		w := t.op.word.Load()
		last := w&opPhaseMask == opDecided && w&opHoldMask == opHoldOne
		n := w - opHoldOne
		if last {
			n = n&^opPhaseMask | opQueued
		}
		if t.op.word.CompareAndSwap(w, n) {
			if last {
				nctx := t.op.nctx
				if w&opDue == 0 {
					nctx.queueEnded(t.op)
				}
				nctx.slow.Store(0)
				nctx.lingering.Add(-1)
			}
			return
		}
	}
}

// setDue has Trigger end the operation, by endpoint.abandonCall with ErrTimeout, if nothing else has by then. The caller holds the lock under
// which it finishes tickets.
func (t ticket) setDue() {
	for {
		w := t.op.word.Load()
		if w>>opGenShift != t.gen || w&opPhaseMask != opActive || w&opDue != 0 {
			return
		}
		if t.op.word.CompareAndSwap(w, w|opDue) {
			t.op.nctx.queueEnded(t.op)
			return
		}
	}
}

// finish fixes the outcome and reports whether it was the first to do so. r.Err is a Code or wraps one. Delivery to
// the completion queue follows when nobody holds the memory. Finish never blocks and runs no user code.
func (t ticket) finish(r Result) bool {
	for {
		w := t.op.word.Load()
		if w>>opGenShift != t.gen || w&opPhaseMask != opActive {
			return false
		}
		if w&opHoldMask == 0 { // and nobody can hold it from now on
			if t.op.word.CompareAndSwap(w, w&^opPhaseMask|opQueued) {
				t.op.result = r
				if w&opDue == 0 {
					t.op.nctx.queueEnded(t.op)
				}
				return true
			}
			continue
		}
		n := (w&^opPhaseMask | opDecided) + opHoldOne
		if t.op.word.CompareAndSwap(w, n) {
			t.op.result = r
			t.op.nctx.lingering.Add(1)
			t.release()
			return true
		}
	}
}
