package request

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// slice bounds one Progress of a Progressor that is no Waiter: it cannot be woken.
const slice = 100 * time.Millisecond

// A Class is the requests that are completed by callbacks of one Progressor.
type Class struct {
	waitFor func(ctx context.Context, timeout time.Duration, done func() bool) error
	wake    func()
	loop    *loop.Loop // nil if the Progressor is a Waiter

	mu   sync.Mutex // guards all requests of the class. It is never held in a call out of the package.
	idle []*group
}

// NewClass returns a class whose waiters drive p. If p is a Waiter, it is waited on by its WaitFor.
func NewClass(p Progressor) *Class {
	if w, ok := p.(Waiter); ok {
		return &Class{waitFor: w.WaitFor, wake: w.Wake}
	}
	l := loop.New(plain{p}, loop.HandOn)
	return &Class{waitFor: l.Wait, wake: l.Wake, loop: l}
}

// plain is a Progressor that cannot be woken, as package loop drives it.
type plain struct{ Progressor }

// Poll implements loop.Driver.
func (p plain) Poll(_ *loop.Waiter, until time.Duration) error {
	timeout := slice
	if until != loop.Never {
		timeout = min(max(until-p.Now(), 0), slice)
	}
	return p.Progress(timeout)
}

// Run implements loop.Driver.
func (p plain) Run(w *loop.Waiter, max int) (ran int) {
	for ran < max && p.Trigger(1) > 0 {
		if ran++; w.Stops() {
			break
		}
	}
	return ran
}

func (p plain) Queued() int { return 0 }
func (p plain) Stir()       {}
func (p plain) Hold() bool  { return false }
func (p plain) Unhold()     {}
func (p plain) Freed()      {}
func (p plain) Flush()      {}

// Create returns a request that is not completed. WaitContext calls cancel when its context ends; cancel may be nil.
func (c *Class) Create(cancel func()) *Request {
	r := &Request{class: c, cancel: canceler(cancel)}
	return r
}

// wait waits for all of reqs, or for one if one is set, and reports whether it got that. The error is Progress's, or the cause
// of ctx.
func (c *Class) wait(ctx context.Context, timeout time.Duration, one bool, reqs ...*Request) (bool, error) {
	g := c.enter(one, reqs)
	defer c.leave(g) // deferred: a callback may panic, or end the goroutine
	if g.isDone() {
		return true, nil
	}
	err := c.waitFor(ctx, timeout, g.isDone)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return g.isDone(), err
}

// A group is the requests that one Wait waits for. The class keeps a few for reuse, so that a Wait allocates nothing.
type group struct {
	reqs   []*Request
	one    bool
	isDone func() bool // done, bound once
}

// maxIdle bounds the groups kept for reuse.
const maxIdle = 256

func (g *group) done() bool {
	for _, r := range g.reqs {
		if r.done.Load() == g.one {
			return g.one
		}
	}
	return !g.one || len(g.reqs) == 0
}

// enter counts a wait that has not returned.
func (c *Class) enter(one bool, reqs []*Request) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	var g *group
	if last := len(c.idle) - 1; last >= 0 {
		g, c.idle = c.idle[last], c.idle[:last]
	} else {
		g = &group{}
		g.isDone = g.done
	}
	g.one = one
	for _, r := range reqs {
		if r != nil {
			r.waits++
			g.reqs = append(g.reqs, r)
		}
	}
	return g
}

func (c *Class) leave(g *group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range g.reqs {
		r.waits--
		g.reqs[i] = nil
	}
	g.reqs = g.reqs[:0]
	if len(c.idle) < maxIdle {
		c.idle = append(c.idle, g)
	}
}

// waitContext waits for all of reqs as WaitContext says. The error is Progress's.
func (c *Class) waitContext(ctx context.Context, reqs ...*Request) error {
	ok, err := c.wait(ctx, -1, false, reqs...)
	if ok || ctx.Err() == nil {
		return err
	}
	var canceled []*Request
	for _, r := range reqs {
		if r != nil && c.cancel(r) {
			canceled = append(canceled, r)
		}
	}
	_, err = c.wait(context.Background(), -1, false, canceled...)
	return err
}

// cancel cancels r, once however many contexts end, and reports whether its callback is to be waited for.
func (c *Class) cancel(r *Request) bool {
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
