package hg

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A deadline travels with its request as the time that is left, since the two ends have no common clock. na writes it
// into the header when the request leaves; the target counts from its arrival. Each end judges by its own clock, and the
// time on the way is nobody's: the origin is the first to know that it is over, and says so by Abandon.
//
//	origin: Forward ─── timer: Abandon, the call ends ────────────────────────────────────►│ ErrTimeout
//	           └─ waits for an envelope ─► leaves, with what is left
//	target:                                  arrives ─ fetched, waits for room, queued ─►│   not run, answered ErrTimeout
//	                                                                    └─ handler runs ──►│ its context ends
//
// A request that waits at the target, for room or for somebody to run it, is given up a little before its deadline: else its origin, whose
// time ends first, would never hear which limit has held it up.

var (
	errDeadlinePassed = na.WithText(ErrTimeout, "the deadline passed before the handler began")
	errDeadlineOver   = na.WithText(ErrTimeout, "the deadline of the call has passed")
	errClosing        = na.WithText(ErrClosed, "the process is shutting down")
	errDraining       = na.WithText(ErrDraining, "the target is shutting down")
	errClosed         = na.WithText(ErrClosed, "the process has shut down, or closed its node")
	errAbandoned      = na.WithText(ErrCanceled, "the origin has abandoned the call")
	errLost           = na.WithText(ErrPeerLost, "the session with the origin has ended")
	errRequestEnded   = na.WithText(ErrCanceled, "the request has ended")
)

// SetTimeout bounds how long each call of h may take from Forward on, until it is set anew; 0, as Create makes it, is no
// bound. A call under way keeps the bound that it began with.
//
// When the time is up the call ends with an error that matches os.ErrDeadlineExceeded and ErrTimeout, and the target is
// told, as by Abandon. The target knows how much time is left, too: it does not run a handler for which there is none,
// and it ends the context of one that runs. A request that still waits on this side for an envelope or a connection is not sent:
// the error's Fate is NotRun. Once the request has left the Fate is MaybeRan, unless the target's answer that it did not run is
// here before the call ends; to be certain, use Withdraw. A request that waits at the target until its time is nearly over, because of
// a limit there, is refused a little before, by ErrTimeout too: the text of the error names the limit.
//
// The target knows the deadline of a call that has less than about 71 minutes left when it leaves: the time that is left travels in
// microseconds, 32 bits of them. A longer call has no deadline at its target; the origin ends it there, as by Abandon, when the time is up.
// A negative d has passed: Forward fails.
//
// Progress keeps the time: the call ends in a Trigger after it.
func (h *Handle) SetTimeout(d time.Duration) {
	h.mu.Lock()
	h.timeout = d
	h.mu.Unlock()
}

// Abandon is Cancel that lets the target know: a request whose handler has not begun is destroyed there, and the context of a
// handler that runs ends. It waits for nothing and promises nothing but what Cancel does; Withdraw asks for an answer. It
// may be called at any time; idle and ended calls stay as they are.
func (h *Handle) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.call; k.isInFlightLocked() {
		k.abandonLocked(ErrCanceled)
	}
}

// abandonLocked ends the call from this side and lets the target know. Locked.
func (k *call) abandonLocked(why na.Code) {
	if k.abandonPending = !k.isParsed; k.abandonPending && k.opRunning && !k.canceling {
		k.h.ctx.nctx.Upper().AbandonCall(&k.op)
		k.abandonPending = false
	}
	k.endLocallyLocked(why)
}

// maxTimeout is for ever, and can be added to a time.
const maxTimeout = math.MaxInt64 / 4

// setDeadlineLocked reports false if it has passed. Locked.
func (k *call) setDeadlineLocked(limit time.Duration) bool {
	if limit < 0 {
		return false
	}
	k.deadline = na.Deadline{At: k.begun + min(limit, maxTimeout), Field: budgetAt}
	return true
}

// startTimerLocked makes the deadline a part of a call whose operation has ended. Locked.
func (k *call) startTimerLocked() {
	if k.deadline.At == 0 {
		return
	}
	nctx := k.h.ctx.nctx
	if k.timerOp == nil {
		k.timerOp = nctx.NewStep(k.onTimer)
	}
	if nctx.Upper().TimerAt(k.timerOp, k.deadline.At) == nil { // else the context is closed, and the other parts end too
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

// setBudget takes in the time that a request was given, or that its RPC gives it if that is less. One with more than its header can say has
// no deadline of its origin here: its origin, which knows the time, abandons it.
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

// A request that waits is given up an eighth of its budget before its deadline, but at least minHurry and at most maxHurry.
const (
	minMargin = time.Millisecond
	maxMargin = 250 * time.Millisecond
)

// isLate reports whether the deadline of a request has passed.
func (s *service) isLate() bool { return s.deadline != 0 && s.ctx.Now() >= s.deadline }

// isNearDeadline reports whether the deadline of a request is near. An origin that abandons a call then does so at its own deadline, which by
// the clocks here is a little before or after: either way the handler's context says that it was the deadline.
func (s *service) isNearDeadline() bool { return s.deadline != 0 && s.ctx.Now() >= s.waitDeadline }

// timedOut reports whether the context of the handler of r has ended by the deadline, and whether that is RPC.Timeout.
func (r Request) timedOut() (late, bounded bool) {
	s, ok := r.lockService()
	if !ok {
		return false, false
	}
	defer s.mu.Unlock()
	g := s.handlerCtx
	return s.isLate() || g != nil && g.deadline != nil && g.deadline.Err() != nil, s.ownTimeout
}

// An deadlineTimer rings at the deadline of a request. It is made only where something waits for that, and does not hold the record. One that
// was canceled is used for another request.
type deadlineTimer struct {
	s  *service
	op na.Op
}

// timerPool holds those that are free. It is not in the context: a sync.Pool, and what it is part of, stays in memory until two collections
// of garbage after its last use.
var timerPool = sync.Pool{New: func() any { return &deadlineTimer{} }}

// putBack takes an alarm back whose operation is idle. Nothing keeps what it was for alive.
func (a *deadlineTimer) putBack() {
	a.s = nil
	a.op.InitStep(nil, nil, nil)
	timerPool.Put(a)
}

// armTimerLocked has the alarm ring at a time, and then at the deadline, of a request that has one. Locked.
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

// fireTimer is what the operation of an alarm does at its end.
func fireTimer(op *na.Op, r na.Result) (ran int) { return op.Data().(*deadlineTimer).fire(r) }

// fire ends what waits: the wait for room or for Run, a little before the deadline; at the deadline also the fetching of the input, a
// detached request, and the context of a handler.
func (a *deadlineTimer) fire(r na.Result) (ran int) {
	s := a.s
	s.mu.Lock()
	if s.timer != a { // the record may serve another request by now
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
		_ = s.ctx.nctx.Upper().TimerAt(&a.op, s.deadline) // else the context is closed
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

// heldUpErrLocked returns why a request that waits for room or for Run is given up: what has held it up; nil if it does not wait. Locked.
func (s *service) heldUpErrLocked() error {
	switch s.phase {
	case serviceWaiting:
		return errHeldUp(s.describeFullLimit())
	case serviceGiven:
		return errHeldUp(fmt.Sprintf("no worker is free there (qs.Config.MaxConcurrent, or what hg.Config.Dispatch has), and %d calls are active", s.ctx.admission.active.Load()))
	}
	return nil
}

func errHeldUp(limit string) error {
	return na.WithText(ErrTimeout, "the deadline is near and the handler has not begun: "+limit)
}
