package turns

import (
	"container/heap"
	"context"
	"sync/atomic"
	"time"
)

// A Waiter is one goroutine that waits, or what it waits for: an end that comes once.
type Waiter struct {
	t         *Table
	done      func() bool // nil: hit
	hit       atomic.Bool
	isStirred func() bool // bound once

	token    chan struct{} // one slot, filled by whoever takes it off the sleepers
	life     uint64        // counts the waits
	deadline time.Duration
	poll     bool            // timeout 0: look once, however late it is
	expired  bool            // the deadline has passed
	ended    atomic.Bool     // the context has ended
	ctx      context.Context // it, if stirred has to look; or nil
	due      bool            // in Table.due
	bed      int             // index in Table.sleepers, -1 when awake
	place    int             // index in Table.deadlines, -1 when not there
}

// NewWaiter returns a waiter for an end that has not come. It may be used again after Reset.
func (t *Table) NewWaiter() *Waiter {
	w := &Waiter{t: t, token: make(chan struct{}, 1), bed: -1, place: -1}
	w.isStirred = w.stirred
	return w
}

// Reset makes w ready for another end, when nobody waits.
func (w *Waiter) Reset() { w.hit.Store(false) }

// Ended reports whether the end has come.
func (w *Waiter) Ended() bool { return w.hit.Load() }

// over reports whether w need not wait any more.
func (w *Waiter) over() bool {
	if w.done == nil {
		return w.hit.Load()
	}
	return w.done()
}

// seemsOver is over for others than w's own goroutine, and under locks: a condition that panics counts as true, for w's
// goroutine to see.
func (w *Waiter) seemsOver() (over bool) {
	if w.done == nil {
		return w.hit.Load()
	}
	over = true
	defer func() { _ = recover() }()
	over = w.done()
	return over
}

// stirred is what the Progress of w waits for.
func (w *Waiter) stirred() bool {
	return w.t.d.Ready() || w.seemsOver() || w.ended.Load() || w.t.stirred.Load() || w.ctx != nil && w.ctx.Err() != nil
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
		heap.Push(&t.deadlines, w)
		t.mu.Unlock()
	}
}

// leave ends it; the lead goes on.
func (t *Table) leave(w *Waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.life++
	w.ctx = nil
	w.ended.Store(false)
	if w.place >= 0 {
		heap.Remove(&t.deadlines, w.place)
	}
	if t.leader == w {
		t.handOnLocked()
		if t.leader == nil && t.corked {
			t.watchLocked() // whoever comes home first sends what is held back
		}
	}
}

// deadlines is a heap (see container/heap) of the waiters that have a deadline, the earliest first.
type deadlines []*Waiter

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].deadline < d[j].deadline }

func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

func (d *deadlines) Push(x any) {
	w := x.(*Waiter)
	w.place = len(*d)
	*d = append(*d, w)
}

func (d *deadlines) Pop() any {
	last := len(*d) - 1
	w := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	w.place = -1
	return w
}
