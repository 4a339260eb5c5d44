package sim

import (
	"errors"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"io"
	"time"
)

// A Level specifies how closely a world's connections resemble TCP connections.
type Level uint8

const (
	// LevelA carries whole frames. The bytes of one flush arrive in one piece.
	LevelA Level = iota
	// LevelB carries a byte stream. The stream may be split anywhere, even into single bytes, and a
	// frame may be sent in parts because of the connection's window and bandwidth.
	LevelB
)

// A Config configures a world. The zero value is valid and means no faults, level A, and seed 0.
type Config struct {
	// Seed determines all random choices.
	Seed uint64
	// Faults specifies the faults of the network and the nodes.
	Faults Faults
	// Level specifies how closely connections resemble TCP connections.
	Level Level
	// Latency is the minimum one-way delay of each segment, dial and lookup. Zero means 5 µs.
	Latency time.Duration
	// Bandwidth is the bandwidth of each direction of a connection in bytes per second. Zero means
	// unlimited on level A and 1 GB/s on level B.
	Bandwidth int64
	// Window is the maximum number of bytes in flight in each direction of a connection. Zero means
	// 1 MiB on level A. On level B, zero means that the window of each connection is drawn from the
	// range 4 KiB to 256 KiB. On level A, one frame may exceed the window.
	Window int
	// PollCost is the virtual time that a nonblocking Progress takes, so that time advances for a
	// program that polls. Zero means 1 µs.
	PollCost time.Duration
	// NoAssist leaves bytes that arrive for a context in its receive window until a goroutine
	// drives that context. Otherwise everything that requires no callback is served immediately,
	// including puts and gets of peers and heartbeats.
	NoAssist bool
	// Paced makes an idle world wait in real time instead of skipping to the next timer. It is for
	// programs with several goroutines that are not coroutines of the world, and ensures that no
	// deadline passes while one of them computes. A paced world cannot be replayed.
	Paced bool
	// CheckGoroutines makes a call that waits or spawns in the world panic if a coroutine is
	// running and the call comes from another goroutine: one started with a go statement, or one
	// that runs a function passed to context.AfterFunc. A program that makes such calls cannot be
	// replayed. CheckGoroutines helps to find out why a seed does not replay, and makes a world
	// several times slower.
	CheckGoroutines bool
	// Choose, if not nil, selects the next step in Run, in place of the seed and the event times.
	// It is called with the number of alternatives, which is at least 2, and returns the index of
	// one of them. The alternatives are, in order, the coroutines that can continue, the messages
	// in flight in the order in which they were sent, and the coroutines that have not started. A
	// stream preserves its order, and timers wait until nothing is in flight. A search over all
	// return values is a search over all orders of events.
	Choose func(n int) int
	// Patience is how long, in real time, a coroutine may run without waiting in Progress or Sleep
	// before its name and stack are written to Log. Such a coroutine is probably blocked on another
	// coroutine. Zero means 5 s. A negative value means no limit.
	Patience time.Duration
	// Log receives the reports described at Patience. Nil means os.Stderr.
	Log io.Writer
	// Trace, if not nil, receives a line for each event.
	Trace io.Writer
}

func (c *Config) validate() error {
	errs := []error{c.Faults.validate()}
	bad := func(field string, v any, want string) {
		errs = append(errs, fmt.Errorf("sim: config: %s is %v, want %s: %w", field, v, want, codes.ErrInvalid))
	}
	if c.Level > LevelB {
		bad("Level", c.Level, "LevelA or LevelB")
	}
	if c.Latency < 0 || c.Latency > time.Hour {
		bad("Latency", c.Latency, "up to 1h, or 0 for 5µs")
	}
	if c.Bandwidth < 0 {
		bad("Bandwidth", c.Bandwidth, "bytes per second, or 0 for the default")
	}
	if c.Window < 0 || c.Window > 1<<30 {
		bad("Window", c.Window, "up to 1 GiB, or 0 for the default")
	}
	if c.PollCost < 0 || c.PollCost > time.Second {
		bad("PollCost", c.PollCost, "up to 1s, or 0 for 1µs")
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Latency == 0 {
		c.Latency = 5 * time.Microsecond
	}
	if c.PollCost == 0 {
		c.PollCost = time.Microsecond
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	if c.Bandwidth == 0 && c.Level == LevelB {
		c.Bandwidth = 1e9
	}
	if c.Window == 0 && c.Level == LevelA {
		c.Window = 1 << 20
	}
	return c
}
