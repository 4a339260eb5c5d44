package loop

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Driver moves bytes and runs callbacks. No lock of this package is held while its methods are
// called, except for Hold.
type Driver interface {
	// Poll blocks until something may be ready for Run, w.Stirred reports true, or the clock
	// reaches until (Never means no limit), and then returns nil. Before sleeping in a way that
	// only Stir can interrupt, it calls w.WillSleep. It returns an error if waiting is pointless.
	// An error that matches os.ErrDeadlineExceeded is treated as nil.
	//
	// now is the current time if the caller has just read the clock, and negative otherwise. Poll
	// returns the time at which it last read the clock if that was just before it returned, and a
	// negative value otherwise.
	Poll(w *Waiter, now, until time.Duration) (read time.Duration, err error)
	// Queued returns the number of callbacks known to be ready for Run.
	Queued() int
	// Run runs at most max callbacks and returns the number that it ran. It calls w.Stops after
	// each one, and stops if that returns true.
	Run(w *Waiter, max int) int
	// Stir makes a Poll that is asleep call w.Stirred.
	Stir()
	// Now returns the current time of the clock.
	Now() time.Duration

	// Hold makes the Driver hold back the output of all goroutines until Unhold. It returns false
	// if the Driver does not support that.
	Hold() bool
	// Unhold cancels the effect of Hold and sends the output.
	Unhold()
	// Flush sends the output held back so far. Later output is still held back.
	Flush()
	// Freed is called after a goroutine has released the lead, which another goroutine may already
	// have taken.
	Freed()
}

// A Mode specifies what other goroutines do while the leader runs callbacks.
type Mode int

const (
	// Lend lets the leader keep the lead while it runs callbacks, so that all callbacks of a pass
	// run before any goroutine is woken.
	Lend Mode = iota
	// HandOn makes the leader pass the lead on before it runs callbacks. It is for callbacks that
	// may take long, with a Driver that does not send.
	HandOn
	// Each parks no goroutine. Every waiting goroutine calls Poll and Run itself.
	Each
)

// Never is the until argument of a Poll without a time limit.
const Never = time.Duration(math.MaxInt64)

const (
	// passSize is the maximum number of callbacks in a pass, and pollSize the maximum in a Wait
	// with timeout 0.
	passSize, pollSize = 64, 8192
	// longRun is how long a leader may be in Run while other goroutines are parked before the lead
	// is passed on.
	longRun = time.Millisecond
	// maxFreeWaiters is the maximum number of waiters kept for reuse.
	maxFreeWaiters = 256
)

// The lead is 0 while it is free. Otherwise it is the ID of its waiter, with the lent bit set while
// it is lent, or external.
const (
	lent     = 1
	external = 2 // taken by TryLead
)

// lastID is the last waiter ID assigned. IDs are even, which leaves the lent bit free.
var lastID atomic.Uint64

func init() { lastID.Store(external) }

// A Loop is the event loop of one Driver and of the goroutines that wait for it.
type Loop struct {
	driver Driver
	mode   Mode
	stir   func() // driver.Stir, stored to avoid an allocation per use

	lead         atomic.Uint64
	lastLeader   atomic.Pointer[Waiter] // the waiter that is leading or was the last to lead
	pollUntil    atomic.Int64           // until argument of the leader's Poll
	stirred      atomic.Bool            // the leader must return from Poll because of an earlier deadline
	passes       atomic.Uint64          // number of times that the lead was lent
	driversInRun atomic.Int32           // number of goroutines in Drive that are in Run
	// Others is the number of goroutines not in Drive that are running callbacks: those in
	// runCallbacks, and those that run the Driver's callbacks without the Loop, which count
	// themselves.
	Others atomic.Int32

	parkedCount atomic.Int32 // len(parked)
	drivers     atomic.Int32 // number of parked goroutines that are in Drive
	dueCount    atomic.Int32 // len(due), plus 1 if checkAll is set
	timedCount  atomic.Int32 // number of waiters in deadlines
	hasOnIdle   atomic.Bool  // whether onIdle is not nil
	batch       batch

	// mu guards the fields below and the fields of Waiter that say so. Conditions and Driver.Hold
	// are called with mu held; no other function outside the package is.
	mu             sync.Mutex
	parked         []*Waiter
	due            []*Waiter // parked waiters to wake at the end of the pass
	ready          []*Waiter // empty; swapped with due
	checkAll       bool      // all conditions must be checked at the end of the pass
	deadlines      timeheap.Heap[Waiter]
	freeWaiters    []*Waiter
	watchdog       watchdog
	onIdle         func()  // set by OnIdle; may be nil
	restingStandIn *Waiter // the waiter in StandIn that is resting, or nil
}

// New returns a Loop that drives d.
func New(d Driver, mode Mode) *Loop {
	return &Loop{driver: d, mode: mode, stir: d.Stir, batch: batch{allReturned: make(chan struct{}, 1)}}
}

// Wait blocks until done reports true. Callbacks may run on the calling goroutine meanwhile, and
// done is called after each of them.
//
//   - Wait returns nil when done reports true, context.Cause(ctx) if ctx is done first,
//     os.ErrDeadlineExceeded after timeout (negative means no limit; zero means one poll), or the
//     error of Poll.
//   - Code that changes the result of done must call Wake afterward.
//   - done must be quick and must not take a lock that is held during a call of Wake.
func (l *Loop) Wait(ctx context.Context, timeout time.Duration, done func() bool) error {
	if done() {
		return nil
	}
	w := l.acquireWaiter()
	w.done = done
	defer l.releaseWaiter(w)
	return l.wait(ctx, timeout, w)
}

// A Runner runs the callbacks in each pass of a goroutine in Drive, along with other work that
// results from them.
type Runner interface {
	// RunPass is called for each pass and must call p.Run. If it takes long after that call,
	// another goroutine in Drive takes the lead. That does not happen while a callback takes long,
	// so callbacks run in order.
	RunPass(p Pass)
}

// A Pass is a pass of a goroutine in Drive, as seen by its Runner. Except for Keep, only that
// goroutine may call its methods.
type Pass interface {
	// Run runs all callbacks that are ready, or only the first one if one is true.
	Run(one bool)
	// Polled returns the time at which polling ended, or a negative value if the clock was not read
	// then.
	Polled() time.Duration
	// SetClock reports that the clock now reads now, which saves the next pass from reading it
	// again. It must be the last call that RunPass makes.
	SetClock(now time.Duration)
	// Keep calls the keep function passed to Drive. The goroutine must stop driving afterward.
	Keep()
}

// Drive drives the loop until ctx is done or Poll fails, and returns the cause of ctx or the error
// of Poll. It is for a goroutine that does nothing else. In mode Lend, runner, if not nil, runs the
// callbacks. keep may be nil if runner does not call Pass.Keep.
func (l *Loop) Drive(ctx context.Context, runner Runner, keep func()) error {
	w := l.NewWaiter()
	w.runner, w.keep = runner, keep
	return l.wait(ctx, -1, w)
}

// Run implements Pass.
func (w *Waiter) Run(one bool) {
	l := w.loop
	if !l.beginRun(w) {
		w.hasMore = true
		return
	}
	defer l.endRun() // deferred because a callback may panic
	most := passSize
	if one {
		most = 1
	}
	w.hasMore = l.runCallbacks(w, most)
}

// Polled implements Pass.
func (w *Waiter) Polled() time.Duration { return w.polled }

// SetClock implements Pass. A goroutine that has just read the clock may also call it right before
// it waits with w.
func (w *Waiter) SetClock(now time.Duration) { w.clock = now }

// Keep implements Pass.
func (w *Waiter) Keep() { w.keep() }

// Runner returns the Runner of the goroutine that is running the calling callback. It returns nil
// if that goroutine is not in Drive, or if this is uncertain because other goroutines also run
// callbacks.
func (l *Loop) Runner() Runner {
	if w := l.lastLeader.Load(); w != nil && l.Others.Load() == 0 {
		return w.runner
	}
	return nil
}

// beginRun reports whether w may run callbacks, and if so counts w as being in Run. w may not run
// callbacks while another goroutine in Drive is in Run, which happens if one of the two has just
// lost the lead. In that case beginRun releases w's lead, if any.
func (l *Loop) beginRun(w *Waiter) bool {
	if l.driversInRun.CompareAndSwap(0, 1) {
		return true
	}
	if s := w.id | lent; l.lead.Load() == s {
		l.releaseLead(s)
	}
	return false
}

// endRun counts a goroutine in Drive as no longer in Run. If the lead is free, it is passed to a
// goroutine that parked meanwhile.
func (l *Loop) endRun() {
	if l.driversInRun.Add(-1) == 0 && l.lead.Load() == 0 {
		l.passLead(0)
	}
}

// Wake makes all waiting goroutines check their conditions.
func (l *Loop) Wake() {
	l.mu.Lock()
	if l.parkedCount.Load() > 0 {
		if !l.checkAll {
			l.checkAll = true
			l.dueCount.Add(1)
		}
		if l.lead.Load()&lent == 0 { // while the lead is lent, this happens at the end of the pass
			l.wakeOverLocked()
		}
	}
	w := l.lastLeader.Load()
	stir := l.mode == Each || w != nil && l.lead.Load() == w.id && w.isOverSafe()
	l.mu.Unlock()
	if stir {
		l.driver.Stir()
	}
}

// Parked returns the number of parked goroutines.
func (l *Loop) Parked() int { return int(l.parkedCount.Load()) }

// Quiet reports whether no goroutine is waiting.
func (l *Loop) Quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lead.Load() == 0 && len(l.parked) == 0 && l.timedCount.Load() == 0
}

// Unlocked reports whether the lock is free. It is for tests in which only one goroutine uses l.
func (l *Loop) Unlocked() bool {
	if !l.mu.TryLock() {
		return false
	}
	l.mu.Unlock()
	return true
}

// wait is the main loop of every waiting goroutine. The goroutine leads if it can and parks
// otherwise, and then rechecks its condition.
func (l *Loop) wait(ctx context.Context, timeout time.Duration, w *Waiter) error {
	l.initWait(w, timeout)
	defer l.endWait(w) // deferred because a callback may panic or end the goroutine
	w.ctx, w.canceled = ctx, ctx.Done()
	if w.isCanceled() {
		return context.Cause(ctx)
	}
	l.countReturned()
	var (
		failed       error
		more, polled bool
	)
	if l.mode == HandOn {
		more = l.runCallbacks(w, w.maxCallbacks())
	}
	for first := true; ; first = false {
		if l.timedCount.Load() > 0 {
			l.expire(l.driver.Now())
		}
		switch {
		case w.isOver():
			return nil
		case w.isCanceled():
			return context.Cause(ctx)
		case polled && w.isLate():
			return os.ErrDeadlineExceeded
		case failed != nil && !more:
			return failed
		case polled && l.shouldRest(w):
			l.restStandIn(w)
		case w.yieldsLead && l.yieldLead(w):
			l.park(w)
		case l.mode == Each:
			failed, more = l.drivePass(w)
			polled = true
		case l.tryLead(w):
			failed, more = l.pass(w)
			polled = true
		case w.pollOnce || !first && w.isLate():
			return os.ErrDeadlineExceeded
		case w.standsIn:
			l.restStandIn(w)
		default:
			l.park(w)
		}
	}
}

// mayLead reports whether w may take the lead, whose current value is s. It may if the lead is
// free, already belongs to w, or is lent, possibly by the same goroutine further up its stack. A
// goroutine in Drive may take only a free lead, and only while no other goroutine in Drive is
// running callbacks.
func (l *Loop) mayLead(w *Waiter, s uint64) bool {
	switch {
	case s == w.id:
		return true
	case w.runner != nil:
		return s == 0 && l.driversInRun.Load() == 0
	}
	return s == 0 || s&lent != 0
}

// tryLead takes the lead if w may have it, and reports whether w now leads.
func (l *Loop) tryLead(w *Waiter) bool {
	s := l.lead.Load()
	return l.mayLead(w, s) && l.lead.CompareAndSwap(s, w.id)
}

// drivePass polls and runs callbacks in mode Each, in which it takes the place of pass. It returns
// the error of Poll, and more is true if callbacks may be left.
func (l *Loop) drivePass(w *Waiter) (failed error, more bool) {
	failed = l.poll(w, w.deadline)
	return failed, l.runCallbacks(w, w.maxCallbacks())
}

// poll calls the Driver's Poll. It returns nil if Poll timed out.
func (l *Loop) poll(w *Waiter, until time.Duration) error {
	var err error
	w.polled, err = l.driver.Poll(w, w.clock, until)
	w.clock = -1
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// pass makes one iteration of the leader. It sends the batch, polls, runs the callbacks that are
// ready, and wakes the waiters whose wait is complete. It returns the error of Poll, and more is
// true if callbacks may be left.
func (l *Loop) pass(w *Waiter) (failed error, more bool) {
	if l.batch.state.Load() != noBatch {
		l.drainBatch()
		w.clock = -1 // drainBatch may have waited
	}
	l.stirred.Store(false)
	if l.dueCount.Load() > 0 { // left over from a leader that lost the lead
		l.wakeDue()
	}
	l.lastLeader.Store(w)
	failed = l.poll(w, min(w.deadline, l.firstDeadline()))
	switch {
	case l.stirred.Load(): // by a goroutine that parked with an earlier deadline
		return failed, true
	case w.onlyPolls:
		return failed, false
	case l.mode == HandOn:
		l.releaseLead(w.id)
		return failed, l.runCallbacks(w, w.maxCallbacks())
	}
	batch := l.BeginBatch()
	l.passes.Add(1)
	l.lead.Store(w.id | lent)
	if l.parkedCount.Load() > 0 {
		l.armWatchdog()
	}
	if w.runner == nil {
		more = l.runCallbacks(w, w.maxCallbacks())
	} else {
		w.runner.RunPass(w)
		more = w.hasMore
	}
	if l.lead.CompareAndSwap(w.id|lent, w.id) {
		l.wakeTogether(w)
		return failed, more
	}
	if l.dueCount.Load() > 0 {
		l.wakeDue()
	}
	// Otherwise the goroutine that leads now has started a batch of its own.
	if batch != 0 && batch == l.batch.number.Load() {
		l.closeBatch()
	}
	return failed, more
}

// wakeTogether wakes the waiters whose wait is complete at the end of a pass of the leader w. If
// there are two or more, their output is held back.
func (l *Loop) wakeTogether(w *Waiter) {
	var (
		ready []*Waiter
		woken int32
	)
	if l.dueCount.Load() > 0 {
		ready, woken = l.takeDue(w)
	}
	one := l.endPass(woken)
	w.lastWoken = int32(len(ready))
	wakeAll(ready)
	// Let the woken goroutine run on this processor at once. Otherwise another processor would have
	// to be woken for it.
	if one {
		w.clock = -1
		runtime.Gosched()
	}
}

// runCallbacks runs queued callbacks until none is left, w's wait is complete, or the maximum
// number given by most has been reached. more is true if it stopped because of that number or after
// longRun, so that callbacks may be left.
func (l *Loop) runCallbacks(w *Waiter, most int) (more bool) {
	if w.runner == nil {
		l.Others.Add(1)
		defer l.Others.Add(-1) // deferred because a callback may panic
	}
	w.ranInPass, w.passStart, w.ranTooLong = 0, w.polled, false
	return l.driver.Run(w, most) >= most && !w.stopped || w.ranTooLong
}

// maxCallbacks returns the maximum number of callbacks that w may run in a pass.
func (w *Waiter) maxCallbacks() int {
	if w.pollOnce {
		return pollSize
	}
	return passSize
}

// firstDeadline returns the earliest deadline of the parked waiters and stores it in pollUntil. A
// goroutine that parks with an earlier deadline wakes the leader.
func (l *Loop) firstDeadline() time.Duration {
	// Store before loading the count: a goroutine that is counted later sees Never and wakes the
	// leader.
	l.pollUntil.Store(int64(Never))
	if l.timedCount.Load() == 0 {
		return Never
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first, at := l.deadlines.First()
	if first == nil {
		return Never
	}
	l.pollUntil.Store(int64(at))
	return at
}

// expire wakes the parked waiters whose deadline is not later than now. The leader returns from
// Poll in time for the earliest deadline.
func (l *Loop) expire(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w, deadline := l.deadlines.First(); w != nil && deadline <= now; w, deadline = l.deadlines.First() {
		l.unparkLocked(w)
	}
}

// endWait ends a wait and releases the lead if w has it.
func (l *Loop) endWait(w *Waiter) {
	w.ctx, w.canceled, w.clock = nil, nil, -1
	if w.stopCancelWake != nil {
		w.stopCancelWake()
		w.stopCancelWake = nil
	}
	if s := l.lead.Load(); s&^lent == w.id {
		l.releaseLead(s)
	}
}

// releaseLead releases the caller's lead, unless its value is no longer s.
func (l *Loop) releaseLead(s uint64) {
	if l.parkedCount.Load() == 0 && l.lead.CompareAndSwap(s, 0) {
		s = 0
	}
	l.passLead(s)
	if (l.batch.held.Load() || l.hasOnIdle.Load()) && l.lead.Load() == 0 {
		l.armWatchdog() // if no goroutine leads by the time it fires, it sends the output and calls onIdle
	}
	l.driver.Freed()
}

// passLead passes the lead to a parked waiter that may have it, or frees the lead if there is none.
// It does nothing unless the lead's value is s.
func (l *Loop) passLead(s uint64) {
	if s == 0 && l.parkedCount.Load() == 0 {
		return
	}
	l.mu.Lock()
	var onIdle func()
	if len(l.parked) >= standInThreshold && l.restingStandIn == nil {
		onIdle = l.onIdle // to be called below, for the next time
	}
	if !l.passLeadLocked(s) && s != 0 && l.lead.CompareAndSwap(s, 0) && l.driversInRun.Load() == 0 {
		l.passLeadLocked(0) // to a goroutine in Drive that parked because another was still in Run
	}
	l.mu.Unlock()
	if onIdle != nil {
		onIdle()
	}
}

// yieldLead passes w's lead to a parked goroutine in Drive, and reports whether it did.
func (l *Loop) yieldLead(w *Waiter) bool {
	if l.drivers.Load() == 0 || l.driversInRun.Load() > 0 || l.lead.Load() != w.id {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.parked, func(p *Waiter) bool { return p.runner != nil })
	if i < 0 || !l.lead.CompareAndSwap(w.id, l.parked[i].id) {
		return false
	}
	l.unparkLocked(l.parked[i])
	return true
}

// passLeadLocked passes the lead to the waiter that parked last, which is the cheapest to find, and
// reports whether it did. It does nothing unless the lead's value is s. While a goroutine in Drive
// is in Run, it skips other goroutines in Drive. l.mu must be held.
func (l *Loop) passLeadLocked(s uint64) bool {
	i := len(l.parked) - 1
	if i+1 >= standInThreshold && l.standInLocked(s) {
		return true
	}
	if l.driversInRun.Load() > 0 {
		for i >= 0 && l.parked[i].runner != nil {
			i--
		}
	}
	if i < 0 || !l.lead.CompareAndSwap(s, l.parked[i].id) {
		return false
	}
	l.unparkLocked(l.parked[i])
	return true
}

// HandOn passes a lent lead to a parked goroutine. A Runner in Drive calls it before blocking.
func (l *Loop) HandOn() {
	if s := l.lead.Load(); s&lent != 0 {
		l.passLead(s)
	}
}

// TryLead takes the lead if it is free or lent, and reports whether it did. It is for code that
// does not wait. The caller must call Unlead soon.
func (l *Loop) TryLead() bool {
	s := l.lead.Load()
	return (s == 0 || s&lent != 0) && l.lead.CompareAndSwap(s, external)
}

// Unlead releases the lead taken by TryLead.
func (l *Loop) Unlead() { l.releaseLead(external) }
