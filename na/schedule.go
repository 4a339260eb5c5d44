package na

import (
	"context"
	"time"
)

// Scheduled reports whether the caller is a coroutine of a simulator.
func (c *Context) Scheduled() bool { return c.sched != nil && c.sched.Scheduled() }

// Spawn runs f on a goroutine of its own, or in a coroutine of a simulator.
func (c *Context) Spawn(f func()) {
	if c.sched != nil {
		c.sched.Spawn(f)
		return
	}
	go f()
}

// Until returns how much time is left, by Now, until the deadline of a context.Context. The error
// matches ErrInvalid if the deadline is by another clock: a coroutine of a simulator must use
// virtual time.
func (c *Context) Until(deadline time.Time) (time.Duration, error) {
	if c.sched != nil {
		return c.sched.Until(deadline)
	}
	return time.Until(deadline), nil
}

// WallTime returns the wall clock's time, roughly, at which Now returns at: the deadline of a
// context.Context. In a simulator it is virtual time.
func (c upper) WallTime(at time.Duration) time.Time {
	if c.sched != nil {
		return c.sched.Time(at)
	}
	return time.Now().Add(at - c.Now())
}

// WithTimeout is context.WithTimeout, by the clock of Now: in a simulator by virtual time.
func (c *Context) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.sched != nil {
		return c.sched.WithTimeout(parent, d)
	}
	return context.WithTimeout(parent, d)
}
