package loop

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Waiter represents a goroutine that waits for End or for a condition. At most one goroutine at a
// time may wait with it.
type Waiter struct {
	loop    *Loop
	id      uint64
	done    func() bool // the condition; nil if w waits for End
	ended   atomic.Bool // whether End was called
	runner  Runner      // runner argument of Drive; nil for other waits
	keep    func()      // keep argument of Drive
	hasMore bool        // whether callbacks may be left after Run

	// Times that w's goroutine read from the clock. A negative value means that it has not read the
	// clock.
	clock  time.Duration // current time
	polled time.Duration // time at the end of Poll

	yieldsLead bool  // set by NewYielding
	standsIn   bool  // set by StandIn
	lastWoken  int32 // number of waiters woken by w at the end of its last pass

	token     chan struct{} // capacity 1; filled by the goroutine that removes w from Loop.parked
	isParked  atomic.Bool   // whether index is not -1
	deadline  time.Duration
	onlyPolls bool            // w runs no callbacks; set by NewPoller
	timer     *time.Timer     // wakes a parked poller at its deadline
	timedOut  bool            // whether timer has fired
	pollOnce  bool            // the timeout is 0: poll once, even after the deadline
	ctx       context.Context // context of the wait
	canceled  <-chan struct{} // ctx.Done()
	// stopCancelWake unregisters the context's function that wakes the leader. It is nil if none is
	// registered.
	stopCancelWake func() bool
	ranInPass      int // number of callbacks run in this pass
	// passStart is the time at which Poll, or otherwise the first callback of this pass, returned.
	// It is negative before that.
	passStart  time.Duration
	stopped    bool // callbacks stopped because w's wait is complete, canceled or timed out
	ranTooLong bool // callbacks stopped after running for longRun, so that bytes can be moved

	// Loop.mu guards the fields below.
	due       bool           // whether w is in Loop.due
	index     int            // index in Loop.parked; -1 if w is not parked
	heapIndex timeheap.Index // index in Loop.deadlines while parked
}

// NewWaiter returns a Waiter that waits for End. After Reset it may be used again.
func (l *Loop) NewWaiter() *Waiter {
	return &Waiter{loop: l, id: lastID.Add(2), token: make(chan struct{}, 1), index: -1, clock: -1}
}

// NewYielding returns a Waiter that passes the lead to a parked goroutine in Drive, if there is
// one. It is for waits that may be long.
func (l *Loop) NewYielding() *Waiter {
	w := l.NewWaiter()
	w.yieldsLead = true
	return w
}

// Reset prepares w for another End. No goroutine may be waiting with w.
func (w *Waiter) Reset() { w.ended.Store(false) }

// Ended reports whether End was called.
func (w *Waiter) Ended() bool { return w.ended.Load() }

// Wait waits for End, as Loop.Wait waits for a condition. It returns nil, the cause of ctx, or the
// error of Poll.
func (w *Waiter) Wait(ctx context.Context) error {
	if w.isOver() {
		return nil
	}
	return w.loop.wait(ctx, -1, w)
}

// Await waits for End. If ctx is done first, it calls cancel, which must cause End to be called
// soon, and continues to wait.
func (w *Waiter) Await(ctx context.Context, cancel func()) {
	if w.Wait(ctx) != nil && !w.Ended() {
		cancel()
		_ = w.Wait(context.Background())
	}
}

// NewPoller returns a Waiter that waits until ready reports true and runs no callbacks.
func (l *Loop) NewPoller(ready func() bool) *Waiter {
	w := l.NewWaiter()
	w.done, w.onlyPolls = ready, true
	return w
}

// PollFor waits until ready reports true, for at most timeout. Errors are those documented for
// Loop.Wait.
func (w *Waiter) PollFor(timeout time.Duration) error {
	return w.loop.wait(context.Background(), timeout, w)
}

// isLate reports whether the deadline has passed.
func (w *Waiter) isLate() bool {
	return w.timedOut || w.deadline != Never && w.loop.driver.Now() >= w.deadline
}

// isOver reports whether w's wait is complete: End was called, or the condition is true.
func (w *Waiter) isOver() bool {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.done()
}

// isOverSafe is like isOver, but may be called by other goroutines and with locks held. A condition
// that panics counts as true, so that w is woken and the panic occurs on its own goroutine.
func (w *Waiter) isOverSafe() (over bool) {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.isDoneSafe()
}

// isDoneSafe returns the value of the condition, or true if it panics.
func (w *Waiter) isDoneSafe() (over bool) {
	over = true
	defer func() { _ = recover() }()
	over = w.done()
	return over
}

// isCanceled reports whether the wait's context is done.
func (w *Waiter) isCanceled() bool {
	select {
	case <-w.canceled:
		return true
	default:
		return false
	}
}

// Stops reports whether Run must stop. Run must call it after each callback. It returns true if w's
// wait is complete, canceled or timed out, or if callbacks have run for 1 ms, after which the
// leader must move bytes again.
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
	if w.ranInPass%4 != 0 && w.passStart >= 0 { // the clock is read only after every fourth callback
		return false
	}
	if now := d.Now(); w.passStart < 0 {
		w.passStart = now
	} else if now-w.passStart >= longRun {
		w.ranTooLong = true
	}
	return w.ranTooLong
}

// Stirred reports whether Poll must return before its time limit.
func (w *Waiter) Stirred() bool {
	return w.loop.driver.Queued() > 0 || w.isOverSafe() || w.loop.stirred.Load() || w.isCanceled()
}

// WillSleep arranges for Stir to be called when the wait's context is done, so that w's Poll wakes
// up. Poll calls it only right before it sleeps, because WillSleep costs more than an entire RPC.
func (w *Waiter) WillSleep() {
	if w.canceled != nil && w.stopCancelWake == nil {
		w.stopCancelWake = context.AfterFunc(w.ctx, w.loop.stir)
	}
}

// acquireWaiter returns a Waiter that is not in use, allocating one if necessary.
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

// releaseWaiter makes w available for reuse.
func (l *Loop) releaseWaiter(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastLeader.CompareAndSwap(w, nil) // so that Wake no longer checks its condition
	w.done = nil
	if len(l.freeWaiters) < maxFreeWaiters {
		l.freeWaiters = append(l.freeWaiters, w)
	}
}

// initWait sets the deadline of a wait that starts now.
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
