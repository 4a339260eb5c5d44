package na

import (
	"context"
	"time"
)

// Scheduled reports whether the caller is a coroutine of a simulator.
func (c *Context) Scheduled() bool { return c.sched != nil && c.sched.Scheduled() }

// Spawn runs f on a goroutine of its own, or, on a simulator, in a coroutine.
func (c *Context) Spawn(f func()) {
	if c.sched != nil {
		c.sched.Spawn(f)
		return
	}
	go f()
}

// Until returns how much time is left, by Now, to the deadline of a context. The error matches ErrInvalid if that is by another
// clock: a coroutine of a simulator goes by virtual time.
func (c *Context) Until(deadline time.Time) (time.Duration, error) {
	if c.sched != nil {
		return c.sched.Until(deadline)
	}
	return time.Until(deadline), nil
}

// WallTime returns what the clocks on the wall will show, roughly, when Now reads at: the deadline of a context. A coroutine of a
// simulator gets virtual time.
func (c upper) WallTime(at time.Duration) time.Time {
	if c.sched != nil {
		return c.sched.Time(at)
	}
	return time.Now().Add(at - c.Now())
}

// WithTimeout is context.WithTimeout by Now: in virtual time on a simulator.
func (c *Context) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.sched != nil {
		return c.sched.WithTimeout(parent, d)
	}
	return context.WithTimeout(parent, d)
}
