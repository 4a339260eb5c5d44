package na

import (
	"context"
	"time"
)

// Scheduled reports whether the caller is a coroutine of a simulator.
func (c *Context) Scheduled() bool { return c.sched != nil && c.sched.Scheduled() }

// Spawn runs f in a new goroutine, or in a new coroutine in a simulator.
func (c *Context) Spawn(f func()) {
	if c.sched != nil {
		c.sched.Spawn(f)
		return
	}
	go f()
}

// Until returns the duration until deadline, according to Now's clock. The error matches ErrInvalid
// if the deadline belongs to another clock: a coroutine of a simulator must use virtual time.
func (c *Context) Until(deadline time.Time) (time.Duration, error) {
	if c.sched != nil {
		return c.sched.Until(deadline)
	}
	return time.Until(deadline), nil
}

// WallTime returns the approximate wall-clock time at which Now returns at, for use as the deadline
// of a context.Context. In a simulator it returns virtual time.
func (c upper) WallTime(at time.Duration) time.Time {
	if c.sched != nil {
		return c.sched.Time(at)
	}
	return time.Now().Add(at - c.Now())
}

// WithTimeout is like context.WithTimeout but uses Now's clock, which is virtual time in a
// simulator.
func (c *Context) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.sched != nil {
		return c.sched.WithTimeout(parent, d)
	}
	return context.WithTimeout(parent, d)
}
