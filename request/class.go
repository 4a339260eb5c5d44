package request

import (
	"container/heap"
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slice bounds one Progress when the Progressor cannot be woken.
	slice = 100 * time.Millisecond
	// batch bounds the callbacks that a waiter runs before bytes move again. A poll moves bytes only once and wants
	// to see all that is queued, so its bound is only for callbacks that queue callbacks without end.
	batch, pollBatch = 64, 8192
)

// A Class is the requests that are completed by callbacks of one Progressor.
type Class struct {
	p     Progressor
	waker Waker // nil if p is none
	aimed Untiler
	cork  Corker // nil if p is none
	// stirred is what the driver's Progress waits for beside bytes: its own completion, an earlier deadline, the end of
	// its context. It is a condition and not a Wake, which another goroutine might use up.
	stirred   atomic.Bool
	isStirred func() bool // stirred.Load, bound once

	// mu guards the rest, and all requests and waiters of the class. It is never held in a call out of the package.
	mu        sync.Mutex
	driver    *waiter       // holds the lead: is in Progress or about to be; nil if the lead is free
	until     time.Duration // when driver comes back by itself
	heir      *waiter       // was woken to take the lead and has not looked yet
	sleepers  []*waiter     // if there are any, there is a driver or an heir
	roused    int           // of them, since the last drive began
	deadlines deadlines     // all waiters whose deadline has not passed, asleep or not
	idle      []*waiter
}

// NewClass returns a class whose waiters drive p. If p is a Waker, that is used.
func NewClass(p Progressor) *Class {
	c := &Class{p: p}
	c.waker, _ = p.(Waker)
	c.aimed, _ = p.(Untiler)
	c.cork, _ = p.(Corker)
	c.isStirred = c.stirred.Load
	return c
}

// Create returns a request that is not completed. WaitContext calls cancel when its context ends; cancel may be nil.
func (c *Class) Create(cancel func()) *Request {
	r := &Request{class: c, cancel: canceler(cancel)}
	r.waiters = r.first[:0]
	return r
}

// waitFor waits for all of reqs, or for one if one is set, and reports whether it got that. The error is Progress's.
func (c *Class) waitFor(timeout time.Duration, one bool, reqs ...*Request) (bool, error) {
	w := c.enter(timeout, one, reqs)
	if w == nil {
		return true, nil
	}
	defer c.leave(w, reqs) // deferred: a callback may panic, or end the goroutine
	return c.wait(w)
}

// waitContext waits for all of reqs as WaitContext says. The error is Progress's.
func (c *Class) waitContext(ctx context.Context, reqs ...*Request) error {
	if ok, err := c.waitWhile(ctx, reqs); ok || err != nil {
		return err
	}
	var canceled []*Request
	for _, r := range reqs {
		if r != nil && c.cancel(r) {
			canceled = append(canceled, r)
		}
	}
	_, err := c.waitFor(-1, false, canceled...)
	return err
}

// waitWhile waits for all of reqs or for the end of ctx.
func (c *Class) waitWhile(ctx context.Context, reqs []*Request) (bool, error) {
	w := c.enter(-1, false, reqs)
	if w == nil {
		return true, nil
	}
	defer c.leave(w, reqs)
	if ctx.Err() != nil {
		return false, nil
	}
	stop := context.AfterFunc(ctx, func() { c.interrupt(w) })
	defer func() { w.stray = !stop() }()
	return c.wait(w)
}

// cancel cancels r, once however many contexts end, and reports whether its callback is to be waited for.
func (c *Class) cancel(r *Request) bool {
	c.mu.Lock()
	canceler, first := r.cancel, !r.canceled
	if r.done || canceler == nil {
		c.mu.Unlock()
		return false
	}
	r.canceled = true
	c.mu.Unlock()
	if first {
		canceler.Cancel()
	}
	return true
}

// wait is what every waiting goroutine does: lead if nobody does, else sleep, then look again. It returns when w has
// what it needs (true), or its time is up, its context has ended or Progress has failed (false).
func (c *Class) wait(w *waiter) (ok bool, failed error) {
	polled := false
	more := c.run(w)
	for {
		now := c.p.Now()
		c.mu.Lock()
		if c.heir == w {
			c.heir = nil
		}
		c.expireLocked(now)
		switch late := w.expired && (polled || c.driver != nil); {
		case w.need <= 0:
			c.promoteLocked()
			c.mu.Unlock()
			return true, nil
		case late, w.ended, failed != nil && !more:
			c.promoteLocked()
			c.mu.Unlock()
			return false, failed
		case c.driver != nil:
			c.sleep(w)
		default:
			failed = c.drive(w, now)
			polled = true
			more = c.run(w)
		}
	}
}

// drive takes the lead for one Progress. It is called with c.mu held and releases it.
func (c *Class) drive(w *waiter, now time.Duration) error {
	c.driver = w
	c.until = never
	if len(c.deadlines) > 0 {
		c.until = c.deadlines[0].deadline
	}
	if c.waker == nil {
		c.until = min(c.until, now+slice)
	}
	if w.expired {
		c.until = now
	}
	timeout := c.until - now
	if c.until == never {
		timeout = -1
	}
	c.stirred.Store(false)
	crowd := c.roused > 1
	c.roused = 0
	c.mu.Unlock()

	if crowd {
		c.yield()
	}
	var err error
	if c.aimed != nil {
		err = c.aimed.ProgressUntil(timeout, c.isStirred)
	} else {
		err = c.p.Progress(timeout)
	}

	c.mu.Lock()
	c.driver = nil
	c.promoteLocked() // before callbacks run: they may take long
	c.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// yield lets those go on whose requests have been completed.
func (c *Class) yield() {
	if c.cork != nil && c.cork.Cork() {
		defer c.cork.Uncork()
	}
	runtime.Gosched()
}

// run runs callbacks until w need not wait or none is queued; it leaves the rest to others. It takes them one at a
// time, so that one that blocks holds back no other. It reports whether it gave up only to let bytes move.
func (c *Class) run(w *waiter) (more bool) {
	limit := batch
	if w.poll {
		limit = pollBatch
	}
	for range limit {
		if c.p.Trigger(1) == 0 {
			return false
		}
		c.mu.Lock()
		over := w.need <= 0 || w.ended
		c.mu.Unlock()
		if over || !w.poll && w.deadline != never && c.p.Now() >= w.deadline {
			return false
		}
	}
	return true
}

// sleep waits for a reason to look again. It is called with c.mu held and releases it.
func (c *Class) sleep(w *waiter) {
	w.bed = len(c.sleepers)
	c.sleepers = append(c.sleepers, w)
	wake := c.waker != nil && w.deadline < c.until
	if wake {
		c.stirred.Store(true)
	}
	c.mu.Unlock()
	if wake {
		c.waker.Wake()
	}
	<-w.token
}

// rouseLocked makes w look again if it sleeps. If w is the driver, the caller must call Wake after unlocking: that is
// what true says. Otherwise w is running callbacks and will look by itself.
func (c *Class) rouseLocked(w *waiter) (wake bool) {
	if w.bed < 0 {
		if w != c.driver || c.waker == nil {
			return false
		}
		c.stirred.Store(true)
		return true
	}
	last := len(c.sleepers) - 1
	moved := c.sleepers[last]
	c.sleepers[w.bed], moved.bed = moved, w.bed
	c.sleepers[last] = nil
	c.sleepers = c.sleepers[:last]
	w.bed = -1
	c.roused++
	w.token <- struct{}{} // never blocks: the slot is empty while w sleeps
	return false
}

// promoteLocked wakes one sleeper to take the lead, if the lead is free and nobody is on the way to it. It takes the
// last to fall asleep: it costs nothing to find.
func (c *Class) promoteLocked() {
	if last := len(c.sleepers) - 1; last >= 0 && c.driver == nil && c.heir == nil {
		c.heir = c.sleepers[last]
		c.rouseLocked(c.heir)
	}
}

// expireLocked tells all waiters whose deadline has passed. The driver needs no Wake: it comes back in time for all.
func (c *Class) expireLocked(now time.Duration) {
	for len(c.deadlines) > 0 && c.deadlines[0].deadline <= now {
		w := heap.Pop(&c.deadlines).(*waiter)
		w.expired = true
		c.rouseLocked(w)
	}
}

// interrupt tells w that its context has ended.
func (c *Class) interrupt(w *waiter) {
	c.mu.Lock()
	w.ended = true
	wake := c.rouseLocked(w)
	c.mu.Unlock()
	if wake {
		c.waker.Wake()
	}
}
