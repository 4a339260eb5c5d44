package na

import (
	"context"
	"time"
)

// A Scheduler is a Domain that runs the goroutines of a program by itself, as coroutines, in a time of its own: a simulator.
// Its methods may be called from anywhere.
type Scheduler interface {
	// Scheduled reports whether the caller is such a coroutine. Its waits look at their conditions, and at their contexts, after
	// everything that happens, so nothing has to wake them.
	Scheduled() bool
	// Spawn runs f in a coroutine if the caller is one, else on a goroutine.
	Spawn(f func())
	// Until returns how much time is left, by Now, to the deadline of a context. The error matches ErrInvalid if that is a
	// deadline by another clock.
	Until(deadline time.Time) (time.Duration, error)
	// Time returns what such a deadline is when Now reads at.
	Time(at time.Duration) time.Time
	// WithTimeout is context.WithTimeout by Now.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

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
func (c *Context) WallTime(at time.Duration) time.Time {
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
