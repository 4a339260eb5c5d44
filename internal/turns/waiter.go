package turns

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/timeheap"
)

// A Waiter is one goroutine that waits, or what it waits for: an end that comes once.
type Waiter struct {
	t         *Table
	done      func() bool // nil: hit
	ended     atomic.Bool
	isStirred func() bool // bound once, as
	willSleep func()
	trigger   func(max int) int
	around    func(run func(instead func() bool)) // of Drive
	batch     func(instead func() bool)           // what it calls: run, which sets
	again     bool
	runs      atomic.Bool // it is in batch: no other goroutine of Drive leads meanwhile

	token    chan struct{} // one slot, filled by whoever takes it off the sleepers
	deadline time.Duration
	poll     bool            // timeout 0: look once, however late it is
	expired  bool            // the deadline has passed
	ctx      context.Context // of the wait
	gone     <-chan struct{} // closed when ctx has ended
	unhook   func() bool     // ends what wakes the leader then; nil: nothing does
	ran      int             // callbacks in this pass,
	begun    time.Duration   // of which the first ended then; less than 0: none has
	stopped  bool            // w waits no longer for more of them,
	more     bool            // or takes too long
	due      bool            // in Table.due
	sleeper  int             // index in Table.sleepers, -1 when awake
	place    timeheap.Place  // in Table.deadlines
}

// NewWaiter returns a waiter for an end that has not come. It may be used again after Reset.
func (t *Table) NewWaiter() *Waiter {
	w := &Waiter{t: t, token: make(chan struct{}, 1), sleeper: -1}
	w.isStirred, w.willSleep, w.trigger = w.stirred, w.sleeps, t.d.Trigger(w.stops)
	return w
}

// Reset makes w ready for another end, when nobody waits.
func (w *Waiter) Reset() { w.ended.Store(false) }

// Ended reports whether the end has come.
func (w *Waiter) Ended() bool { return w.ended.Load() }

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

// stops is looked at after each callback that w runs.
func (w *Waiter) stops() bool {
	t := w.t
	if w.stopped = w.over() || w.quits(); w.stopped {
		return true
	}
	if w.deadline != never && !w.poll && t.d.Now() >= w.deadline {
		w.stopped = true
		return true
	}
	if w.ran++; t.b == nil || w.ran%4 != 1 {
		return false
	}
	if now := t.d.Now(); w.begun < 0 {
		w.begun = now
	} else if now-w.begun >= long {
		w.more = true
	}
	return w.more
}

// stirred is what the Progress of w waits for.
func (w *Waiter) stirred() bool {
	return w.t.d.Ready() || w.seemsOver() || w.t.stirred.Load() || w.quits()
}

// sleeps has the end of the context wake the Progress of w: no earlier, since it costs more than a call.
func (w *Waiter) sleeps() {
	if w.gone != nil && w.unhook == nil {
		w.unhook = context.AfterFunc(w.ctx, w.t.stir)
	}
}

func (t *Table) borrow() *Waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.idle) - 1
	if last < 0 {
		return t.NewWaiter()
	}
	w := t.idle[last]
	t.idle = t.idle[:last]
	return w
}

func (t *Table) giveBack(w *Waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.done = nil
	if len(t.idle) < maxIdle {
		t.idle = append(t.idle, w)
	}
}

// enter begins a wait.
func (t *Table) enter(w *Waiter, timeout time.Duration) {
	deadline := never
	if timeout >= 0 {
		if now := t.d.Now(); now < never-timeout {
			deadline = now + timeout
		}
	}
	w.deadline, w.poll, w.expired = deadline, timeout == 0, false
	if deadline != never {
		t.mu.Lock()
		t.deadlines.Set(w, &w.place, deadline)
		t.mu.Unlock()
	}
}

// leave ends it; the lead goes on.
func (t *Table) leave(w *Waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.ctx, w.gone = nil, nil
	if w.unhook != nil {
		w.unhook()
		w.unhook = nil
	}
	t.deadlines.Remove(&w.place)
	if t.leader == w {
		t.handOnLocked()
		if t.leader == nil && t.corked {
			t.watchLocked() // whoever comes home first sends what is held back
		}
	}
}
