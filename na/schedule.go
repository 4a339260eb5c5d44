package na

import (
	"context"
	"time"
)

// Scheduled reports whether the caller runs in a coroutine of a simulator.
func (c *Context) Scheduled() bool { return c.sched != nil && c.sched.Scheduled() }

// Spawn runs f in a new goroutine or, in a simulator, in a new coroutine. It does not wait for f.
func (c *Context) Spawn(f func()) {
	if c.sched != nil {
		c.sched.Spawn(f)
		return
	}
	go f()
}

// Until returns the duration until deadline, measured by the clock that Now uses. In a simulator,
// deadline must be in virtual time. Otherwise Until returns an error that matches ErrInvalid.
func (c *Context) Until(deadline time.Time) (time.Duration, error) {
	if c.sched != nil {
		return c.sched.Until(deadline)
	}
	return time.Until(deadline), nil
}

// WallTime converts at, a time as returned by Now, to an approximate wall-clock time, for use as
// the deadline of a context.Context. In a simulator, the result is virtual time.
func (c upper) WallTime(at time.Duration) time.Time {
	if c.sched != nil {
		return c.sched.Time(at)
	}
	return time.Now().Add(at - c.Now())
}

// WithTimeout is like context.WithTimeout, but in a simulator the timeout elapses in virtual time.
func (c *Context) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.sched != nil {
		return c.sched.WithTimeout(parent, d)
	}
	return context.WithTimeout(parent, d)
}
