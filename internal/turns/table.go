package turns

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Driver moves bytes and runs callbacks. No lock of this package is held when its methods are called.
type Driver interface {
	// Progress returns nil when something may be ready for Trigger or stirred reports true, which it does when Ready does; an
	// error that matches os.ErrDeadlineExceeded when nothing happened in timeout (negative: no limit); any other when
	// waiting is of no use. sleeps is called before it waits for what has to wake it: for Stir, unless somebody else drives.
	Progress(timeout time.Duration, stirred func() bool, sleeps func()) error
	// Ready reports whether Trigger has something to run, as far as the Driver knows before Progress.
	Ready() bool
	// Trigger returns what runs callbacks, max at the most, and returns how many: it ends after one when stop reports true. It is made
	// once for each Waiter.
	Trigger(stop func() bool) func(max int) int
	// Stir makes a Progress that sleeps look at stirred.
	Stir()
	Now() time.Duration
}

// A Batcher is a Driver whose leader keeps the lead while it runs callbacks, so that all of a pass are run before anybody is
// woken. A callback that takes long loses the lead.
type Batcher interface {
	// Cork holds back what any goroutine sends until Uncork or Flush; it reports false when it does not.
	Cork() bool
	Uncork()
	Flush()
	// Begin and End enclose the callbacks of one pass.
	Begin() Pass
	End(Pass)
}

// A Pass is what a Batcher holds back for the callbacks of one pass.
type Pass struct {
	Corked bool // what is sent
	Serial uint32
}

const (
	// never is the deadline of a wait that has none.
	never = time.Duration(1<<63 - 1)
	// batch bounds the callbacks of a pass, pollBatch those of a Wait that only looks once.
	batch, pollBatch = 64, 8192
	// long is how long a leader may be in callbacks while others sleep.
	long = time.Millisecond
	// maxIdle bounds the waiters that are kept for reuse.
	maxIdle = 256
)

// A Table is those who wait for one Driver.
type Table struct {
	d    Driver
	b    Batcher // nil if d is none
	now  func() time.Duration
	stir func()
	each bool

	stirred atomic.Bool // the leader is to come back from Progress
	gathering

	mu        sync.Mutex // guards the rest, and all waiters; not held in a call out of the package, but of conditions and Cork
	leader    *Waiter    // nil: nobody sleeps, either
	calling   bool       // it is in callbacks, and a Batcher's
	passes    uint64     // of callbacks
	until     time.Duration
	sleepers  []*Waiter
	due       []*Waiter // that sleep, and are woken at the end of the pass
	look      bool      // at every condition, at the end of the pass
	deadlines timeheap.Heap[Waiter]
	idle      []*Waiter
	watch     watch
}

// New returns the table of those who wait for d. With each set nobody sleeps: whoever waits drives.
func New(d Driver, each bool) *Table {
	t := &Table{d: d, each: each}
	t.b, _ = d.(Batcher)
	t.now, t.stir = d.Now, d.Stir
	if t.b != nil {
		t.flush = t.b.Flush
	}
	t.Gather = NewGather()
	return t
}

// Wait returns nil when done reports true, the cause of ctx when that ends first, os.ErrDeadlineExceeded after timeout
// (negative: no limit; zero: one look), or the error of Progress. Callbacks run on this goroutine meanwhile, and done is
// looked at after each. Whoever makes done true calls Wake. done is quick and takes no lock that is held around Wake.
func (t *Table) Wait(ctx context.Context, timeout time.Duration, done func() bool) error {
	if done() {
		return nil
	}
	w := t.borrow()
	w.done = done
	defer t.giveBack(w)
	return t.wait(ctx, timeout, w)
}

// Drive is Wait for what never comes, by a goroutine that does nothing else. around is called for each pass, and calls run, which runs the
// callbacks, unless instead has dealt with all that is ready, and reports so. It has no effect where nobody sleeps. Of several in Drive
// another one leads when what around does after run takes long, and not when a callback does: so those of one goroutine run in their order.
func (t *Table) Drive(ctx context.Context, around func(run func(instead func() bool))) error {
	w := t.NewWaiter()
	w.around, w.batch = around, func(instead func() bool) {
		w.runs.Store(true)
		w.again = !instead() && t.run(w)
		w.runs.Store(false)
	}
	return w.Wait(ctx)
}

// Wake makes everybody who waits look again.
func (t *Table) Wake() {
	t.mu.Lock()
	stir := t.each
	switch {
	case t.calling:
		t.look = true
	case t.leader != nil:
		t.lookLocked()
		stir = t.leader.seemsOver()
	}
	t.mu.Unlock()
	if stir {
		t.d.Stir()
	}
}

// Quiet reports whether nobody waits.
func (t *Table) Quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, _ := t.deadlines.First()
	return t.leader == nil && len(t.sleepers) == 0 && first == nil
}

// Unlocked reports whether the lock is free. It means something only while a single goroutine uses t.
func (t *Table) Unlocked() bool {
	if !t.mu.TryLock() {
		return false
	}
	t.mu.Unlock()
	return true
}

// wait is what every waiting goroutine does: lead if nobody does, else sleep, then look again.
func (t *Table) wait(ctx context.Context, timeout time.Duration, w *Waiter) error {
	t.enter(w, timeout)
	defer t.leave(w) // deferred: a callback may panic, or end the goroutine
	if w.ctx, w.gone = ctx, ctx.Done(); w.quits() {
		return context.Cause(ctx)
	}
	t.Returned(t.flush)
	var (
		failed       error
		more, polled bool
	)
	if t.b == nil {
		more = t.run(w)
	}
	for {
		t.mu.Lock()
		if first, _ := t.deadlines.First(); first != nil {
			t.mu.Unlock()
			now := t.d.Now()
			t.mu.Lock()
			t.expireLocked(now)
		}
		alone := t.leader == nil || t.leader == w
		switch {
		case w.seemsOver():
			t.mu.Unlock()
			if w.over() {
				return nil
			}
		case w.quits():
			t.mu.Unlock()
			return context.Cause(ctx)
		case w.expired && (polled || !alone):
			t.mu.Unlock()
			return os.ErrDeadlineExceeded
		case failed != nil && !more:
			t.mu.Unlock()
			return failed
		case t.each:
			t.mu.Unlock()
			failed, more = t.driveAlone(w)
			polled = true
		case alone || t.calling && w.around == nil: // it may be this very goroutine that is in the callbacks, further up its stack
			failed, more = t.drive(w)
			polled = true
		default:
			t.sleep(w)
		}
	}
}

// driveAlone is drive where nobody sleeps.
func (t *Table) driveAlone(w *Waiter) (failed error, more bool) {
	timeout := time.Duration(-1)
	if w.deadline != never {
		timeout = max(w.deadline-t.d.Now(), 0)
	}
	failed = t.d.Progress(timeout, w.isStirred, w.willSleep)
	if errors.Is(failed, os.ErrDeadlineExceeded) {
		failed = nil
	}
	return failed, t.run(w)
}

// drive leads for one pass: Progress, and the callbacks that are ready then. It is called with mu held and releases it.
func (t *Table) drive(w *Waiter) (failed error, more bool) {
	t.leader, t.calling = w, false
	t.until = never
	if first, deadline := t.deadlines.First(); first != nil {
		t.until = deadline
	}
	t.stirred.Store(t.look || len(t.due) > 0)
	until, expired, corked := t.until, w.expired, t.corked
	t.mu.Unlock()

	if corked {
		t.gather()
	}
	timeout := time.Duration(-1)
	if expired {
		timeout = 0
	} else if until != never {
		timeout = max(until-t.d.Now(), 0)
	}
	if failed = t.d.Progress(timeout, w.isStirred, w.willSleep); errors.Is(failed, os.ErrDeadlineExceeded) {
		failed = nil
	}

	t.mu.Lock()
	if t.b == nil {
		t.handOnLocked() // before callbacks run: they may take long
		t.mu.Unlock()
		return failed, t.run(w)
	}
	t.calling = true
	t.passes++
	if len(t.sleepers) > 0 {
		t.watchLocked()
	}
	t.mu.Unlock()
	more = t.pass(w)
	t.mu.Lock()
	if t.leader == w {
		t.calling = false
		t.wakeDue(w)
	} else {
		t.mu.Unlock()
	}
	return failed, more
}

// pass is run in one pass of a Batcher.
func (t *Table) pass(w *Waiter) (more bool) {
	p := t.b.Begin()
	defer t.b.End(p) // deferred: a callback may panic
	if w.around == nil {
		return t.run(w)
	}
	w.around(w.batch)
	return w.again
}

// run runs callbacks until w need not wait or none is queued; it leaves the rest to others. It reports whether it gave up
// only to let bytes move, or others go on.
func (t *Table) run(w *Waiter) (more bool) {
	limit := batch
	if w.poll {
		limit = pollBatch
	}
	w.ran, w.begun, w.more = 0, -1, false
	return w.trigger(limit) >= limit && !w.stopped || w.more
}

// handOnLocked gives the lead up: to one that sleeps, if any does. It takes the last to fall asleep: it costs nothing to find.
func (t *Table) handOnLocked() {
	t.leader, t.calling = nil, false
	if last := len(t.sleepers) - 1; last >= 0 {
		t.leader = t.sleepers[last]
		t.rouseLocked(t.leader)
	}
}

// sleep waits for a reason to look again. It is called with mu held and releases it.
func (t *Table) sleep(w *Waiter) {
	w.sleeper = len(t.sleepers)
	t.sleepers = append(t.sleepers, w)
	stir := w.deadline < t.until && !t.calling
	if stir {
		t.stirred.Store(true)
	}
	if t.calling {
		t.watchLocked()
	}
	t.mu.Unlock()
	if stir {
		t.d.Stir()
	}
	if w.gone == nil {
		<-w.token
		return
	}
	select {
	case <-w.token:
	case <-w.gone:
		t.mu.Lock()
		asleep := w.sleeper >= 0
		if asleep {
			t.unlistLocked(w)
		}
		t.mu.Unlock()
		if !asleep {
			<-w.token
		}
	}
}

// rouseLocked wakes w, which sleeps.
func (t *Table) rouseLocked(w *Waiter) {
	t.unlistLocked(w)
	w.token <- struct{}{} // never blocks: the slot is empty while w sleeps
}

func (t *Table) unlistLocked(w *Waiter) {
	last := len(t.sleepers) - 1
	moved := t.sleepers[last]
	t.sleepers[w.sleeper], moved.sleeper = moved, w.sleeper
	t.sleepers[last] = nil
	t.sleepers = t.sleepers[:last]
	w.sleeper = -1
}

// lookLocked wakes those whose condition is true.
func (t *Table) lookLocked() {
	for i := len(t.sleepers) - 1; i >= 0; i-- {
		if w := t.sleepers[i]; w.seemsOver() {
			t.rouseLocked(w)
		}
	}
}

// expireLocked tells all waiters whose deadline has passed. The leader comes back in time for all.
func (t *Table) expireLocked(now time.Duration) {
	for w, deadline := t.deadlines.First(); w != nil && deadline <= now; w, deadline = t.deadlines.First() {
		t.deadlines.Remove(&w.place)
		w.expired = true
		if w.sleeper >= 0 {
			t.rouseLocked(w)
		}
	}
}

// touchLocked makes w look at itself now, and reports whether the caller is to call Stir for that, without the lock.
func (t *Table) touchLocked(w *Waiter) (stir bool) {
	switch {
	case w.sleeper >= 0:
		t.rouseLocked(w)
	case t.each:
		return true
	case t.leader == w && !t.calling:
		t.stirred.Store(true)
		return true
	}
	return false
}
