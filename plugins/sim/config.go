package sim

import (
	"errors"
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"io"
	"time"
)

// A Level is how closely the connections of a world resemble those of tcp.
type Level uint8

const (
	// LevelA carries whole frames: the bytes of one flush arrive in one piece.
	LevelA Level = iota
	// LevelB carries a stream of bytes: cut anywhere, one byte at a time if need be, through a
	// window and a bandwidth that let frames go out in parts.
	LevelB
)

// A Config configures a world. The zero value works: no faults, level A, seed 0.
type Config struct {
	// Seed decides everything that is left to chance.
	Seed uint64
	// Faults are the faults of the network and the nodes.
	Faults Faults
	// Level is how closely the connections resemble those of tcp.
	Level Level
	// Latency is the least time of every segment, dial and lookup, one way. Zero means 5 µs.
	Latency time.Duration
	// Bandwidth of each direction of a connection in bytes per second. Zero means without limit on
	// level A and 1 GB/s on level B.
	Bandwidth int64
	// Window bounds the bytes under way in each direction of a connection. Zero means 1 MiB on
	// level A; on level B it is drawn for each connection from 4 KiB to 256 KiB. On level A one
	// more frame than fits may be under way.
	Window int
	// PollCost is the virtual time of a Progress that does not wait, so that a program that
	// polls sees time pass. Zero means 1 µs.
	PollCost time.Duration
	// NoAssist leaves the bytes that arrive for a context in its receive window until a goroutine
	// drives that context. Otherwise everything that needs no callback is served at once, put and
	// get of peers and heartbeats among it.
	NoAssist bool
	// Paced lets an idle world wait in real time instead of skipping to the next timer. It is for
	// programs of several goroutines that are not coroutines of the world: no deadline passes while
	// one of them computes. A paced world cannot be replayed.
	Paced bool
	// CheckGoroutines makes a call panic that waits or spawns in the world while a coroutine runs, if
	// it comes from another goroutine: one that the program has started by go, or that runs a
	// function of context.AfterFunc. Such a program cannot be replayed. It is for the search of the
	// reason why a seed does not replay: a world with it is several times slower.
	CheckGoroutines bool
	// Choose, if not nil, decides in Run which step is next, instead of the seed and of time: it
	// gets the number of alternatives, more than one, and returns one of them, counted from 0. They
	// are the coroutines that can go on, then the messages in flight, in the order in which they
	// were sent, and then the coroutines that have not begun. A stream keeps its order, and timers
	// wait until nothing is in flight. A search over all return values is a search over every order
	// of events.
	Choose func(n int) int
	// Patience is how long, in real time, a coroutine may run without a wait in Progress or Sleep
	// before its name and stack are written to Log: it probably waits for another coroutine. Zero
	// means 5 s, negative means no limit.
	Patience time.Duration
	// Log is where to; nil means os.Stderr.
	Log io.Writer
	// Trace, if not nil, gets a line for everything that happens.
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
