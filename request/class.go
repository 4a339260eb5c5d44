package request

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// maxSlice is the maximum timeout of one call to Progress of a Progressor that is not a Waiter. It
// is limited because such a call cannot be interrupted.
const maxSlice = 100 * time.Millisecond

// A Class is a set of requests that are completed by callbacks of one Progressor.
type Class struct {
	waitFor func(ctx context.Context, timeout time.Duration, done func() bool) error
	wake    func()
	loop    *loop.Loop // nil if the Progressor is a Waiter

	// mu guards freeGroups and all requests of the class. It is never held during a call out of the
	// package.
	mu         sync.Mutex
	freeGroups []*waitGroup
}

// NewClass returns a class whose waiting goroutines drive p. If p is a Waiter, they wait in its
// WaitFor method.
func NewClass(p Progressor) *Class {
	if w, ok := p.(Waiter); ok {
		return &Class{waitFor: w.WaitFor, wake: w.Wake}
	}
	l := loop.New(progressorDriver{p}, loop.HandOn)
	return &Class{waitFor: l.Wait, wake: l.Wake, loop: l}
}

// progressorDriver implements loop.Driver for a Progressor that is not a Waiter. Such a Progressor
// can neither be woken nor batch its output, so the methods for these purposes do nothing.
type progressorDriver struct{ Progressor }

// Poll implements loop.Driver.
func (p progressorDriver) Poll(w *loop.Waiter, _, until time.Duration) (read time.Duration, err error) {
	if w.Stirred() { // another goroutine has run the callback that w waits for
		return -1, nil
	}
	timeout := maxSlice
	if until != loop.Never {
		timeout = min(max(until-p.Now(), 0), maxSlice)
	}
	return -1, p.Progress(timeout)
}

// Run implements loop.Driver.
func (p progressorDriver) Run(w *loop.Waiter, max int) (ran int) {
	for ran < max && p.Trigger(1) > 0 {
		ran++
		if w.Stops() {
			break
		}
	}
	return ran
}

func (p progressorDriver) Queued() int { return 0 }
func (p progressorDriver) Stir()       {}
func (p progressorDriver) Hold() bool  { return false }
func (p progressorDriver) Unhold()     {}
func (p progressorDriver) Freed()      {}
func (p progressorDriver) Flush()      {}

// Create returns a request that is not completed. WaitContext calls cancel when its context is
// done. cancel may be nil.
func (c *Class) Create(cancel func()) *Request {
	r := &Request{class: c, cancel: toCanceler(cancel)}
	return r
}

// wait waits for all of reqs or, if first is set, for the first one to complete. It reports
// whether the condition is met. The error is nil after a timeout. Otherwise it is the one returned
// by Progress, or the cause of ctx.
func (c *Class) wait(ctx context.Context, timeout time.Duration, first bool, reqs ...*Request) (bool, error) {
	g := c.acquireGroup(first, reqs)
	defer c.releaseGroup(g) // deferred because a callback may panic or call runtime.Goexit
	if g.isDone() {
		return true, nil
	}
	err := c.waitFor(ctx, timeout, g.isDone)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return g.isDone(), err
}

// A waitGroup holds the requests that one call to Wait, or to one of its variants, waits for. The
// class reuses waitGroups, so that a Wait does not allocate.
type waitGroup struct {
	reqs   []*Request
	first  bool        // wait for the first request to complete, instead of all
	isDone func() bool // checkDone as a method value, created once
}

// maxFreeGroups is the maximum number of waitGroups that a class keeps for reuse.
const maxFreeGroups = 256

// checkDone reports whether the wait can return.
func (g *waitGroup) checkDone() bool {
	for _, r := range g.reqs {
		if r.done.Load() == g.first {
			return g.first
		}
	}
	return !g.first || len(g.reqs) == 0
}

// acquireGroup returns a waitGroup for reqs, and increments the number of waiters of each request.
// The caller must call releaseGroup.
func (c *Class) acquireGroup(first bool, reqs []*Request) *waitGroup {
	c.mu.Lock()
	defer c.mu.Unlock()
	var g *waitGroup
	if last := len(c.freeGroups) - 1; last >= 0 {
		g, c.freeGroups = c.freeGroups[last], c.freeGroups[:last]
	} else {
		g = &waitGroup{}
		g.isDone = g.checkDone
	}
	g.first = first
	for _, r := range reqs {
		if r != nil {
			r.waiters++
			g.reqs = append(g.reqs, r)
		}
	}
	return g
}

// releaseGroup decrements each request's number of waiters, and keeps g for reuse.
func (c *Class) releaseGroup(g *waitGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range g.reqs {
		r.waiters--
		g.reqs[i] = nil
	}
	g.reqs = g.reqs[:0]
	if len(c.freeGroups) < maxFreeGroups {
		c.freeGroups = append(c.freeGroups, g)
	}
}

// waitContext waits for all of reqs and cancels them when ctx is done, as described for
// WaitContext. It returns an error only if Progress fails.
func (c *Class) waitContext(ctx context.Context, reqs ...*Request) error {
	ok, err := c.wait(ctx, -1, false, reqs...)
	if ok || ctx.Err() == nil {
		return err
	}
	var canceled []*Request
	for _, r := range reqs {
		if r != nil && c.cancelRequest(r) {
			canceled = append(canceled, r)
		}
	}
	_, err = c.wait(context.Background(), -1, false, canceled...)
	return err
}

// cancelRequest calls r's cancel function, at most once per operation. It reports whether r's
// callback is still pending, which is the case if r has a cancel function and is not completed.
func (c *Class) cancelRequest(r *Request) bool {
	c.mu.Lock()
	canceler, first := r.cancel, !r.canceled
	if r.done.Load() || canceler == nil {
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
