package loop

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Waiter is one goroutine that waits, or what it waits for: an end that comes once.
type Waiter struct {
	l      *Loop
	id     uint64
	done   func() bool // nil: End was called
	ended  atomic.Bool
	around func(run func(one bool)) // of Drive
	run    func(one bool)           // what it calls, which sets
	again  bool

	token     chan struct{} // one slot, filled by who takes it off parked
	isParked  atomic.Bool   // index is not -1
	deadline  time.Duration
	onlyPolls bool            // it runs no callbacks, and has
	timer     *time.Timer     // that ends its sleep,
	late      bool            // and has ended it
	poll      bool            // timeout 0: look once, however late it is
	ctx       context.Context // of the wait
	gone      <-chan struct{} // closed when ctx has ended
	unhook    func() bool     // ends what wakes the leader then; nil: nothing does
	ran       int             // callbacks in this pass,
	begun     time.Duration   // of which the first ended then; less than 0: none has
	stopped   bool            // w waits no longer for more of them,
	more      bool            // or takes too long

	// Loop.mu guards the fields below.
	due   bool           // in Loop.due
	index int            // in Loop.parked, -1 when awake
	place timeheap.Place // in Loop.deadlines, while parked
}

// NewWaiter returns a waiter for an end that has not come. It may be used again after Reset.
func (l *Loop) NewWaiter() *Waiter {
	return &Waiter{l: l, id: ids.Add(2), token: make(chan struct{}, 1), index: -1}
}

// Reset makes w ready for another end, when nobody waits.
func (w *Waiter) Reset() { w.ended.Store(false) }

// Ended reports whether the end has come.
func (w *Waiter) Ended() bool { return w.ended.Load() }

// Wait returns nil when End was called, or the cause of ctx, or the error of Poll.
func (w *Waiter) Wait(ctx context.Context) error {
	if w.over() {
		return nil
	}
	return w.l.wait(ctx, -1, w)
}

// Await waits for End, and calls cancel, which is to bring it about, when ctx ends first: never once Await has returned.
func (w *Waiter) Await(ctx context.Context, cancel func()) {
	if w.Wait(ctx) != nil && !w.Ended() {
		cancel()
		_ = w.Wait(context.Background())
	}
}

// NewPoller returns a waiter that runs no callbacks: it waits until ready reports true.
func (l *Loop) NewPoller(ready func() bool) *Waiter {
	w := l.NewWaiter()
	w.done, w.onlyPolls = ready, true
	return w
}

// PollFor waits until ready reports true, for timeout at the most: the errors are those of Loop.Wait.
func (w *Waiter) PollFor(timeout time.Duration) error {
	return w.l.wait(context.Background(), timeout, w)
}

// isLate reports whether the deadline has passed.
func (w *Waiter) isLate() bool { return w.late || w.deadline != Never && w.l.d.Now() >= w.deadline }

// over reports whether w need not wait any more.
func (w *Waiter) over() bool {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.done()
}

// seemsOver is over for others than w's own goroutine, and under locks: a condition that panics counts as true, for w's
// goroutine to see.
func (w *Waiter) seemsOver() (over bool) {
	if w.done == nil {
		return w.ended.Load()
	}
	return w.isDone()
}

func (w *Waiter) isDone() (over bool) {
	over = true
	defer func() { _ = recover() }()
	over = w.done()
	return over
}

// quits reports whether the context of the wait has ended.
func (w *Waiter) quits() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// Stops reports, after a callback that w has run, whether Run is to end: because w waits no longer, or to let bytes move.
func (w *Waiter) Stops() bool {
	d := w.l.d
	if w.stopped = w.over() || w.quits(); w.stopped {
		return true
	}
	if w.deadline != Never && !w.poll && d.Now() >= w.deadline {
		w.stopped = true
		return true
	}
	if w.ran++; w.ran%4 != 1 {
		return false
	}
	if now := d.Now(); w.begun < 0 {
		w.begun = now
	} else if now-w.begun >= long {
		w.more = true
	}
	return w.more
}

// Stirred reports whether Poll is to return.
func (w *Waiter) Stirred() bool {
	return w.l.d.Queued() > 0 || w.seemsOver() || w.l.stirred.Load() || w.quits()
}

// WillSleep has the end of the context wake the Poll of w: no earlier, since it costs more than a call.
func (w *Waiter) WillSleep() {
	if w.gone != nil && w.unhook == nil {
		w.unhook = context.AfterFunc(w.ctx, w.l.stir)
	}
}

func (l *Loop) borrow() *Waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return l.NewWaiter()
	}
	w := l.idle[last]
	l.idle = l.idle[:last]
	return w
}

func (l *Loop) giveBack(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.polling.CompareAndSwap(w, nil) // Wake looks at its condition no more
	w.done = nil
	if len(l.idle) < maxIdle {
		l.idle = append(l.idle, w)
	}
}

// enter begins a wait.
func (l *Loop) enter(w *Waiter, timeout time.Duration) {
	deadline := Never
	if timeout >= 0 {
		if now := l.d.Now(); now < Never-timeout {
			deadline = now + timeout
		}
	}
	w.deadline, w.poll, w.late = deadline, timeout == 0, false
}
