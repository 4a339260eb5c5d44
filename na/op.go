package na

import "sync/atomic"

// The state of an Op is a single atomic word, which consists of a generation, the number of holds,
// flags, and a phase: idle, active, decided or queued.
//
// Starting an operation makes it active. While it is active, a transport may take holds, each of
// which allows it to use the operation's memory until the hold is released. The first call to
// finish decides the result, and later calls have no effect. If there are holds, the operation is
// then decided until the last one is released. After that it is queued, so that no transport uses
// its memory when the callback runs. Trigger makes it idle again and increments the generation.
//
// From takeInLocked to finishOpLocked, the endpoint holds the Op in its lists, guarded by its lock
// (see endpointState). References that may outlive that are tickets, which consist of the Op and a
// generation. A ticket of an earlier generation has no effect.
const (
	opIdle uint64 = iota
	opActive
	opDecided
	opQueued

	opPhaseMask  = 0x0f
	opCanceling  = 0x10
	opDue        = 0x20 // in the completion queue before it has completed; see ticket.setDue
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

	kindsOfPeer = kindSendUnexpected // first of the kinds that need a peer
)

var kindText = [...]string{"lookup", "receive unexpected", "deregister", "post", "timer", "send unexpected", "send expected",
	"receive expected", "call", "put", "get", "lease", "withdraw", "probe"}

// A Done is a callback that Trigger calls with the result of an operation. The Op is already idle,
// so the callback may start it again.
type Done func(op *Op, r Result)

// A Result is the result of an operation. If a RecvExpected or Lease completed because the peer
// closed the session in an orderly way, Addr is bound to that session and ID is the number of the
// first message in it that the peer has not accepted. The peer has not accepted any later message
// either.
type Result struct {
	Err  error // nil, or an *OpError
	Fate Fate  // for a failed send, whether any byte of it was sent
	N    int64 // number of bytes sent, received or moved
	// Addr is the address looked up by Lookup, the sender of a received message, or the peer of a
	// Put, Get, SendUnexpected or Call. Except for Lookup, it is bound to the session.
	Addr Addr
	ID   uint64 // for SendUnexpected and Call, the number of the message in that session, for Withdraw
	Tag  Tag    // for receives, the message's tag
	// Envelope is the message received by RecvUnexpected, or by RecvExpectedLong if the message is
	// longer than the buffer. It is owned by the callback.
	Envelope *Envelope
}

// An Op represents one operation at a time. It can be reused after the operation completes, but
// must not be copied. It belongs to the context that created it.
type Op struct {
	word    atomic.Uint64
	nctx    *Context
	step    Step // completion function
	kind    opKind
	addr    Addr
	result  Result
	task    Task
	data    any  // value returned by Data
	patient bool // see SetPatient
	hasty   bool // see SetHasty

	expedited bool // see SetExpedited

	endpointState
}

// NewOp returns an idle operation that calls done when it completes. It may be started again after
// each completion.
func (c *Context) NewOp(done Done) *Op {
	return c.NewStep(done.step)
}

// A Step is a completion function for use by a higher layer. It returns the number of user
// callbacks it has run.
type Step func(op *Op, r Result) (ran int)

func (d Done) step(op *Op, r Result) int {
	d(op, r)
	return 1
}

// NewStep returns an idle operation that calls step when it completes.
func (c *Context) NewStep(step Step) *Op {
	op := &Op{}
	op.InitStep(c, step, nil)
	return op
}

// InitStep is like Init but takes a Step.
func (op *Op) InitStep(c *Context, step Step, data any) {
	if op.Busy() {
		panic("na: Init of an operation in progress")
	}
	op.nctx, op.step, op.data = c, step, data
	op.task.Init(endOp, op)
}

// endOp is the completion task of an operation. Either the operation has completed, or its deadline
// has passed (opDue), in which case expire completes it with ErrTimeout. If a transport still holds
// its memory, endOp returns 0 and runs again after the last release.
func endOp(data any) (ran int) {
	op := data.(*Op)
	if op.word.Load()&opDue != 0 && !op.expire() {
		return 0
	}
	step := op.step // before takeResult, because afterward another goroutine may start op or reuse its memory
	return step(op, op.takeResult())
}

// Init makes op an operation of c that calls done when it completes, and sets its data. op must be
// zero or idle. Init is intended for an Op that is a field of a larger struct. NewOp allocates an
// Op.
func (op *Op) Init(c *Context, done Done, data any) {
	op.InitStep(c, done.step, data)
}

// Data returns the data passed to Init.
func (op *Op) Data() any { return op.data }

// SetPatient sets whether SendUnexpected may wait for an envelope regardless of Config.OnNoCredit,
// because its caller waits for the message to be sent. Such messages do not count against
// Config.SendQueue. The operation must be idle.
func (op *Op) SetPatient(on bool) { op.patient = on }

// SetHasty sets whether SendUnexpected fails with ErrNoCredit if no envelope is free, regardless of
// Config.OnNoCredit. The operation must be idle.
func (op *Op) SetHasty(on bool) { op.hasty = on }

// SetExpedited sets whether messages of the operation, which must be idle, are expedited. Expedited
// messages are intended for messages of a call that is already in flight, and for probes. An
// expedited message takes precedence over ordinary messages waiting for an envelope, and may use
// the peer's ExpeditedEnvelopes. It does not count against Config.SendQueue, and Config.OnNoCredit
// does not apply to it. Expedited Lease and Get operations have separate limits. The peer's program
// must accept expedited messages without waiting for anything; otherwise the sender stalls.
func (op *Op) SetExpedited(on bool) { op.expedited = on }

// Busy reports whether the operation has been started and its callback has not begun.
func (op *Op) Busy() bool { return op.word.Load()&opPhaseMask != opIdle }

// Cancel cancels the operation. It never blocks, and does nothing if the operation is idle or has
// completed. The callback still runs exactly once: with ErrCanceled if the operation was canceled
// first, and with the operation's result otherwise. When Cancel returns, the callback is ready for
// Trigger. That is the case even if another goroutine is completing the operation, because Cancel
// waits for the endpoint's lock, which that goroutine holds.
func (op *Op) Cancel() {
	if t, ok := op.markCanceling(); ok {
		op.nctx.cancelOp(t)
	}
}

// markCanceling sets the flag that makes a concurrent start complete the operation, and returns the
// operation's ticket. ok is false if op is idle.
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

// undoStart undoes beginLife. The operation must not have been passed to the endpoint.
func (op *Op) undoStart() {
	w := op.word.Load()
	op.word.Store((w>>opGenShift + 1) << opGenShift)
	op.nctx.callbackReturned()
}

// errTimerCanceled is the error of all canceled timers. It is shared because every call that
// completes before its deadline cancels one.
var errTimerCanceled = &OpError{Op: kindText[kindTimer], Fate: MaybeRan, Err: ErrCanceled}

// expire completes an expired operation with ErrTimeout if it has not completed. It returns false
// if a transport holds the operation's memory, in which case the last release queues the operation
// again.
func (op *Op) expire() bool {
	// If another goroutine is completing the operation, abandonCall returns only after that,
	// because it acquires the endpoint's lock.
	op.nctx.ep.abandonCall(ticket{op, op.word.Load() >> opGenShift}, ErrTimeout)
	for {
		w := op.word.Load()
		if w&opPhaseMask == opQueued {
			return true
		}
		op.nctx.Upper().Hold() // Trigger counts this run as the completion of the operation
		if op.word.CompareAndSwap(w, w&^opDue) {
			return false
		}
		op.nctx.Upper().Unhold()
	}
}

// takeResult makes a queued op idle and returns its result. Trigger calls it before the callback.
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

// ticket returns the ticket of an operation held by the endpoint.
func (op *Op) ticket() ticket { return ticket{op, op.word.Load() >> opGenShift} }

// A ticket identifies one run of an Op by its generation. It is kept by objects that may outlive
// the run, such as a carrier's View.
type ticket struct {
	op  *Op
	gen uint64
}

// isValid reports whether t is not the zero ticket.
func (t ticket) isValid() bool { return t.op != nil }

// isTakenIn reports whether the operation is held by the endpoint and has not completed. The
// caller must hold endpoint.mu.
func (t ticket) isTakenIn() bool { return t.op.at != 0 && t.op.word.Load()>>opGenShift == t.gen }

// isCanceling reports whether Cancel has been called. The endpoint checks it under its lock when it
// takes in the operation, so either it sees the cancellation here, or Cancel finds the operation in
// the endpoint.
func (t ticket) isCanceling() bool {
	w := t.op.word.Load()
	return w>>opGenShift == t.gen && w&opCanceling != 0
}

// hold borrows the operation's memory. It returns false if the result has been decided, in which
// case the memory must not be used. Each hold that returned true must be followed by a call to
// release. The memory must be held only briefly: for a single copy or a single nonblocking system
// call.
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

// release ends a hold. The last release of a decided operation queues the operation.
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

// setDue queues the operation so that Trigger completes it with ErrTimeout by calling
// endpoint.abandonCall, unless it has completed by then. The caller must hold endpoint.mu.
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

// finish decides the result and reports whether it was the first to do so. r.Err must be nil, a
// Code, or an error that wraps one. The operation is queued once its memory is no longer held.
// finish never blocks and runs no user code.
func (t ticket) finish(r Result) bool {
	for {
		w := t.op.word.Load()
		if w>>opGenShift != t.gen || w&opPhaseMask != opActive {
			return false
		}
		if w&opHoldMask == 0 { // hold fails once the CompareAndSwap has succeeded
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
