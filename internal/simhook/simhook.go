package simhook

import (
	"context"
	"time"
)

// A Clock is a plugin with a clock and a random source of its own. Its methods may be called from
// any goroutine.
type Clock interface {
	// Now returns the time. It is monotonic and never zero.
	Now() time.Duration
	// Rand fills b with random bytes, from a secure source or from a seed.
	Rand(b []byte)
	// Driven reports whether each carrier is a Driver: contexts then have no poller and no
	// goroutine of the library.
	Driven() bool
}

// A Scheduler is the Names of a network that runs the goroutines of a program as coroutines, in
// virtual time. Its methods may be called from any goroutine.
type Scheduler interface {
	// Scheduled reports whether the caller is such a coroutine. Its waits check their conditions,
	// and their contexts, after every event, so they need no wake-up.
	Scheduled() bool
	// Spawn runs f in a coroutine if the caller is one, else on a goroutine.
	Spawn(f func())
	// Until returns how much time is left, by Now, until the deadline of a context. The error
	// matches codes.ErrInvalid if the deadline is one of another clock.
	Until(deadline time.Time) (time.Duration, error)
	// Time returns the deadline that corresponds to the time at of Now.
	Time(at time.Duration) time.Time
	// WithTimeout is context.WithTimeout with the clock Now.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// A Driver is a carrier that waits in place of the poller.
type Driver interface {
	// Drive advances time until ready returns true or the timeout has passed (negative: no limit),
	// and reports whether ready did.
	Drive(timeout time.Duration, ready func() bool) bool
	// Wake makes Drive call ready again. It may be called from any goroutine.
	Wake()
	// FlushSoon makes frames that are held back leave within milliseconds even if no goroutine
	// drives.
	FlushSoon()
}

// Faults decides which operations fail at their start. The carrier of a context is called for each
// start that needs the network, the Names of a network for each registration of memory.
type Faults interface {
	// FailOp counts a start and returns why it fails, or nil.
	FailOp() error
}

// A Core is a carrier.Core with the additional methods that a simulator uses.
type Core interface {
	// Poll runs pending work, and returns the time of its next call; 0 for never.
	Poll(now time.Duration) (next time.Duration)
	// Next returns the last result of Poll.
	Next() time.Duration
	// Held reports whether frames are held back to be batched.
	Held() bool
	// Closed reports whether the context has been closed and all resources are freed.
	Closed() bool
}
