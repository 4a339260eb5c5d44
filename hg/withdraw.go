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

// A withdrawal is one request to be taken back. Handle.mu guards it. Several calls of Withdraw may wait for one.
//
//	still here, or waiting for an envelope ─► the send is canceled ─────────────────────────────► Withdrawn
//	sent ─► na.Withdraw ─► destroyed ─────────────────────────────────────────────────────────► Withdrawn
//	                    ├─ dispatched, or the answer came ──────────────────────────────────────► TooLate
//	                    └─ Cancel, timeout, peer lost ─► the call is canceled ─► no answer came ─► Indeterminate
//	                                                                         └─ one came ───────► TooLate
type withdrawal struct {
	h       *Handle
	k       *call
	gen     uint64 // of the call
	op      na.Op
	timers  []*na.Op
	asking  bool // op has been started
	lost    bool // nobody will say; the call was canceled, and its end decides
	late    bool // the answer came before the target's word
	settled bool
	result  WithdrawResult
	track   fsmcheck.Track
	cbs     []WithdrawFunc
	task    task
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
	defer k.note(k.found(evWithdraw))
	if h.closed {
		return misuse("withdraw", h.Name(), h.addr, ErrClosed, "the handle is closed")
	}
	before := k.withdrawal
	if before != nil && k.phase != idle && !before.settled { // join it
		before.note(before.found(evWithdraw))
		before.cbs = append(before.cbs, cb)
		before.limit(timeout)
		return nil
	}
	if !h.ctx.nctx.Hold() {
		return misuse("withdraw", h.Name(), h.addr, ErrClosed, "the context is closed and drained")
	}
	defer h.ctx.nctx.Unhold()
	h.refs.Add(1) // until tell
	w := &withdrawal{h: h, k: k, gen: k.gen}
	defer w.note(w.found(evWithdraw))
	w.cbs = append(w.cbs, cb)
	w.task.init(w.tell, nil)
	switch {
	case before != nil && k.phase != idle:
		w.settle(before.result)
	case k.phase != pending, k.canceling, k.understood || k.answered || k.pull != nil:
		w.settle(TooLate)
	case h.rpc.OneWay && k.sendEnded:
		w.settle(TooLate)
	case k.sent.Err != nil: // the call ends with that, unless an answer is there
		k.withdrawal, w.lost = w, true
	case !k.sendEnded:
		k.withdrawal = w
		w.limit(timeout)
		k.send.Cancel() // if it cannot be, onSent asks the target
	default:
		k.withdrawal = w
		w.limit(timeout)
		w.ask()
	}
	return nil
}

// recalling reports whether it is not known yet what becomes of the request that is to be taken back. Locked.
func (k *call) recalling() bool { return k.withdrawal != nil && !k.withdrawal.settled }

// taken reports whether the request was withdrawn. Locked.
func (k *call) taken() bool {
	return k.withdrawal != nil && k.withdrawal.settled && k.withdrawal.result == Withdrawn
}

// limit starts a timer. Locked.
func (w *withdrawal) limit(timeout time.Duration) {
	if timeout <= 0 {
		return
	}
	nctx := w.h.ctx.nctx
	timer := nctx.NewOp(w.expired)
	if nctx.Timer(timer, timeout) == nil {
		w.timers = append(w.timers, timer)
	}
}

// ask asks the target. Locked.
func (w *withdrawal) ask() {
	k := w.k
	nctx := w.h.ctx.nctx
	w.op.Init(nctx, w.answered, nil)
	if err := nctx.Withdraw(&w.op, k.sent.Addr, k.sent.ID); err != nil {
		w.lost = true // the context is closed, which ends the call
		return
	}
	w.asking = true
}

// giveUp cancels the call, because nobody will say what became of the request. An answer that is there already still counts,
// so callEnds decides. Locked.
func (w *withdrawal) giveUp() {
	w.asking, w.lost = false, true
	w.k.end(ErrCanceled)
}

// answered is called with what the target says.
func (w *withdrawal) answered(_ *na.Op, r na.Result) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	k := w.k
	mine := k.gen == w.gen && k.phase != idle // the call's callback has not run
	answered := w.late || mine && k.understood
	code := na.CodeOf(r.Err)
	e := wordEvent(code, answered)
	defer w.note(w.found(e))
	if mine {
		defer k.note(k.found(e))
	}
	switch {
	case code == na.OK && answered:
		h.ctx.nctx.Disconnect(r.Addr, na.WithText(ErrProtocol, "the peer answered a request that it said it had destroyed"))
		w.settle(TooLate)
	case code == na.OK:
		w.settle(Withdrawn)
		if mine && k.phase == pending {
			k.stop()
		}
	case code == na.ErrTooLate, answered:
		w.settle(TooLate)
	case code == na.ErrUnsupported:
		w.settle(NotSupported)
	case mine && k.phase == pending:
		w.giveUp()
	default:
		w.settle(Indeterminate)
	}
}

// expired is called when the time is up.
func (w *withdrawal) expired(_ *na.Op, r na.Result) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.settled || w.lost {
		return
	}
	defer w.note(w.found(endEvent(r.Err, evDeadline, evTimerEnded)))
	if r.Err == nil {
		if w.asking {
			w.op.Cancel() // answered goes on
			return
		}
		k := w.k
		defer k.note(k.found(evUnknown))
		w.giveUp()
	}
}

// settle fixes the result and has the callbacks run. Locked.
func (w *withdrawal) settle(r WithdrawResult) {
	w.settled, w.result = true, r
	for _, timer := range w.timers {
		timer.Cancel()
	}
	_ = w.h.ctx.post(&w.task)
}

// sendEnded is called when the request has left, or will not. Locked.
func (w *withdrawal) sendEnded(r na.Result) {
	defer w.note(w.found(endEvent(r.Err, evSent, evSendFailed)))
	switch {
	case w.lost:
	case r.Err == nil && w.h.rpc.OneWay:
		w.settle(TooLate)
	case r.Err == nil:
		w.ask()
	case na.CodeOf(r.Err) == ErrCanceled && r.Fate == na.NotRun && !w.k.canceling:
		w.settle(Withdrawn)
	default:
		w.lost = true // and the call ends with that
	}
}

// callEnds is called when the call's parts have ended. Locked.
func (w *withdrawal) callEnds() {
	defer w.note(w.found(evCallEnds))
	w.late = w.k.understood
	switch {
	case w.asking:
		w.op.Cancel() // unless its answer is there already
	case w.k.answered: // one whose output was still to be fetched came too late for a call that was canceled
		w.settle(TooLate)
	default:
		w.settle(Indeterminate)
	}
}

// tell runs in Trigger.
func (w *withdrawal) tell(any) {
	h := w.h
	h.mu.Lock()
	w.found(evTrigger)
	cbs := w.cbs
	w.cbs = nil
	w.note(evTrigger)
	h.mu.Unlock()
	defer h.release()
	w.call(cbs)
}

// call runs callbacks, the others too when one panics or ends the goroutine.
func (w *withdrawal) call(cbs []WithdrawFunc) {
	if len(cbs) == 0 {
		return
	}
	defer w.call(cbs[1:])
	if cb := cbs[0]; cb != nil {
		cb(w.h, w.result)
	}
}
