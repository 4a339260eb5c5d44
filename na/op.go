package na

import "sync/atomic"

// The state of an Op is one atomic word (generation, holds, canceling, phase):
//
//	       start              finish (first one wins)                  Trigger
//	idle ─────────► active ───────────────────────────────► queued ───────────► idle, generation+1
//	                 │  ▲ └─ while it is held ─► decided ──────▲
//	                 └──┘                         │  ▲   no holds left
//	             hold, release: a transport       └──┘ borrows the operation's memory
//
// The endpoint has the Op in its lists, under its lock, from takeInLocked to finishOpLocked (see
// endpointState). References that may outlive that are tickets: the Op and a generation. A ticket
// of an earlier generation has no effect. The operation is queued only when every hold is released,
// so that no transport uses its memory after the callback.
const (
	opIdle uint64 = iota
	opActive
	opDecided
	opQueued

	opPhaseMask  = 0x0f
	opCanceling  = 0x10
	opDue        = 0x20 // in the completion queue before its end: ticket.setDue
	opHoldOne    = 1 << 8
	opHoldMask   = 0xffff << 8
	opGenShift   = 24
	opHoldsLimit = opHoldMask
)

// An opKind is the kind of an operation.
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

	kindsOfPeer = kindSendUnexpected // the first of the kinds that need a peer
)

var kindText = [...]string{"lookup", "receive unexpected", "deregister", "post", "timer", "send unexpected", "send expected",
	"receive expected", "call", "put", "get", "lease", "withdraw", "probe"}

// A Done is called with the result of an operation. It runs inside Trigger. The Op is idle by then,
// so that Done may start it again.
type Done func(op *Op, r Result)

// A Result is the result of an operation. If a RecvExpected or Lease ended because the peer has
// ended the session in order, Addr is bound to that session, and ID is the first message in it
// which the peer has not accepted; it has not accepted later ones either.
type Result struct {
	Err  error // nil, or an *OpError
	Fate Fate  // for a failed send: whether any byte of it was sent
	N    int64 // bytes sent, received or moved
	// Lookup: the address; receives: the sender; Put, Get, SendUnexpected, Call: the peer; bound to
	// its session
	Addr Addr
	ID   uint64 // SendUnexpected, Call: the number of the message in that session, for Withdraw
	Tag  Tag    // receives: the message's tag
	// RecvUnexpected, and RecvExpectedLong of a message longer than its buffer: the message; the
	// caller owns it now
	Envelope *Envelope
}

// An Op is one operation at a time. It can be reused, and must not be copied. It belongs to the
// context that has made it.
type Op struct {
	word    atomic.Uint64
	nctx    *Context
	step    Step // the completion function
	kind    opKind
	addr    Addr
	result  Result
	task    Task
	data    any  // the value of Data
	patient bool // see SetPatient
	hasty   bool // see SetHasty

	expedited bool // see SetExpedited

	endpointState
}

// NewOp returns an idle operation that calls done when it ends. It may be started again after each
// end.
func (c *Context) NewOp(done Done) *Op {
	return c.NewStep(done.step)
}

// A Step is the completion function of a layer above. It returns how many of the user's callbacks
// it has run.
type Step func(op *Op, r Result) (ran int)

func (d Done) step(op *Op, r Result) int {
	d(op, r)
	return 1
}

// NewStep returns an idle operation that calls step when it ends.
func (c *Context) NewStep(step Step) *Op {
	op := &Op{}
	op.InitStep(c, step, nil)
	return op
}

// InitStep makes op an operation of c that calls step when it ends: see Init.
func (op *Op) InitStep(c *Context, step Step, data any) {
	if op.Busy() {
		panic("na: Init of an operation that is under way")
	}
	op.nctx, op.step, op.data = c, step, data
	op.task.Init(endOp, op)
}

// endOp is the completion task of an operation. The operation has ended, or its deadline has passed
// (opDue): then expire ends it with ErrTimeout. If a transport still holds its memory, endOp returns
// 0, and runs again after the last release.
func endOp(data any) (ran int) {
	op := data.(*Op)
	if op.word.Load()&opDue != 0 && !op.expire() {
		return 0
	}
	step := op.step // before takeResult: another goroutine may start op or reuse its memory after it
	return step(op, op.takeResult())
}

// Init makes op, which is zero or idle, an operation of c that calls done when it ends, and sets
// its Data. It is for an Op that is a field of a larger struct; NewOp allocates one.
func (op *Op) Init(c *Context, done Done, data any) {
	op.InitStep(c, done.step, data)
}

// Data returns the data of Init.
func (op *Op) Data() any { return op.data }

// SetPatient sets whether a SendUnexpected of the idle operation may wait for an envelope in spite
// of Config.OnNoCredit, because its caller waits for it. Such messages do not count against
// Config.SendQueue.
func (op *Op) SetPatient(on bool) { op.patient = on }

// SetHasty sets whether a SendUnexpected of the idle operation ends with ErrNoCredit if no envelope
// is free, in spite of Config.OnNoCredit.
func (op *Op) SetHasty(on bool) { op.hasty = on }

// SetExpedited sets whether messages of the idle operation are expedited. That is for messages of a
// call that is in flight already, and for probes. An expedited message goes before ordinary ones
// that wait for an envelope, and may use the peer's ExpeditedEnvelopes. It does not count against
// Config.SendQueue, and Config.OnNoCredit does not apply. An expedited Lease or Get has limits of
// its own. The peer's program must accept expedited messages without waiting for anything;
// otherwise the sender stalls.
func (op *Op) SetExpedited(on bool) { op.expedited = on }

// Busy reports whether the operation was started and its callback has not begun.
func (op *Op) Busy() bool { return op.word.Load()&opPhaseMask != opIdle }

// Cancel cancels the operation. It never blocks, and does nothing if the operation is idle or has
// ended. The callback still runs once: with ErrCanceled if the cancel came first, with the result
// otherwise. It is ready for Trigger when Cancel returns, also if another goroutine is about to end
// the operation: Cancel takes the endpoint's lock, which that goroutine holds.
func (op *Op) Cancel() {
	if t, ok := op.markCanceling(); ok {
		op.nctx.cancelOp(t)
	}
}

// markCanceling sets the flag that makes a concurrent start end the operation, and returns the
// ticket of the operation. ok is false if op is idle.
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

// beginLife starts an idle operation.
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

// undoStart undoes beginLife, if the operation was not passed to the endpoint.
func (op *Op) undoStart() {
	w := op.word.Load()
	op.word.Store((w>>opGenShift + 1) << opGenShift)
	op.nctx.callbackReturned()
}

// errTimerCanceled is the error of all canceled timers. It is shared because each call that ends
// before its deadline cancels one.
var errTimerCanceled = &OpError{Op: kindText[kindTimer], Fate: MaybeRan, Err: ErrCanceled}

// expire ends an operation that is due with ErrTimeout, if it has not ended. It reports false if a
// transport holds its memory; the last release queues the operation again then.
func (op *Op) expire() bool {
	// If another goroutine is ending the operation, abandonCall returns after that, because it
	// takes the endpoint's lock.
	op.nctx.ep.abandonCall(ticket{op, op.word.Load() >> opGenShift}, ErrTimeout)
	for {
		w := op.word.Load()
		if w&opPhaseMask == opQueued {
			return true
		}
		op.nctx.Upper().Hold() // Trigger counts this run as the end of the operation
		if op.word.CompareAndSwap(w, w&^opDue) {
			return false
		}
		op.nctx.Upper().Unhold()
	}
}

// takeResult makes a queued op idle, and returns its result. Trigger calls it before the callback.
func (op *Op) takeResult() Result {
	r := op.result
	op.result.Err, op.result.Envelope = nil, nil
	switch {
	case r.Err == nil:
	case op.kind == kindTimer && r.Err == ErrCanceled:
		r.Err = errTimerCanceled
	default:
		r.Err = &OpError{Op: kindText[op.kind], Addr: op.addr, Fate: r.Fate, Err: r.Err}
	}
	w := op.word.Load()
	op.word.Store((w>>opGenShift + 1) << opGenShift)
	return r
}

// ticket returns the ticket of an operation that the endpoint has.
func (op *Op) ticket() ticket { return ticket{op, op.word.Load() >> opGenShift} }

// A ticket identifies one run of an Op, by its generation. It is kept by objects that may outlive
// the run, such as a View of a carrier.
type ticket struct {
	op  *Op
	gen uint64
}

// isValid reports whether t is not the zero ticket.
func (t ticket) isValid() bool { return t.op != nil }

// isTakenIn reports whether the endpoint has the operation, which has not ended. The caller holds
// endpoint.mu.
func (t ticket) isTakenIn() bool { return t.op.at != 0 && t.op.word.Load()>>opGenShift == t.gen }

// isCanceling reports whether Cancel was called. The endpoint checks it under its lock when it
// takes the operation in: either it sees the cancel here, or the cancel finds the operation in the
// endpoint.
func (t ticket) isCanceling() bool {
	w := t.op.word.Load()
	return w>>opGenShift == t.gen && w&opCanceling != 0
}

// hold borrows the operation's memory. It reports false if the result is decided: the memory must
// not be used then. Each hold that reported true is followed by a release. It must be short: one
// copy, or one nonblocking system call.
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

// release ends a hold. The last release of a decided operation queues it.
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

// setDue queues the operation, so that Trigger ends it by endpoint.abandonCall with ErrTimeout,
// unless it has ended by then. The caller holds endpoint.mu.
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

// finish decides the result, and reports whether it was the first to do so. r.Err is a Code or
// wraps one. The operation is queued when its memory is not held any more. finish never blocks, and
// runs no user code.
func (t ticket) finish(r Result) bool {
	for {
		w := t.op.word.Load()
		if w>>opGenShift != t.gen || w&opPhaseMask != opActive {
			return false
		}
		if w&opHoldMask == 0 { // hold fails from the CompareAndSwap on
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
