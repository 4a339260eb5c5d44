package hg

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A deadline travels with its request as the remaining time, since the two sides have no common
// clock. na writes it into the header when the request leaves; the target counts from the arrival.
// Each side uses its own clock, and neither counts the time on the network: so the deadline passes
// at the origin first, which then notifies the target by Abandon.
//
//	origin: Forward ─── timer: Abandon, the call ends ────────────────────────────────────►│ ErrTimeout
//	           └─ waits for an envelope ─► leaves, with the remaining time
//	target:                                  arrives ─ fetched, waits for room, queued ─►│   not run, answered ErrTimeout
//	                                                                    └─ handler runs ──►│ its context ends
//
// A request that waits at the target, to be admitted or to be run, is refused a little before its
// deadline: otherwise its origin, whose deadline passes first, would not learn which limit delayed
// it.

var (
	errDeadlinePassed = na.WithText(ErrTimeout, "deadline exceeded before the handler began")
	errDeadlineOver   = na.WithText(ErrTimeout, "deadline exceeded")
	errClosing        = na.WithText(ErrClosed, "the process is shutting down")
	errDraining       = na.WithText(ErrDraining, "the target is shutting down")
	errClosed         = na.WithText(ErrClosed, "the process has shut down or closed its node")
	errAbandoned      = na.WithText(ErrCanceled, "the origin has abandoned the call")
	errLost           = na.WithText(ErrPeerLost, "the session with the origin has ended")
	errRequestEnded   = na.WithText(ErrCanceled, "the request has ended")
)

// SetTimeout limits how long each later call of h may take, from Forward on; 0, the initial value,
// is no limit. A negative d has passed: Forward fails. A call in flight keeps its limit.
//
// At the deadline the call ends with an error that matches os.ErrDeadlineExceeded and ErrTimeout,
// and the target is notified as by Abandon. The target knows the remaining time, too: after the
// deadline it does not start the handler, and it ends the context of a handler that runs. The fate
// of the request is
//   - NotRun if the request still waited on this side for an envelope or a connection: it is not
//     sent;
//   - NotRun if the target's answer that it did not run arrives before the call ends. A request
//     that a limit of the target keeps waiting is refused a little before the deadline, also with
//     ErrTimeout: the text of the error names the limit;
//   - MaybeRan otherwise; use Withdraw to be certain.
//
// The remaining time travels in 32 bits, in microseconds: a call with more than about 71 minutes
// left when it leaves has no deadline at its target. Its origin ends it there at the deadline, as
// by Abandon.
//
// Progress checks the time: the call ends in a Trigger after it.
func (h *Handle) SetTimeout(d time.Duration) {
	h.mu.Lock()
	h.timeout = d
	h.mu.Unlock()
}

// Abandon cancels the call in flight and notifies the target: a request whose handler has not begun
// is destroyed there, and the context of a handler that runs ends. Like Cancel it does not block;
// the notification may be lost. Withdraw waits for an answer. Abandon may be called at any time; it
// does nothing to idle and ended calls.
func (h *Handle) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.call; k.isInFlightLocked() {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonLocked ends the call from this side and notifies the target, now or when the operation has
// ended.
func (k *call) abandonLocked(why na.Code) {
	if k.abandonPending = !k.isParsed; k.abandonPending && k.opRunning && !k.canceling {
		k.h.ctx.nctx.Upper().AbandonCall(&k.op)
		k.abandonPending = false
	}
	k.endLocallyLocked(why)
}

// maxTimeout limits the timeout of a call, so that it can be added to a time without overflow.
const maxTimeout = math.MaxInt64 / 4

// setDeadlineLocked sets the deadline of a call, and reports false if it has passed.
func (k *call) setDeadlineLocked(limit time.Duration) bool {
	if limit < 0 {
		return false
	}
	k.deadline = na.Deadline{At: k.begun + min(limit, maxTimeout), Field: budgetAt}
	return true
}

// startTimerLocked starts the timer of the deadline for the parts that remain after the operation
// has ended.
func (k *call) startTimerLocked() {
	if k.deadline.At == 0 {
		return
	}
	nctx := k.h.ctx.nctx
	if k.timerOp == nil {
		k.timerOp = nctx.NewStep(k.onTimer)
	}
	// it fails only if the context is closed, which ends the other parts too
	if nctx.Upper().TimerAt(k.timerOp, k.deadline.At) == nil {
		k.timerRuns = true
		k.openParts++
	}
}

func (k *call) onTimer(_ *na.Op, r na.Result) (ran int) {
	k.h.mu.Lock()
	k.timerRuns = false
	if r.Err == nil && k.openParts > 1 && !k.canceling {
		k.endLocallyLocked(ErrTimeout)
	}
	return k.finishPart()
}

// setBudget sets the deadline from the remaining time in the header of a request, or from
// RPC.Timeout if that is earlier. A budget of MaxBudget is no deadline: the real one does not fit
// the header, and the origin abandons the request then.
func (s *service) setBudget(us uint32) {
	budget := time.Duration(us) * time.Microsecond
	if us == na.MaxBudget {
		budget = 0
	}
	s.ownTimeout = s.rpc != nil && s.rpc.Timeout > 0 && (budget == 0 || s.rpc.Timeout < budget)
	if s.ownTimeout {
		budget = s.rpc.Timeout
	}
	if budget == 0 {
		return
	}
	arrived := s.env.Arrived
	if arrived == 0 {
		arrived = s.ctx.Now()
	}
	s.deadline = arrived + budget
	s.waitDeadline = s.deadline - min(budget/2, max(minMargin, min(budget/8, maxMargin)))
}

// A waiting request is refused an eighth of its budget before its deadline, but at least minMargin
// and at most maxMargin.
const (
	minMargin = time.Millisecond
	maxMargin = 250 * time.Millisecond
)

// isLate reports whether the deadline of a request has passed.
func (s *service) isLate() bool { return s.deadline != 0 && s.ctx.Now() >= s.deadline }

// isNearDeadline reports whether the time left is within the margin. An origin abandons a call at
// its own deadline, which by the clock of the target is a little earlier or later: in both cases
// the handler's context ends with DeadlineExceeded.
func (s *service) isNearDeadline() bool { return s.deadline != 0 && s.ctx.Now() >= s.waitDeadline }

// timedOut reports whether the handler context of r has ended by the deadline, and whether the
// deadline was that of RPC.Timeout.
func (r Request) timedOut() (late, bounded bool) {
	s, ok := r.lockService()
	if !ok {
		return false, false
	}
	defer s.mu.Unlock()
	g := s.handlerCtx
	return s.isLate() || g != nil && g.deadline != nil && g.deadline.Err() != nil, s.ownTimeout
}

// A deadlineTimer fires at the deadline of a request. It is made only if something waits for that,
// and does not hold the record. A timer that was canceled is reused for another request.
type deadlineTimer struct {
	s  *service
	op na.Op
}

// timerPool holds free timers. It is no field of Context: a sync.Pool, and whatever contains it,
// stays in memory until two garbage collections after its last use.
var timerPool = sync.Pool{New: func() any { return &deadlineTimer{} }}

// putBack returns a timer whose operation is idle to the pool, without references.
func (a *deadlineTimer) putBack() {
	a.s = nil
	a.op.InitStep(nil, nil, nil)
	timerPool.Put(a)
}

// armTimerLocked starts the timer of a request that has a deadline and no timer: it fires at a
// time, and then at the deadline.
func (s *service) armTimerLocked(at time.Duration) {
	nctx := s.ctx.nctx
	if s.deadline == 0 || s.timer != nil {
		return
	}
	a := timerPool.Get().(*deadlineTimer)
	a.op.InitStep(nctx, fireTimer, a)
	a.s = s
	if nctx.Upper().TimerAt(&a.op, at) == nil {
		s.timer = a
	}
}

// fireTimer is the callback of a timer's operation.
func fireTimer(op *na.Op, r na.Result) (ran int) { return op.Data().(*deadlineTimer).fire(r) }

// fire ends the waits of a request: shortly before the deadline the wait to be admitted or run; at
// the deadline also the fetching of the input, a detached request, and the context of a handler.
func (a *deadlineTimer) fire(r na.Result) (ran int) {
	s := a.s
	s.mu.Lock()
	if s.timer != a { // the record may serve another request now
		s.mu.Unlock()
		a.putBack()
		return 0
	}
	if r.Err != nil {
		s.mu.Unlock()
		return 0
	}
	late, why := s.isLate(), s.heldUpErrLocked()
	waited := s.endWaitLocked()
	switch {
	case waited:
	case !late:
		_ = s.ctx.nctx.Upper().TimerAt(&a.op, s.deadline) // it fails only if the context is closed
	case s.phase == serviceFetching:
		s.pull.cancel()
	case s.phase == serviceRunning && s.detached:
		s.answerForLocked(errorBody{code: ErrTimeout, fate: na.MaybeRan, text: errDeadlineOver.Error()})
	}
	if late {
		s.endWithContext((*handlerContext).expireAtDeadline)
	} else {
		s.mu.Unlock()
	}
	if waited {
		s.rejectRequest(why)
	}
	return 0
}

// heldUpErrLocked returns the error of a request that waits to be admitted or run, which names the
// limit; nil if it does not wait.
func (s *service) heldUpErrLocked() error {
	switch s.phase {
	case serviceWaiting:
		return errHeldUp(s.describeFullLimit())
	case serviceGiven:
		return errHeldUp(fmt.Sprintf("no worker is free (qs.Config.MaxConcurrent or hg.Config.Dispatch), %d calls are active",
			s.ctx.admission.active.Load()))
	}
	return nil
}

func errHeldUp(limit string) error {
	return na.WithText(ErrTimeout, "the handler did not begin before the deadline: "+limit)
}
