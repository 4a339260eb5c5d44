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

// A Driver moves bytes and runs callbacks. No lock of this package is held when its methods are
// called, except Hold.
type Driver interface {
	// Poll blocks until something may be ready for Run, w.Stirred reports true, or the clock
	// reaches until (Never: no limit), and returns nil. Before it sleeps in a way that only Stir
	// interrupts, it calls w.WillSleep. It returns an error if waiting is useless; an error that
	// matches os.ErrDeadlineExceeded counts as nil.
	//
	// now is the time of the clock if the caller has just read it, else negative. Poll returns the
	// time as it has read it last, if that was just before the return, else a negative number.
	Poll(w *Waiter, now, until time.Duration) (read time.Duration, err error)
	// Queued returns how many callbacks are known to be ready for Run.
	Queued() int
	// Run runs at most max callbacks and returns how many. After each it calls w.Stops, and ends if
	// that reports true.
	Run(w *Waiter, max int) int
	// Stir makes a sleeping Poll call w.Stirred.
	Stir()
	// Now returns the time of the clock.
	Now() time.Duration

	// Hold makes the Driver hold back the output of all goroutines until Unhold. It returns false
	// if the Driver does not.
	Hold() bool
	// Unhold ends Hold and sends the output.
	Unhold()
	// Flush sends the output that is held back; later output is still held back.
	Flush()
	// Freed is called after a goroutine has released the lead. Another goroutine may have taken it
	// already.
	Freed()
}

// A Mode selects what other goroutines do while the leader runs callbacks.
type Mode int

const (
	// Lend lets the leader keep the lead while it runs callbacks, so that all callbacks of a pass
	// run before goroutines are woken.
	Lend Mode = iota
	// HandOn makes the leader pass the lead on before it runs callbacks: for callbacks that may
	// take long, and a Driver that does not send.
	HandOn
	// Each parks no goroutine: every waiting goroutine calls Poll and Run itself.
	Each
)

// Never is the time of a Poll without a limit.
const Never = time.Duration(math.MaxInt64)

const (
	// passSize is the largest number of callbacks in a pass, pollSize that in a Wait with timeout 0.
	passSize, pollSize = 64, 8192
	// longRun is how long a leader may be in Run while other goroutines are parked, before the lead
	// is passed on.
	longRun = time.Millisecond
	// maxFreeWaiters is how many waiters are kept for reuse at most.
	maxFreeWaiters = 256
)

// The lead is 0 while it is free, else the id of its waiter, with the bit lent while it is lent, or
// external.
const (
	lent     = 1
	external = 2 // taken by TryLead
)

// lastID is the last id of a waiter. The ids are even, so that the bit lent is free.
var lastID atomic.Uint64

func init() { lastID.Store(external) }

// A Loop is the event loop of one Driver, and the goroutines that wait for it.
type Loop struct {
	driver Driver
	mode   Mode
	stir   func() // driver.Stir, bound once

	lead         atomic.Uint64
	lastLeader   atomic.Pointer[Waiter] // the waiter that leads, or has led last
	pollUntil    atomic.Int64           // the until of the leader's Poll
	stirred      atomic.Bool            // the leader must return from Poll, for an earlier deadline
	passes       atomic.Uint64          // number of times the lead was lent
	driversInRun atomic.Int32           // goroutines in Drive that are in Run
	// Others is how many goroutines that are not in Drive run callbacks: those in runCallbacks, and
	// those that run callbacks of the Driver without the Loop, which they count themselves.
	Others atomic.Int32

	parkedCount atomic.Int32 // len(parked)
	drivers     atomic.Int32 // of these in Drive
	dueCount    atomic.Int32 // len(due), plus 1 if checkAll is set
	timedCount  atomic.Int32 // waiters in deadlines
	hasOnIdle   atomic.Bool  // onIdle is not nil
	batch       batch

	// mu guards the fields below and those of Waiter that say so. It is held in calls of conditions
	// and of Driver.Hold, and in no other call out of the package.
	mu             sync.Mutex
	parked         []*Waiter
	due            []*Waiter // parked waiters that are to be woken at the end of the pass
	ready          []*Waiter // empty; swapped with due
	checkAll       bool      // all conditions are to be checked at the end of the pass
	deadlines      timeheap.Heap[Waiter]
	freeWaiters    []*Waiter
	watchdog       watchdog
	onIdle         func()  // set by OnIdle; nil if there is none
	restingStandIn *Waiter // the waiter in StandIn that rests; nil if there is none
}

// New returns a Loop that drives d.
func New(d Driver, mode Mode) *Loop {
	return &Loop{driver: d, mode: mode, stir: d.Stir, batch: batch{allReturned: make(chan struct{}, 1)}}
}

// Wait blocks until done reports true. Callbacks may run on this goroutine meanwhile, and done is
// called after each.
//
//   - It returns nil when done reports true, context.Cause(ctx) when ctx is done first,
//     os.ErrDeadlineExceeded after timeout (negative: no limit; zero: one poll), or the error of
//     Poll.
//   - The code that changes the result of done must call Wake afterwards.
//   - done must be quick and must not take a lock that is held in a call of Wake.
func (l *Loop) Wait(ctx context.Context, timeout time.Duration, done func() bool) error {
	if done() {
		return nil
	}
	w := l.acquireWaiter()
	w.done = done
	defer l.releaseWaiter(w)
	return l.wait(ctx, timeout, w)
}

// A Runner runs the callbacks of the passes of a goroutine in Drive, and other work that comes with
// them.
type Runner interface {
	// RunPass is called for each pass and must call p.Run. If it takes long after that, another
	// goroutine in Drive takes the lead. It does not while a callback takes long, so callbacks run
	// in order.
	RunPass(p Pass)
}

// A Pass is a pass of a goroutine in Drive, as its Runner sees it. Only the goroutine itself calls
// the methods, but for Keep.
type Pass interface {
	// Run runs the callbacks that are ready, or only the first one.
	Run(one bool)
	// Polled returns the time at which polling ended; negative if the clock was not read then.
	Polled() time.Duration
	// SetClock says that the clock reads now, as the last that RunPass does: the next pass does not
	// read it again.
	SetClock(now time.Duration)
	// Keep calls the keep of Drive: the goroutine is not to drive any more.
	Keep()
}

// Drive drives until ctx is done or Poll fails, for a goroutine that does nothing else, and returns
// the cause of ctx or the error of Poll. In mode Lend runner, if it is not nil, runs the callbacks;
// keep may be nil if it does not call Pass.Keep.
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
	defer l.endRun() // deferred: a callback may panic
	most := passSize
	if one {
		most = 1
	}
	w.hasMore = l.runCallbacks(w, most)
}

// Polled implements Pass.
func (w *Waiter) Polled() time.Duration { return w.polled }

// SetClock implements Pass. The goroutine of another Waiter calls it right before it waits, if it
// has just read the clock.
func (w *Waiter) SetClock(now time.Duration) { w.clock = now }

// Keep implements Pass.
func (w *Waiter) Keep() { w.keep() }

// Runner returns, in a callback, the Runner of the goroutine that runs it; nil if that is not in
// Drive, or may not be, since other goroutines run callbacks, too.
func (l *Loop) Runner() Runner {
	if w := l.lastLeader.Load(); w != nil && l.Others.Load() == 0 {
		return w.runner
	}
	return nil
}

// beginRun reports whether w may run callbacks, and counts it as in Run. It may not while another
// goroutine in Drive does: one of the two has lost the lead just before. Then w gives up the lead,
// if it has it.
func (l *Loop) beginRun(w *Waiter) bool {
	if l.driversInRun.CompareAndSwap(0, 1) {
		return true
	}
	if s := w.id | lent; l.lead.Load() == s {
		l.releaseLead(s)
	}
	return false
}

// endRun counts a goroutine in Drive as not in Run any more. If the lead is free, it is passed to
// one that parked meanwhile.
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
		if l.lead.Load()&lent == 0 { // while it is lent, the end of the pass does it
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

// Parked returns how many goroutines are parked.
func (l *Loop) Parked() int { return int(l.parkedCount.Load()) }

// Quiet reports whether no goroutine waits.
func (l *Loop) Quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lead.Load() == 0 && len(l.parked) == 0 && l.timedCount.Load() == 0
}

// Unlocked reports whether the lock is free. It is for tests in which a single goroutine uses l.
func (l *Loop) Unlocked() bool {
	if !l.mu.TryLock() {
		return false
	}
	l.mu.Unlock()
	return true
}

// wait is the loop of every waiting goroutine: it leads if it can, else parks, and checks its
// condition again.
func (l *Loop) wait(ctx context.Context, timeout time.Duration, w *Waiter) error {
	l.initWait(w, timeout)
	defer l.endWait(w) // deferred: a callback may panic, or end the goroutine
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

// mayLead reports whether w may take the lead while that is s: if it is free, or w has it, or it is
// lent, perhaps by this very goroutine further up its stack. A goroutine in Drive takes only a free
// lead, and only while no other one in Drive runs callbacks.
func (l *Loop) mayLead(w *Waiter, s uint64) bool {
	switch {
	case s == w.id:
		return true
	case w.runner != nil:
		return s == 0 && l.driversInRun.Load() == 0
	}
	return s == 0 || s&lent != 0
}

// tryLead takes the lead if w may have it, and reports whether w leads now.
func (l *Loop) tryLead(w *Waiter) bool {
	s := l.lead.Load()
	return l.mayLead(w, s) && l.lead.CompareAndSwap(s, w.id)
}

// drivePass is a pass in mode Each.
func (l *Loop) drivePass(w *Waiter) (failed error, more bool) {
	failed = l.poll(w, w.deadline)
	return failed, l.runCallbacks(w, w.maxCallbacks())
}

// poll calls Poll of the Driver. A timeout is no error.
func (l *Loop) poll(w *Waiter, until time.Duration) error {
	var err error
	w.polled, err = l.driver.Poll(w, w.clock, until)
	w.clock = -1
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// pass is one iteration of the leader: it sends the batch, polls, runs the callbacks that are ready
// and wakes the waiters that are over. It returns the error of Poll, and whether callbacks may be
// left.
func (l *Loop) pass(w *Waiter) (failed error, more bool) {
	if l.batch.state.Load() != noBatch {
		l.drainBatch()
		w.clock = -1 // it may have waited
	}
	l.stirred.Store(false)
	if l.dueCount.Load() > 0 { // left by a leader that has lost the lead
		l.wakeDue()
	}
	l.lastLeader.Store(w)
	failed = l.poll(w, min(w.deadline, l.firstDeadline()))
	switch {
	case l.stirred.Load(): // by a goroutine that parks with an earlier deadline
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
	// else the goroutine that leads now has begun a batch of its own
	if batch != 0 && batch == l.batch.number.Load() {
		l.closeBatch()
	}
	return failed, more
}

// wakeTogether wakes the waiters that are over, at the end of a pass of the leader w. Their output
// is held back if they are two or more.
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
	// The woken goroutine runs on this processor at once; otherwise another processor would have to
	// be woken for it.
	if one {
		w.clock = -1
		runtime.Gosched()
	}
}

// runCallbacks runs at most most callbacks, until w is over or none is queued. It reports whether
// it stopped for another reason, so that callbacks may be left.
func (l *Loop) runCallbacks(w *Waiter, most int) (more bool) {
	if w.runner == nil {
		l.Others.Add(1)
		defer l.Others.Add(-1) // deferred: a callback may panic
	}
	w.ranInPass, w.passStart, w.ranTooLong = 0, w.polled, false
	return l.driver.Run(w, most) >= most && !w.stopped || w.ranTooLong
}

// maxCallbacks returns how many callbacks w runs in a pass at most.
func (w *Waiter) maxCallbacks() int {
	if w.pollOnce {
		return pollSize
	}
	return passSize
}

// firstDeadline returns the earliest deadline of the parked waiters, and stores it as pollUntil: a
// goroutine that parks with an earlier one wakes the leader.
func (l *Loop) firstDeadline() time.Duration {
	// Before the count is loaded: a goroutine that is counted later sees Never and wakes the leader.
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

// expire wakes the parked waiters whose deadline has passed. The leader returns from Poll in time
// for the earliest one.
func (l *Loop) expire(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w, deadline := l.deadlines.First(); w != nil && deadline <= now; w, deadline = l.deadlines.First() {
		l.unparkLocked(w)
	}
}

// endWait ends a wait, and releases the lead if w has it.
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

// releaseLead releases the lead if it is still s, that of the caller.
func (l *Loop) releaseLead(s uint64) {
	if l.parkedCount.Load() == 0 && l.lead.CompareAndSwap(s, 0) {
		s = 0
	}
	l.passLead(s)
	if (l.batch.held.Load() || l.hasOnIdle.Load()) && l.lead.Load() == 0 {
		l.armWatchdog() // if no goroutine leads until then, it sends the output and calls onIdle
	}
	l.driver.Freed()
}

// passLead passes the lead, if it is s, to a parked waiter that may have it; if there is none, the
// lead becomes free.
func (l *Loop) passLead(s uint64) {
	if s == 0 && l.parkedCount.Load() == 0 {
		return
	}
	l.mu.Lock()
	var onIdle func()
	if len(l.parked) >= standInThreshold && l.restingStandIn == nil {
		onIdle = l.onIdle // for the next time
	}
	if !l.passLeadLocked(s) && s != 0 && l.lead.CompareAndSwap(s, 0) && l.driversInRun.Load() == 0 {
		l.passLeadLocked(0) // to a goroutine in Drive that parked because another one was still in Run
	}
	l.mu.Unlock()
	if onIdle != nil {
		onIdle()
	}
}

// yieldLead passes the lead of w to a parked goroutine in Drive, and reports whether it did.
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

// passLeadLocked passes the lead, if it is s, to the waiter that parked last, which is found at no
// cost, and reports whether it did. While a goroutine in Drive is in Run, other ones in Drive are
// skipped.
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

// HandOn passes a lent lead to a parked goroutine. It is called by the Runner of Drive before that
// blocks.
func (l *Loop) HandOn() {
	if s := l.lead.Load(); s&lent != 0 {
		l.passLead(s)
	}
}

// TryLead takes the lead, for code that does not wait, if it is free or lent, and reports whether
// it did. The caller must call Unlead soon.
func (l *Loop) TryLead() bool {
	s := l.lead.Load()
	return (s == 0 || s&lent != 0) && l.lead.CompareAndSwap(s, external)
}

// Unlead releases the lead that TryLead has taken.
func (l *Loop) Unlead() { l.releaseLead(external) }
