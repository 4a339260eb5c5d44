package simhook

import (
	"context"
	"time"
)

// A Clock is a plugin that has its own clock and random source. Its methods may be called by any
// goroutine.
type Clock interface {
	// Now returns the current time. It is monotonic and never zero.
	Now() time.Duration
	// Rand fills b with random bytes, either from a secure source or derived from a seed.
	Rand(b []byte)
	// Driven reports whether each carrier is a Driver. If so, contexts have no poller and no
	// goroutine of the library.
	Driven() bool
}

// A Scheduler is implemented by the Names of a network that runs a program's goroutines as
// coroutines in virtual time. Its methods may be called by any goroutine.
type Scheduler interface {
	// Scheduled reports whether the caller is such a coroutine. A coroutine's waits recheck their
	// conditions and contexts after every event, so they need no wake-up.
	Scheduled() bool
	// Spawn runs f in a new coroutine if the caller is a coroutine, and otherwise in a new
	// goroutine.
	Spawn(f func())
	// Until returns the time left until a context's deadline according to Now. The error matches
	// codes.ErrInvalid if the deadline belongs to a different clock.
	Until(deadline time.Time) (time.Duration, error)
	// Time returns the deadline that corresponds to Now's time at.
	Time(at time.Duration) time.Time
	// WithTimeout is like context.WithTimeout, but uses the clock of Now.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// A Driver is a carrier that waits in place of the poller.
type Driver interface {
	// Drive advances time until ready returns true or the timeout expires, and reports whether
	// ready returned true. A negative timeout means no limit.
	Drive(timeout time.Duration, ready func() bool) bool
	// Wake makes Drive call ready again. It may be called by any goroutine.
	Wake()
	// FlushSoon ensures that frames being held back are sent within milliseconds, even if no
	// goroutine drives.
	FlushSoon()
}

// Faults decides which operations fail when started. A context's carrier is consulted for each
// operation that needs the network, and a network's Names for each registration of memory.
type Faults interface {
	// FailOp counts an operation being started and returns the error with which it fails, or nil.
	FailOp() error
}

// A Core is a carrier.Core with the additional methods used by a simulator.
type Core interface {
	// Poll does pending work and returns the time at which to call it again, or 0 for never.
	Poll(now time.Duration) (next time.Duration)
	// Next returns the last result of Poll.
	Next() time.Duration
	// Held reports whether frames are being held back for batching.
	Held() bool
	// Closed reports whether the context is closed and all its resources are released.
	Closed() bool
}
