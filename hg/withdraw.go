package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A WithdrawResult is what became of a request that was to be taken back.
type WithdrawResult uint8

// The results.
const (
	// Withdrawn: the request was destroyed, its handler did not run and never will. The call ends with ErrCanceled.
	Withdrawn WithdrawResult = iota
	// TooLate: the handler may run, is running or has; the call ends by itself, with its result.
	TooLate
	// Indeterminate: nobody knows; the peer was lost, did not say in time, or the call was canceled. It ends with an error. If an
	// answer came all the same the result is TooLate instead.
	Indeterminate
	// NotSupported: the target does not give requests back. The call goes on.
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

// A WithdrawFunc is called with the outcome of a Withdraw. It runs in Trigger, once.
type WithdrawFunc func(h *Handle, r WithdrawResult)

// The phases of a withdrawal.
const (
	withdrawalNew       fsmcheck.State = iota
	withdrawalRecalling                // the request had not left, and its operation ends
	withdrawalAsking                   // the target was asked
	withdrawalLost                     // nobody will say; the end of the call decides
	withdrawalSettled                  // the callbacks wait for Trigger
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

// A withdrawal is one request to be taken back. Handle.mu guards it. Several calls of Withdraw may wait for one.
//
//	still here, or waiting for an envelope ─► the send is canceled ─────────────────────────────► Withdrawn
//	sent ─► na.Withdraw ─► destroyed ─────────────────────────────────────────────────────────► Withdrawn
//	                    ├─ dispatched, or the answer came ──────────────────────────────────────► TooLate
//	                    └─ Cancel, timeout, peer lost ─► the call is canceled ─► no answer came ─► Indeterminate
//	                                                                         └─ one came ───────► TooLate
type withdrawal struct {
	h           *Handle
	k           *call
	gen         uint64 // of the call
	op          na.Op
	timers      []*na.Op
	phase       fsmcheck.State
	answerFirst bool // the answer came before the target's word
	result      WithdrawResult
	cbs         []WithdrawFunc
	task        na.Task
}

// Withdraw takes back the request of the call under way if its handler has not started. Unlike Cancel it asks the
// target, and cb is called with what came of it: with Withdrawn it is certain that the handler did not run. cb runs in Trigger
// exactly once; so does the call's own callback, before or after. A positive timeout bounds the wait: then the result is
// Indeterminate and the call is canceled. Several Withdraws of one call, until its callback runs, get one result; the
// shortest of their timeouts counts. The error matches ErrClosed when h is closed, or
// its context is closed and drained; cb does not run then.
func (h *Handle) Withdraw(timeout time.Duration, cb WithdrawFunc) error {
	k := h.call
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return misuseError("withdraw", h.Name(), h.addr, ErrClosed, "the handle is closed")
	}
	before := k.withdrawal
	if before != nil && k.phase != callIdle && before.phase < withdrawalSettled { // join it
		before.cbs = append(before.cbs, cb)
		before.startTimerLocked(timeout)
		return nil
	}
	if !h.ctx.nctx.Upper().Hold() {
		return misuseError("withdraw", h.Name(), h.addr, ErrClosed, "the context is closed and drained")
	}
	defer h.ctx.nctx.Upper().Unhold()
	h.refs.Add(1) // until tell
	w := &withdrawal{h: h, k: k, gen: k.gen}
	w.cbs = append(w.cbs, cb)
	w.task.Init(w.runInTrigger, nil)
	switch {
	case before != nil && k.phase != callIdle:
		w.settleLocked(before.result)
	case !k.isInFlightLocked(), k.canceling, k.isParsed || k.isAnswered || k.pull != nil:
		w.settleLocked(TooLate)
	case !k.opRunning && k.opResult.Err == nil: // one-way
		w.settleLocked(TooLate)
	case !k.opRunning: // the call ends with that
		k.withdrawal = w
		w.setPhaseLocked(withdrawalLost)
	default:
		k.withdrawal = w
		w.startTimerLocked(timeout)
		if to, id, left := h.ctx.nctx.Upper().CancelIfUnsent(&k.op); left {
			w.sendWithdrawLocked(to, id)
		} else {
			w.setPhaseLocked(withdrawalRecalling) // the operation has ended, of this or already
		}
	}
	return nil
}

// setPhaseLocked writes the phase. Locked.
func (w *withdrawal) setPhaseLocked(next fsmcheck.State) {
	withdrawalPhases.Move(w.phase, next)
	w.phase = next
}

// isOutstanding is hghook.IsOutstanding.
func (h *Handle) isOutstanding() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.call
	return k.isInFlightLocked() && !k.canceling && (k.pull != nil || !k.isParsed && !k.isAnswered)
}

// isWithdrawingLocked reports whether it is not known yet what becomes of the request that is to be taken back. Locked.
func (k *call) isWithdrawingLocked() bool {
	return k.withdrawal != nil && k.withdrawal.phase < withdrawalSettled
}

// isWithdrawnLocked reports whether the request was withdrawn. Locked.
func (k *call) isWithdrawnLocked() bool {
	return k.withdrawal != nil && k.withdrawal.phase >= withdrawalSettled && k.withdrawal.result == Withdrawn
}

// startTimerLocked starts a timer. Locked.
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

// sendWithdrawLocked asks the target. Locked.
func (w *withdrawal) sendWithdrawLocked(to na.Addr, id uint64) {
	nctx := w.h.ctx.nctx
	w.op.InitStep(nctx, w.onAnswer, nil)
	if err := nctx.Withdraw(&w.op, to, id); err != nil {
		w.setPhaseLocked(withdrawalLost) // the context is closed, which ends the call
		return
	}
	w.setPhaseLocked(withdrawalAsking)
}

// giveUpLocked cancels the call, because nobody will say what became of the request. An answer that is there already still counts,
// so callEnds decides. Locked.
func (w *withdrawal) giveUpLocked() {
	w.setPhaseLocked(withdrawalLost)
	w.k.endLocallyLocked(ErrCanceled)
}

// onAnswer is called with what the target says.
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
		h.ctx.nctx.Disconnect(r.Addr, na.WithText(na.ErrProtocol, "the peer answered a request that it said it had destroyed"))
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

// onTimer is called when the time is up.
func (w *withdrawal) onTimer(_ *na.Op, r na.Result) (ran int) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Err == nil && w.phase == withdrawalAsking {
		w.op.Cancel() // answered goes on
	}
	return 0
}

// settleLocked fixes the result and has the callbacks run. Locked.
func (w *withdrawal) settleLocked(r WithdrawResult) {
	w.setPhaseLocked(withdrawalSettled)
	w.result = r
	for _, timer := range w.timers {
		timer.Cancel()
	}
	w.h.ctx.nctx.Upper().Follow(&w.task)
}

// onRequestEndedLocked is called when the operation of the call has ended. Locked.
func (w *withdrawal) onRequestEndedLocked(r na.Result) {
	switch {
	case w.phase != withdrawalRecalling:
	case r.Err == nil && w.h.rpc.OneWay:
		w.settleLocked(TooLate)
	case na.CodeOf(r.Err) == ErrCanceled && r.Fate == na.NotRun && !w.k.canceling:
		w.settleLocked(Withdrawn)
	default:
		w.setPhaseLocked(withdrawalLost) // and the call ends with that
	}
}

// onCallEndLocked is called when the call's parts have ended. Locked.
func (w *withdrawal) onCallEndLocked() {
	w.answerFirst = w.k.isParsed
	switch {
	case w.phase == withdrawalAsking:
		w.op.Cancel() // unless its answer is there already
	case w.k.isAnswered: // one whose output was still to be fetched came too late for a call that was canceled
		w.settleLocked(TooLate)
	default:
		w.settleLocked(Indeterminate)
	}
}

// runInTrigger runs in Trigger.
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

// runCallbacks runs callbacks, the others too when one panics or ends the goroutine.
func (w *withdrawal) runCallbacks(cbs []WithdrawFunc) {
	if len(cbs) == 0 {
		return
	}
	defer w.runCallbacks(cbs[1:])
	if cb := cbs[0]; cb != nil {
		cb(w.h, w.result)
	}
}
