package loop

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Waiter represents a goroutine that waits: for End, or for a condition. One goroutine at a time
// waits with it.
type Waiter struct {
	loop    *Loop
	id      uint64
	done    func() bool // the condition; nil: w waits for End
	ended   atomic.Bool // End was called
	runner  Runner      // the argument of Drive; nil for other waits
	keep    func()      // likewise
	hasMore bool        // callbacks may be left after Run

	// The clock as the goroutine of w has read it; negative: it has not.
	clock  time.Duration // just now
	polled time.Duration // at the end of Poll

	yieldsLead bool  // w is from NewYielding
	standsIn   bool  // w is from StandIn
	lastWoken  int32 // how many waiters w has woken at the end of its last pass

	token     chan struct{} // one slot, filled by the goroutine that removes w from Loop.parked
	isParked  atomic.Bool   // index is not -1
	deadline  time.Duration
	onlyPolls bool            // w runs no callbacks: it is from NewPoller
	timer     *time.Timer     // wakes a parked poller at its deadline
	timedOut  bool            // timer has fired
	pollOnce  bool            // the timeout is 0: poll once, also after the deadline
	ctx       context.Context // of the wait
	canceled  <-chan struct{} // ctx.Done()
	// unregisters the function of ctx that wakes the leader; nil if none is registered
	stopCancelWake func() bool
	ranInPass      int // callbacks that have run in this pass
	// when Poll, or else the first callback of this pass, ended; negative before that
	passStart  time.Duration
	stopped    bool // callbacks stopped because w is over, canceled or late
	ranTooLong bool // callbacks stopped after longRun, so that bytes can move

	// Loop.mu guards the fields below.
	due       bool           // w is in Loop.due
	index     int            // in Loop.parked; -1 if w is not parked
	heapIndex timeheap.Index // in Loop.deadlines, while parked
}

// NewWaiter returns a Waiter that waits for End. It may be used again after Reset.
func (l *Loop) NewWaiter() *Waiter {
	return &Waiter{loop: l, id: lastID.Add(2), token: make(chan struct{}, 1), index: -1, clock: -1}
}

// NewYielding returns a Waiter that passes the lead to a parked goroutine in Drive, if there is
// one. It is for waits that may last long.
func (l *Loop) NewYielding() *Waiter {
	w := l.NewWaiter()
	w.yieldsLead = true
	return w
}

// Reset makes w ready for another End. No goroutine may be waiting with w.
func (w *Waiter) Reset() { w.ended.Store(false) }

// Ended reports whether End was called.
func (w *Waiter) Ended() bool { return w.ended.Load() }

// Wait waits for End, as Loop.Wait does, and returns nil, or the cause of ctx, or the error of Poll.
func (w *Waiter) Wait(ctx context.Context) error {
	if w.isOver() {
		return nil
	}
	return w.loop.wait(ctx, -1, w)
}

// Await waits for End. If ctx is done first it calls cancel, which must make End be called soon,
// and continues to wait.
func (w *Waiter) Await(ctx context.Context, cancel func()) {
	if w.Wait(ctx) != nil && !w.Ended() {
		cancel()
		_ = w.Wait(context.Background())
	}
}

// NewPoller returns a Waiter that waits until ready reports true, and runs no callbacks.
func (l *Loop) NewPoller(ready func() bool) *Waiter {
	w := l.NewWaiter()
	w.done, w.onlyPolls = ready, true
	return w
}

// PollFor waits until ready reports true, at most for timeout. The errors are those of Loop.Wait.
func (w *Waiter) PollFor(timeout time.Duration) error {
	return w.loop.wait(context.Background(), timeout, w)
}

// isLate reports whether the deadline has passed.
func (w *Waiter) isLate() bool {
	return w.timedOut || w.deadline != Never && w.loop.driver.Now() >= w.deadline
}

// isOver reports whether the wait of w is over: End was called, or its condition is true.
func (w *Waiter) isOver() bool {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.done()
}

// isOverSafe is isOver for other goroutines and with locks held: a condition that panics counts as
// true, so that w is woken and the panic happens on its own goroutine.
func (w *Waiter) isOverSafe() (over bool) {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.isDoneSafe()
}

// isDoneSafe calls the condition, and returns true if it panics.
func (w *Waiter) isDoneSafe() (over bool) {
	over = true
	defer func() { _ = recover() }()
	over = w.done()
	return over
}

// isCanceled reports whether the context of the wait is done.
func (w *Waiter) isCanceled() bool {
	select {
	case <-w.canceled:
		return true
	default:
		return false
	}
}

// Stops reports, after each callback, whether Run must end: because w is over, canceled or late, or
// because callbacks have run for 1 ms, after which the leader moves bytes again.
func (w *Waiter) Stops() bool {
	d := w.loop.driver
	w.stopped = w.isOver() || w.isCanceled()
	if w.stopped {
		return true
	}
	if w.deadline != Never && !w.pollOnce && d.Now() >= w.deadline {
		w.stopped = true
		return true
	}
	w.ranInPass++
	if w.ranInPass%4 != 0 && w.passStart >= 0 { // the clock is read after every fourth callback
		return false
	}
	if now := d.Now(); w.passStart < 0 {
		w.passStart = now
	} else if now-w.passStart >= longRun {
		w.ranTooLong = true
	}
	return w.ranTooLong
}

// Stirred reports whether Poll must return.
func (w *Waiter) Stirred() bool {
	return w.loop.driver.Queued() > 0 || w.isOverSafe() || w.loop.stirred.Load() || w.isCanceled()
}

// WillSleep registers Stir with the context of the wait, so that its end wakes the Poll of w. It is
// called as late as possible, because it costs more than a whole call.
func (w *Waiter) WillSleep() {
	if w.canceled != nil && w.stopCancelWake == nil {
		w.stopCancelWake = context.AfterFunc(w.ctx, w.loop.stir)
	}
}

// acquireWaiter returns a Waiter that is not in use.
func (l *Loop) acquireWaiter() *Waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.freeWaiters) - 1
	if last < 0 {
		return l.NewWaiter()
	}
	w := l.freeWaiters[last]
	l.freeWaiters = l.freeWaiters[:last]
	return w
}

// releaseWaiter keeps w for reuse.
func (l *Loop) releaseWaiter(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastLeader.CompareAndSwap(w, nil) // so that Wake does not check its condition any more
	w.done = nil
	if len(l.freeWaiters) < maxFreeWaiters {
		l.freeWaiters = append(l.freeWaiters, w)
	}
}

// initWait sets the deadline of a wait that begins now.
func (l *Loop) initWait(w *Waiter, timeout time.Duration) {
	deadline := Never
	if timeout >= 0 {
		w.clock = l.driver.Now()
		if w.clock < Never-timeout {
			deadline = w.clock + timeout
		}
	}
	w.deadline, w.pollOnce, w.timedOut = deadline, timeout == 0, false
}
