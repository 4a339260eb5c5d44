package loop

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Driver moves bytes and runs callbacks. No lock of this package is held when its methods are called, but for Hold.
type Driver interface {
	// Poll returns nil when something may be ready for Run, when w.Stirred reports true, or when the clock reads until (Never: no limit); an
	// error when waiting is of no use. Before it sleeps where only Stir wakes it, it calls w.WillSleep. One that matches
	// os.ErrDeadlineExceeded counts as nil.
	Poll(w *Waiter, until time.Duration) error
	// Queued returns how much Run has to run, as far as that is known before Poll.
	Queued() int
	// Run runs callbacks, max at the most, and returns how many; it ends after one when w.Stops reports true.
	Run(w *Waiter, max int) int
	// Stir makes a Poll that sleeps look at w.Stirred.
	Stir()
	// Now reads the clock.
	Now() time.Duration

	// Hold holds back what any goroutine sends, until Unhold or Flush; it reports false where it does not.
	Hold() bool
	Unhold()
	Flush()
	// Freed is called when the lead has been given up. Another goroutine may have it by then.
	Freed()
}

// A Mode is how a Loop deals with what may keep its leader.
type Mode int

const (
	// Lend has the leader keep the lead while it runs callbacks, so that all of a pass are run before any goroutine is woken.
	Lend Mode = iota
	// HandOn has it hand the lead on before: for callbacks that may all take long, and a Driver that nothing is sent by.
	HandOn
	// Each has none parked: all drive, one after the other.
	Each
)

// Never is the time of a Poll without a limit.
const Never = time.Duration(math.MaxInt64)

const (
	// passSize bounds the callbacks of a pass, pollSize those of a Wait that only looks once.
	passSize, pollSize = 64, 8192
	// long is how long a leader may be in Run while others are parked.
	long = time.Millisecond
	// maxIdle bounds the waiters that are kept for reuse.
	maxIdle = 256
)

// The lead is 0 while it is free, else the number of who has it, perhaps with lent.
const (
	lent    = 1
	outside = 2 // who called TryLead
)

// ids are the numbers of waiters.
var ids atomic.Uint64

func init() { ids.Store(outside) }

// A Loop is those who wait for one Driver.
type Loop struct {
	d    Driver
	mode Mode
	stir func() // of d, bound once

	lead    atomic.Uint64
	polling atomic.Pointer[Waiter] // who has led last
	until   atomic.Int64           // what the leader polls until
	stirred atomic.Bool            // it is to come back from Poll
	passes  atomic.Uint64          // times that the lead was lent
	running atomic.Int32           // drivers in Run

	parkedCount atomic.Int32 // len(parked)
	dueCount    atomic.Int32 // len(due), and look
	timedCount  atomic.Int32 // in deadlines
	batch       batch

	mu        sync.Mutex // guards the rest, and Waiter.index; not held in a call out of the package, but of conditions and Hold
	parked    []*Waiter
	due       []*Waiter // that are parked, and are woken at the end of the pass
	ready     []*Waiter // the other half of due, empty
	look      bool      // at every condition, at the end of the pass
	deadlines timeheap.Heap[Waiter]
	idle      []*Waiter
	watch     watch
}

// New returns the loop of those who wait for d.
func New(d Driver, mode Mode) *Loop {
	return &Loop{d: d, mode: mode, stir: d.Stir, batch: batch{all: make(chan struct{}, 1)}}
}

// Wait returns nil when done reports true, the cause of ctx when that ends first, os.ErrDeadlineExceeded after timeout
// (negative: no limit; zero: one look), or the error of Poll. Callbacks run on this goroutine meanwhile, and done is
// looked at after each. The code that makes done true calls Wake afterwards. done is quick and takes no lock that is held around Wake.
func (l *Loop) Wait(ctx context.Context, timeout time.Duration, done func() bool) error {
	if done() {
		return nil
	}
	w := l.borrow()
	w.done = done
	defer l.giveBack(w)
	return l.wait(ctx, timeout, w)
}

// Drive is Wait for what never comes, by a goroutine that does nothing else. around is called for each pass, and calls run, which runs the
// callbacks, or only the first. It is not called unless the mode is Lend. Of several in Drive another one leads when what around does after run takes long, and not
// when a callback does: so those of one goroutine run in their order.
func (l *Loop) Drive(ctx context.Context, around func(run func(one bool))) error {
	w := l.NewWaiter()
	w.around, w.run = around, func(one bool) {
		l.running.Add(1)
		defer l.ran() // deferred: a callback may panic
		most := passSize
		if one {
			most = 1
		}
		w.again = l.run(w, most)
	}
	return w.Wait(ctx)
}

// Driving reports whether who has led last is in Drive: not while a callback there waits itself, or another goroutine has taken the lead.
func (l *Loop) Driving() bool {
	w := l.polling.Load()
	return w != nil && w.around != nil
}

// ran says that a driver is not in Run any more. One that was parked meanwhile may lead, if nobody does.
func (l *Loop) ran() {
	if l.running.Add(-1) == 0 && l.lead.Load() == 0 {
		l.passLead(0)
	}
}

// Wake makes all who wait look at their conditions.
func (l *Loop) Wake() {
	l.mu.Lock()
	if l.parkedCount.Load() > 0 {
		if !l.look {
			l.look = true
			l.dueCount.Add(1)
		}
		if l.lead.Load()&lent == 0 { // else at the end of the pass
			l.lookLocked()
		}
	}
	w := l.polling.Load()
	stir := l.mode == Each || w != nil && l.lead.Load() == w.id && w.seemsOver()
	l.mu.Unlock()
	if stir {
		l.d.Stir()
	}
}

// Parked returns how many are parked.
func (l *Loop) Parked() int { return int(l.parkedCount.Load()) }

// Quiet reports whether nobody waits.
func (l *Loop) Quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lead.Load() == 0 && len(l.parked) == 0 && l.timedCount.Load() == 0
}

// Unlocked reports whether the lock is free. It means something only while a single goroutine uses l.
func (l *Loop) Unlocked() bool {
	if !l.mu.TryLock() {
		return false
	}
	l.mu.Unlock()
	return true
}

// wait is what every waiting goroutine does: lead if nobody does, else park, then look again.
func (l *Loop) wait(ctx context.Context, timeout time.Duration, w *Waiter) error {
	l.enter(w, timeout)
	defer l.leave(w) // deferred: a callback may panic, or end the goroutine
	if w.ctx, w.gone = ctx, ctx.Done(); w.quits() {
		return context.Cause(ctx)
	}
	l.returned()
	var (
		failed       error
		more, polled bool
	)
	if l.mode == HandOn {
		more = l.run(w, w.most())
	}
	for first := true; ; first = false {
		if l.timedCount.Load() > 0 {
			l.expire(l.d.Now())
		}
		switch {
		case w.over():
			return nil
		case w.quits():
			return context.Cause(ctx)
		case polled && w.isLate():
			return os.ErrDeadlineExceeded
		case failed != nil && !more:
			return failed
		case l.mode == Each:
			failed, more = l.driveAlone(w)
			polled = true
		case l.tryLead(w):
			failed, more = l.pass(w)
			polled = true
		case w.poll || !first && w.isLate():
			return os.ErrDeadlineExceeded
		default:
			l.park(w)
		}
	}
}

// mayLead reports whether w may lead where the lead is s: if it is free or its own, or lent to what may be this very goroutine, further up
// its stack. A driver takes it from nobody, and runs no callbacks while another one does.
func (l *Loop) mayLead(w *Waiter, s uint64) bool {
	switch {
	case s == w.id:
		return true
	case w.around != nil:
		return s == 0 && l.running.Load() == 0
	}
	return s == 0 || s&lent != 0
}

// tryLead reports whether w leads now.
func (l *Loop) tryLead(w *Waiter) bool {
	s := l.lead.Load()
	return l.mayLead(w, s) && l.lead.CompareAndSwap(s, w.id)
}

// driveAlone is a pass where none is parked.
func (l *Loop) driveAlone(w *Waiter) (failed error, more bool) {
	failed = l.poll(w, w.deadline)
	return failed, l.run(w, w.most())
}

func (l *Loop) poll(w *Waiter, until time.Duration) error {
	err := l.d.Poll(w, until)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// pass is one turn of the leader: Poll, and the callbacks that are ready then.
func (l *Loop) pass(w *Waiter) (failed error, more bool) {
	if l.batch.state.Load() != noBatch {
		l.gather()
	}
	l.stirred.Store(false)
	if l.dueCount.Load() > 0 { // left by one that has lost the lead
		l.wakeDue()
	}
	l.polling.Store(w)
	failed = l.poll(w, min(w.deadline, l.firstDeadline()))
	switch {
	case l.stirred.Load(): // by one with an earlier deadline
		return failed, true
	case w.onlyPolls:
		return failed, false
	case l.mode == HandOn:
		l.giveUp(w.id)
		return failed, l.run(w, w.most())
	}
	batch := l.BeginBatch()
	l.passes.Add(1)
	l.lead.Store(w.id | lent)
	if l.parkedCount.Load() > 0 {
		l.armWatch()
	}
	if w.around == nil {
		more = l.run(w, w.most())
	} else {
		w.around(w.run)
		more = w.again
	}
	if l.lead.CompareAndSwap(w.id|lent, w.id) {
		l.wakeTogether(w)
		return failed, more
	}
	if l.dueCount.Load() > 0 {
		l.wakeDue()
	}
	if batch != 0 && batch == l.batch.number.Load() { // who leads has one of its own
		l.closeBatch()
	}
	return failed, more
}

// wakeTogether wakes those whose end has come, at the end of a pass of w, which leads. What they send from now on is held back, if they are
// two or more.
func (l *Loop) wakeTogether(w *Waiter) {
	var (
		ready []*Waiter
		woken int32
	)
	if l.dueCount.Load() > 0 {
		ready, woken = l.takeDue(w)
	}
	one := l.settle(woken)
	wake(ready)
	if one { // it goes on here and now; a leader that polls would leave it to a processor that has to be woken
		runtime.Gosched()
	}
}

// run runs callbacks until w need not wait or none is queued; it leaves the rest to others. It reports whether it gave up
// only to let bytes move, or others go on.
func (l *Loop) run(w *Waiter, most int) (more bool) {
	w.ran, w.begun, w.more = 0, -1, false
	return l.d.Run(w, most) >= most && !w.stopped || w.more
}

// most is how many callbacks w runs in a pass.
func (w *Waiter) most() int {
	if w.poll {
		return pollSize
	}
	return passSize
}

// firstDeadline returns the first deadline of those that are parked, and has those that come with an earlier one stir the leader.
func (l *Loop) firstDeadline() time.Duration {
	l.until.Store(int64(Never)) // first: who counts itself later sees this
	if l.timedCount.Load() == 0 {
		return Never
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first, at := l.deadlines.First()
	if first == nil {
		return Never
	}
	l.until.Store(int64(at))
	return at
}

// expire wakes those that are parked and whose deadline has passed. The leader comes back in time for all.
func (l *Loop) expire(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w, deadline := l.deadlines.First(); w != nil && deadline <= now; w, deadline = l.deadlines.First() {
		l.unparkLocked(w)
	}
}

// leave ends a wait; the lead goes on.
func (l *Loop) leave(w *Waiter) {
	w.ctx, w.gone = nil, nil
	if w.unhook != nil {
		w.unhook()
		w.unhook = nil
	}
	if s := l.lead.Load(); s&^lent == w.id {
		l.giveUp(s)
	}
}

// giveUp ends the lead s of the caller, if it has that still.
func (l *Loop) giveUp(s uint64) {
	if l.parkedCount.Load() == 0 && l.lead.CompareAndSwap(s, 0) {
		s = 0
	}
	l.passLead(s)
	if l.batch.held.Load() && l.lead.Load() == 0 {
		l.armWatch() // if nobody comes who sends what is held back
	}
	l.d.Freed()
}

// passLead gives the lead, if it is s, to one that is parked, if any is and may have it; else it is free from now on.
func (l *Loop) passLead(s uint64) {
	if s == 0 && l.parkedCount.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.passLeadLocked(s) && s != 0 && l.lead.CompareAndSwap(s, 0) && l.running.Load() == 0 {
		l.passLeadLocked(0) // a driver that parked because of one that is not in Run any more
	}
}

// passLeadLocked reports whether one that is parked leads now. It takes the last that was parked, which costs nothing to find: but a driver
// only while no other one is in Run.
func (l *Loop) passLeadLocked(s uint64) bool {
	i := len(l.parked) - 1
	if l.running.Load() > 0 {
		for i >= 0 && l.parked[i].around != nil {
			i--
		}
	}
	if i < 0 || !l.lead.CompareAndSwap(s, l.parked[i].id) {
		return false
	}
	l.unparkLocked(l.parked[i])
	return true
}

// TryLead takes the lead for a moment, for what is not a wait, if it is free or lent. Unlead follows.
func (l *Loop) TryLead() bool {
	s := l.lead.Load()
	return (s == 0 || s&lent != 0) && l.lead.CompareAndSwap(s, outside)
}

// Unlead ends what TryLead began.
func (l *Loop) Unlead() { l.giveUp(outside) }
