package hg

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A deadline is sent with its request as the remaining time, since the two sides have no common
// clock. Package na writes the remaining time into the header when the request is sent, and the
// target counts from the arrival of the request. Each side uses its own clock, and neither counts
// the time on the network. The deadline therefore passes first at the origin, where the call
// completes with ErrTimeout. The origin then notifies the target as by Abandon.
//
// At the target's own deadline, a handler that is running has its context canceled. A request that
// waits at the target, to be admitted or to be run, is refused shortly before its deadline.
// Otherwise the origin, whose deadline passes first, would not learn which limit delayed the
// request.

var (
	errDeadlinePassed = na.WithText(ErrTimeout, "deadline exceeded before the handler began")
	errDeadlineOver   = na.WithText(ErrTimeout, "deadline exceeded")
	errClosing        = na.WithText(ErrClosed, "the process is shutting down")
	errDraining       = na.WithText(ErrDraining, "the target is shutting down")
	errClosed         = na.WithText(ErrClosed, errtext.Closed)
	errAbandoned      = na.WithText(ErrCanceled, "the origin has abandoned the call")
	errLost           = na.WithText(ErrPeerLost, "the session with the origin has ended")
	errRequestEnded   = na.WithText(ErrCanceled, "the request has ended")
)

// SetTimeout limits the duration of each later call of h, starting at Forward. Zero, the initial
// value, means no limit. If d is negative, Forward fails. A call in flight keeps its limit.
//
// At the deadline the call completes with an error that matches os.ErrDeadlineExceeded and
// ErrTimeout, and the target is notified as by Abandon. The target also receives the remaining
// time. After the deadline it does not start the handler, and it cancels the context of a running
// handler. The fate of the request is
//
//   - NotRun if the request was still waiting on this side for an envelope or a connection, in
//     which case it is not sent;
//   - NotRun if the target reports, before the call completes, that it did not run the request. A
//     request that is held back by one of the target's limits is refused shortly before the
//     deadline, also with ErrTimeout and a text that names the limit;
//   - MaybeRan otherwise; use Withdraw to be certain.
//
// The remaining time is encoded in 32 bits, in microseconds. A call that has more than about 71
// minutes left when it is sent has no deadline at its target. The origin still ends it there at the
// deadline, as by Abandon.
//
// Progress checks the time, and the call completes in a later Trigger.
func (h *Handle) SetTimeout(d time.Duration) {
	h.mu.Lock()
	h.timeout = d
	h.mu.Unlock()
}

// Abandon cancels the call in flight and notifies the target. The target destroys a request whose
// handler has not begun, and cancels the context of a running handler. Abandon does not block. The
// notification may be lost; Withdraw, in contrast, waits for a response from the target. Abandon
// may be called at any time, and does nothing if no call is in flight.
func (h *Handle) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.call; k.isInFlightLocked() {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonLocked cancels the call with the error code why and notifies the target, either
// immediately or when the operation completes. The caller must hold k.h.mu.
func (k *call) abandonLocked(why na.Code) {
	if k.abandonPending = !k.isParsed; k.abandonPending && k.opRunning && !k.canceling {
		k.h.ctx.nctx.Upper().AbandonCall(&k.op)
		k.abandonPending = false
	}
	k.endLocallyLocked(why)
}

// maxTimeout limits the timeout of a call, so that adding the timeout to a time cannot overflow.
const maxTimeout = math.MaxInt64 / 4

// setDeadlineLocked sets the deadline of a call. It returns false if limit is negative, which means
// that the deadline has already passed. The caller must hold k.h.mu.
func (k *call) setDeadlineLocked(limit time.Duration) bool {
	if limit < 0 {
		return false
	}
	k.deadline = na.Deadline{At: k.begun + min(limit, maxTimeout), Field: budgetAt}
	return true
}

// startTimerLocked starts the deadline timer for the parts that remain after the operation has
// completed. The caller must hold k.h.mu.
func (k *call) startTimerLocked() {
	if k.deadline.At == 0 {
		return
	}
	nctx := k.h.ctx.nctx
	if k.timerOp == nil {
		k.timerOp = nctx.NewStep(k.onTimer)
	}
	// TimerAt fails only if the context is closed, which also ends the other parts.
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

// setBudget sets the deadline from the remaining time in a request's header, or from RPC.Timeout if
// that is earlier. A budget of MaxBudget means no deadline: the actual one does not fit in the
// header, and the origin abandons the request when it expires.
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

// A waiting request is refused when an eighth of its budget is left, but no less than minMargin and
// no more than maxMargin before its deadline.
const (
	minMargin = time.Millisecond
	maxMargin = 250 * time.Millisecond
)

// isLate reports whether the deadline of s has passed.
func (s *service) isLate() bool { return s.deadline != 0 && s.ctx.Now() >= s.deadline }

// isNearDeadline reports whether waitDeadline, which is shortly before the deadline, has passed. If
// the origin abandons the request after that time, the handler's context ends with
// DeadlineExceeded, because by the target's clock the origin's deadline may pass slightly early or
// late.
func (s *service) isNearDeadline() bool { return s.deadline != 0 && s.ctx.Now() >= s.waitDeadline }

// timedOut reports whether r's handler context has ended because of the deadline, and whether that
// deadline was set by RPC.Timeout.
func (r Request) timedOut() (late, bounded bool) {
	s, ok := r.lockService()
	if !ok {
		return false, false
	}
	defer s.mu.Unlock()
	g := s.handlerCtx
	return s.isLate() || g != nil && g.deadline != nil && g.deadline.Err() != nil, s.ownTimeout
}

// A deadlineTimer fires at the deadline of a request. It is created only if something waits for the
// deadline, and is not counted in service.holds. A canceled timer is reused for another request.
type deadlineTimer struct {
	s  *service
	op na.Op
}

// timerPool holds free timers. It is not a field of Context because a sync.Pool, and any value that
// contains it, stays in memory until two garbage collections after its last use.
var timerPool = sync.Pool{New: func() any { return &deadlineTimer{} }}

// putBack clears a and returns it to timerPool. The operation of a must have completed.
func (a *deadlineTimer) putBack() {
	a.s = nil
	a.op.InitStep(nil, nil, nil)
	timerPool.Put(a)
}

// armTimerLocked starts the timer of s, which expires at the given time and again at the deadline.
// It does nothing if s has no deadline or its timer has already been started. The caller must hold
// s.mu.
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

// fireTimer is the completion callback of a deadlineTimer. It calls fire.
func fireTimer(op *na.Op, r na.Result) (ran int) { return op.Data().(*deadlineTimer).fire(r) }

// fire handles expiry of the timer. Shortly before the deadline it refuses a request that is
// waiting to be admitted or run. At the deadline it cancels a fetch of the input, responds to a
// detached request with ErrTimeout, and cancels the handler's context.
func (a *deadlineTimer) fire(r na.Result) (ran int) {
	s := a.s
	s.mu.Lock()
	if s.timer != a { // the record may be serving another request
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
		_ = s.ctx.nctx.Upper().TimerAt(&a.op, s.deadline) // fails only if the context is closed
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

// heldUpErrLocked returns an error that names the limit for which s is waiting, either to be
// admitted or to be run. It returns nil if s is not waiting. The caller must hold s.mu.
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
