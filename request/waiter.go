package request

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

const (
	// never is the deadline of who waits without a limit.
	never time.Duration = math.MaxInt64
	// maxIdle bounds the waiters kept for reuse.
	maxIdle = 256
)

// A waiter is one call that waits. The class keeps a few for reuse, so that a Wait allocates nothing.
type waiter struct {
	token    chan struct{} // one slot, filled by whoever takes it off the sleepers
	need     int           // completions still missing; nothing is missing at 0 and below
	deadline time.Duration
	poll     bool // timeout 0: look once, however late it is
	expired  bool // the deadline has passed
	ended    bool // the context has ended
	bed      int  // index in Class.sleepers, -1 when awake
	place    int  // index in Class.deadlines, -1 when not there
	stray    bool // an AfterFunc may still refer to it, so that it must not be reused
}

// enter returns a waiter that reqs know of until leave, or nil if there is nothing to wait for.
func (c *Class) enter(timeout time.Duration, one bool, reqs []*Request) *waiter {
	deadline := never
	if timeout >= 0 {
		if now := c.p.Now(); now < never-timeout {
			deadline = now + timeout
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := 0
	for _, r := range reqs {
		switch {
		case r == nil:
		case !r.done:
			pending++
		case one:
			return nil
		}
	}
	if pending == 0 {
		return nil
	}
	w := c.waiterLocked()
	w.deadline, w.poll, w.need = deadline, timeout == 0, pending
	if one {
		w.need = 1
	}
	for _, r := range reqs {
		if r != nil && !r.done {
			r.waiters = append(r.waiters, w)
		}
	}
	if deadline != never {
		heap.Push(&c.deadlines, w)
	}
	return w
}

func (c *Class) waiterLocked() *waiter {
	last := len(c.idle) - 1
	if last < 0 {
		return &waiter{token: make(chan struct{}, 1), bed: -1, place: -1}
	}
	w := c.idle[last]
	c.idle = c.idle[:last]
	w.expired, w.ended = false, false
	return w
}

func (c *Class) leave(w *waiter, reqs []*Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range reqs {
		if r != nil {
			r.waiters = slices.DeleteFunc(r.waiters, func(x *waiter) bool { return x == w })
		}
	}
	if w.place >= 0 {
		heap.Remove(&c.deadlines, w.place)
	}
	if c.driver == w { // Progress has panicked
		c.driver = nil
		c.promoteLocked()
	}
	if !w.stray && len(c.idle) < maxIdle {
		c.idle = append(c.idle, w)
	}
}

// deadlines is a heap (see container/heap) of the waiters that have a deadline, the earliest first.
type deadlines []*waiter

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].deadline < d[j].deadline }

func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

func (d *deadlines) Push(x any) {
	w := x.(*waiter)
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
