package simhook

import (
	"context"
	"time"
)

// A Clock is a plugin with a time and a randomness of its own. Its methods may be called from anywhere.
type Clock interface {
	// Now is monotonic and never zero.
	Now() time.Duration
	// Rand fills b with bytes that a peer cannot guess, or that follow from a seed.
	Rand(b []byte)
	// Driven says that each carrier is a Driver: contexts have no poller and no goroutine of the library.
	Driven() bool
}

// A Scheduler is the names of a network that runs the goroutines of a program by itself, as coroutines, in a time of its own.
// Its methods may be called from anywhere.
type Scheduler interface {
	// Scheduled reports whether the caller is such a coroutine. Its waits look at their conditions, and at their contexts, after
	// everything that happens, so nothing has to wake them.
	Scheduled() bool
	// Spawn runs f in a coroutine if the caller is one, else on a goroutine.
	Spawn(f func())
	// Until returns how much time is left, by Now, to the deadline of a context. The error matches codes.ErrInvalid if that is a
	// deadline by another clock.
	Until(deadline time.Time) (time.Duration, error)
	// Time returns what such a deadline is when Now reads at.
	Time(at time.Duration) time.Time
	// WithTimeout is context.WithTimeout by Now.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// A Driver is a carrier that waits in place of the poller.
type Driver interface {
	// Drive lets time pass until ready reports true or the timeout is over (negative: no limit), and reports whether ready did.
	Drive(timeout time.Duration, ready func() bool) bool
	// Wake has Drive look at ready again. It may be called from anywhere.
	Wake()
	// FlushSoon has frames that are held back leave within milliseconds although nobody drives.
	FlushSoon()
}

// Faults decide which starts of operations fail. The carrier of a context is asked for each start that needs the network, the names of a network for
// each registration of memory.
type Faults interface {
	// FailOp counts a start and returns why it fails, or nil.
	FailOp() error
}

// A Core is a carrier.Core as a simulator uses it.
type Core interface {
	// Poll does what is due by the clock, and returns when there is something to do again; 0 for never.
	Poll(now time.Duration) (next time.Duration)
	// Next is what Poll returned, of now.
	Next() time.Duration
	// Held reports whether frames are held back to leave together.
	Held() bool
	// Closed reports whether the context has been closed and has given everything back.
	Closed() bool
}
