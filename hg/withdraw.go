package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A WithdrawResult is the outcome of a Withdraw.
type WithdrawResult uint8

// Results of a Withdraw.
const (
	// Withdrawn means that the request was destroyed. Its handler did not run and never will. The
	// call completes with ErrCanceled.
	Withdrawn WithdrawResult = iota
	// TooLate means that the handler may run, is running, or has run. The call completes with its
	// own result.
	TooLate
	// Indeterminate means that the outcome is unknown, because the peer was lost, the target did
	// not respond in time, or the call was canceled. The call completes with an error. If the
	// call's response arrived anyway, the result is TooLate instead.
	Indeterminate
	// NotSupported means that the target does not support Withdraw. The call continues.
	NotSupported
)

// String returns the name of r in lower case.
func (r WithdrawResult) String() string {
	if int(r) < len(withdrawText) {
		return withdrawText[r]
	}
	return "invalid"
}

var withdrawText = [...]string{"withdrawn", "too late", "indeterminate", "not supported"}

// A WithdrawFunc is called with the outcome of a Withdraw. It is called in Trigger, exactly once.
type WithdrawFunc func(h *Handle, r WithdrawResult)

// Phases of a withdrawal.
const (
	withdrawalNew       fsmcheck.State = iota
	withdrawalRecalling                // the request had not been sent, and its operation is about to complete
	withdrawalAsking                   // waiting for the target's response
	withdrawalLost                     // there will be no response; completion of the call determines the result
	withdrawalSettled                  // the callbacks are waiting for Trigger
	withdrawalTold
)

var withdrawalPhases = fsmcheck.New("withdrawal",
	[]string{"new", "recalling", "asking", "lost", "settled", "told"},
	[][]fsmcheck.State{
		withdrawalNew:       {withdrawalRecalling, withdrawalAsking, withdrawalLost, withdrawalSettled},
		withdrawalRecalling: {withdrawalLost, withdrawalSettled},
		withdrawalAsking:    {withdrawalLost, withdrawalSettled},
		withdrawalLost:      {withdrawalSettled},
		withdrawalSettled:   {withdrawalTold},
		withdrawalTold:      {},
	})

// A withdrawal is an attempt to withdraw the request of one call. Several calls of Withdraw may
// share it. Handle.mu guards it.
//
// If the request has not been sent, or is waiting for an envelope, its send is canceled and the
// result is Withdrawn. Otherwise the target is asked to destroy the request. The result is
// Withdrawn if the target does so, and TooLate if the handler may already run or the response has
// arrived. If the call is canceled, the timeout expires, or the peer is lost first, the call is
// canceled. The result is then TooLate if the response to the call arrives anyway, and
// Indeterminate if not.
type withdrawal struct {
	h           *Handle
	k           *call
	gen         uint64 // generation of the call
	op          na.Op
	timers      []*na.Op
	phase       fsmcheck.State
	answerFirst bool // reports whether the response to the call arrived before the response to the withdrawal
	result      WithdrawResult
	cbs         []WithdrawFunc
	task        na.Task
}

// Withdraw withdraws the request of the call in flight, provided that its handler has not begun.
// Unlike Cancel, it obtains a response from the target. Withdraw does not block: cb is called in
// Trigger, exactly once, with the outcome. If the outcome is Withdrawn, it is certain that the
// handler did not run. The call's own callback also runs, before or after cb.
//
// A positive timeout limits the wait for the target. When it expires, the result is Indeterminate
// and the call is canceled. If Withdraw is called several times before the call's callback runs,
// all of these calls get the same result, and the shortest of their timeouts applies. The error
// matches ErrClosed if h is closed, or if its context is closed and drained. In that case cb is not
// called.
func (h *Handle) Withdraw(timeout time.Duration, cb WithdrawFunc) error {
	k := h.call
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return misuseError("withdraw", h.Name(), h.addr, ErrClosed, "the handle is closed")
	}
	before := k.withdrawal
	// Join the withdrawal in progress.
	if before != nil && k.phase != callIdle && before.phase < withdrawalSettled {
		before.cbs = append(before.cbs, cb)
		before.startTimerLocked(timeout)
		return nil
	}
	if !h.ctx.nctx.Upper().Hold() {
		return misuseError("withdraw", h.Name(), h.addr, ErrClosed, "the hg.Context is closed and drained")
	}
	defer h.ctx.nctx.Upper().Unhold()
	h.refs.Add(1) // held until runInTrigger
	w := &withdrawal{h: h, k: k, gen: k.gen}
	w.cbs = append(w.cbs, cb)
	w.task.Init(w.runInTrigger, nil)
	switch {
	case before != nil && k.phase != callIdle:
		w.settleLocked(before.result)
	case !k.isInFlightLocked(), k.canceling, k.isParsed || k.isAnswered || k.pull != nil:
		w.settleLocked(TooLate)
	case !k.opRunning && k.opResult.Err == nil: // a one-way call whose request has been sent
		w.settleLocked(TooLate)
	case !k.opRunning: // the call completes with the error of the operation
		k.withdrawal = w
		w.setPhaseLocked(withdrawalLost)
	default:
		k.withdrawal = w
		w.startTimerLocked(timeout)
		if to, id, left := h.ctx.nctx.Upper().CancelIfUnsent(&k.op); left {
			w.sendWithdrawLocked(to, id)
		} else {
			w.setPhaseLocked(withdrawalRecalling) // the operation has completed, because of the cancellation or earlier
		}
	}
	return nil
}

// setPhaseLocked sets the withdrawal's phase. In tests it also checks that the transition is
// allowed. The caller must hold Handle.mu.
func (w *withdrawal) setPhaseLocked(next fsmcheck.State) {
	withdrawalPhases.Move(w.phase, next)
	w.phase = next
}

// isOutstanding implements hghook.IsOutstanding. It reports whether a call is in flight whose
// complete response has not arrived.
func (h *Handle) isOutstanding() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	return k.isInFlightLocked() && !k.canceling && (k.pull != nil || !k.isParsed && !k.isAnswered)
}

// isWithdrawingLocked reports whether a withdrawal is in progress whose result is not yet known.
// The caller must hold k.h.mu.
func (k *call) isWithdrawingLocked() bool {
	return k.withdrawal != nil && k.withdrawal.phase < withdrawalSettled
}

// isWithdrawnLocked reports whether the request was withdrawn. The caller must hold k.h.mu.
func (k *call) isWithdrawnLocked() bool {
	return k.withdrawal != nil && k.withdrawal.phase >= withdrawalSettled && k.withdrawal.result == Withdrawn
}

// startTimerLocked starts a timer if timeout is positive. The caller must hold Handle.mu.
func (w *withdrawal) startTimerLocked(timeout time.Duration) {
	if timeout <= 0 {
		return
	}
	nctx := w.h.ctx.nctx
	timer := nctx.NewStep(w.onTimer)
	if nctx.Timer(timer, timeout) == nil {
		w.timers = append(w.timers, timer)
	}
}

// sendWithdrawLocked sends the withdrawal to the target. The caller must hold Handle.mu.
func (w *withdrawal) sendWithdrawLocked(to na.Addr, id uint64) {
	nctx := w.h.ctx.nctx
	w.op.InitStep(nctx, w.onAnswer, nil)
	if err := nctx.Withdraw(&w.op, to, id); err != nil {
		w.setPhaseLocked(withdrawalLost) // the context is closed, which ends the call
		return
	}
	w.setPhaseLocked(withdrawalAsking)
}

// giveUpLocked cancels the call, because there will be no response to the withdrawal. A response to
// the call that has already arrived still counts, so onCallEndLocked determines the result. The
// caller must hold Handle.mu.
func (w *withdrawal) giveUpLocked() {
	w.setPhaseLocked(withdrawalLost)
	w.k.endLocallyLocked(ErrCanceled)
}

// onAnswer handles the response to the withdrawal.
func (w *withdrawal) onAnswer(_ *na.Op, r na.Result) (ran int) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	k := w.k
	mine := k.gen == w.gen && k.phase != callIdle // the call's callback has not run
	answered := w.answerFirst || mine && k.isParsed
	code := na.CodeOf(r.Err)
	switch {
	case code == na.OK && answered:
		h.ctx.nctx.Disconnect(r.Addr, na.WithText(na.ErrProtocol, "the peer responded to a request that it had withdrawn"))
		w.settleLocked(TooLate)
	case code == na.OK:
		w.settleLocked(Withdrawn)
		if mine && k.isInFlightLocked() {
			k.markFailedLocked()
			k.cancelPartsLocked()
		}
	case code == na.ErrTooLate, answered:
		w.settleLocked(TooLate)
	case code == na.ErrUnsupported:
		w.settleLocked(NotSupported)
	case mine && k.isInFlightLocked():
		w.giveUpLocked()
	default:
		w.settleLocked(Indeterminate)
	}
	return 0
}

// onTimer handles expiry of the timeout passed to Withdraw.
func (w *withdrawal) onTimer(_ *na.Op, r na.Result) (ran int) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Err == nil && w.phase == withdrawalAsking {
		w.op.Cancel() // onAnswer continues
	}
	return 0
}

// settleLocked makes r the result of the withdrawal and queues the callbacks. The caller must hold
// Handle.mu.
func (w *withdrawal) settleLocked(r WithdrawResult) {
	w.setPhaseLocked(withdrawalSettled)
	w.result = r
	for _, timer := range w.timers {
		timer.Cancel()
	}
	w.h.ctx.nctx.Upper().Follow(&w.task)
}

// onRequestEndedLocked is called when the operation of the call has completed. The caller must hold
// Handle.mu.
func (w *withdrawal) onRequestEndedLocked(r na.Result) {
	switch {
	case w.phase != withdrawalRecalling:
	case r.Err == nil && w.h.rpc.OneWay:
		w.settleLocked(TooLate)
	case na.CodeOf(r.Err) == ErrCanceled && r.Fate == na.NotRun && !w.k.canceling:
		w.settleLocked(Withdrawn)
	default:
		w.setPhaseLocked(withdrawalLost) // the call completes with the error of the operation
	}
}

// onCallEndLocked is called when all parts of the call have completed. The caller must hold
// Handle.mu.
func (w *withdrawal) onCallEndLocked() {
	w.answerFirst = w.k.isParsed
	switch {
	case w.phase == withdrawalAsking:
		w.op.Cancel() // no effect if its response has arrived
	// A response whose output had to be fetched comes too late for a canceled call, and is not
	// counted here.
	case w.k.isAnswered:
		w.settleLocked(TooLate)
	default:
		w.settleLocked(Indeterminate)
	}
}

// runInTrigger is called in Trigger to run the callbacks once the result is known.
func (w *withdrawal) runInTrigger(any) (ran int) {
	h := w.h
	h.mu.Lock()
	cbs := w.cbs
	w.cbs = nil
	w.setPhaseLocked(withdrawalTold)
	h.mu.Unlock()
	defer h.releaseHold()
	w.runCallbacks(cbs)
	return 1
}

// runCallbacks runs cbs in order. If one of them panics or calls runtime.Goexit, the others still
// run.
func (w *withdrawal) runCallbacks(cbs []WithdrawFunc) {
	if len(cbs) == 0 {
		return
	}
	defer w.runCallbacks(cbs[1:])
	if cb := cbs[0]; cb != nil {
		cb(w.h, w.result)
	}
}
