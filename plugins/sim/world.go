package sim

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// A Level says how faithful the connections of a world are.
type Level uint8

const (
	// LevelA carries whole frames: what one flush has arrives in one piece.
	LevelA Level = iota
	// LevelB carries a stream of bytes: cut anywhere, one byte at a time if need be, through a window and a bandwidth
	// that let frames go out in parts.
	LevelB
)

// A Config says what a world is like. The zero value works: no faults, level A, seed 0.
type Config struct {
	// Seed decides everything that is left to chance.
	Seed uint64
	// Faults is what goes wrong.
	Faults Faults
	// Level says how faithful the connections are.
	Level Level
	// Latency is what every segment, dial and lookup takes one way, at least. Zero means 5 µs.
	Latency time.Duration
	// Bandwidth of each direction of a connection in bytes per second. Zero means without limit on level A and 1 GB/s
	// on level B.
	Bandwidth int64
	// Window bounds the bytes under way in each direction of a connection. Zero means 1 MiB on level A; on level B it is
	// drawn for each connection from 4 KiB to 256 KiB. On level A one more frame than fits may be under way.
	Window int
	// PollCost is the virtual time that a Progress takes that does not wait, so that a program that polls sees time
	// pass. Zero means 1 µs.
	PollCost time.Duration
	// NoAssist leaves the bytes that arrive for a context in its receive window until somebody drives that context.
	// Otherwise everything that needs no callback is served at once, put and get of peers and heartbeats among it.
	NoAssist bool
	// Paced lets an idle world wait in real time instead of skipping to the next timer. It is for programs of several
	// goroutines that are not coroutines of the world: nobody's deadline passes while another is computing. Nothing of
	// what happens then can be replayed.
	Paced bool
	// Trace, if not nil, gets a line for everything that happens.
	Trace io.Writer
}

func (c *Config) validate() error {
	errs := []error{c.Faults.validate()}
	bad := func(field string, v any, want string) {
		errs = append(errs, fmt.Errorf("sim: config: %s is %v, want %s: %w", field, v, want, na.ErrInvalid))
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
	if c.Bandwidth == 0 && c.Level == LevelB {
		c.Bandwidth = 1e9
	}
	if c.Window == 0 && c.Level == LevelA {
		c.Window = 1 << 20
	}
	return c
}

// Stats counts what happened in a world.
type Stats struct {
	Events     uint64 // of any kind
	Segments   uint64 // delivered
	Bytes      uint64 // in them
	Cuts       uint64 // segments that ended inside what was offered
	Full       uint64 // times that a sender met a full window
	Dials      uint64
	Connects   uint64
	Refusals   uint64
	Lookups    uint64
	Resumes    uint64 // of coroutines
	Dropped    uint64 // segments that met nobody
	Resets     uint64 // faults, from here on
	Corrupted  uint64
	Clogs      uint64
	Pauses     uint64
	Partitions uint64
	Crashes    uint64
}

// A World is a network of nodes with one virtual clock. Its methods may be called from any goroutine, callbacks
// included, but for Run.
//
// Whoever has the turn makes things happen, one event at a time; everybody else leaves what he wants in todo. mu is a
// leaf: it is held for a few instructions and never while anything of another package is called.
type World struct {
	cfg Config
	now atomic.Int64

	traceMu sync.Mutex // guards the fields below
	hash    uint64
	entries uint64
	recent  []traceEntry

	mu       sync.Mutex   // guards the fields below
	cond     sync.Cond    // the turn is free, the clock has moved, or something is in todo
	waiting  atomic.Int32 // who sleeps on cond
	takers   int          // those of them who want nothing but the turn
	turn     bool
	asked    atomic.Bool // todo or poked is not empty
	todo     []errand
	spare    []errand // the other half of todo
	rand     dice     // for programs: incarnations, tokens
	waiters  []*waiter
	idleFrom time.Time // since when an idle paced world has waited; zero when it does not
	poked    []*port   // ports whose Wake was called
	poking   []*port   // the other half of poked

	// What follows belongs to the turn.
	faults Faults
	odds   odds
	chance dice // faults and delays
	order  dice // which coroutine is next
	events heap
	stats  Stats
	named  map[string]*instance // who listens
	nodes  map[string]*Node
	node   []*Node          // in the order of their making
	lost   map[string]*Node // whose names went with a crash
	names  int              // nodes of classes without a name so far
	conns  uint64
	open   []*conn // in the order of their making
	held   []*event
	parted map[[2]*Node]bool
	iov    [][]byte
	bufs   [bufClasses][][]byte
	sched
}

// NewWorld returns a world in which nothing has happened. It panics when cfg has a field out of bounds: a mistake of
// the test, not of the tested.
func NewWorld(cfg Config) *World {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	w := &World{
		cfg: cfg.withDefaults(), faults: cfg.Faults, odds: cfg.Faults.odds(), hash: mix(0, 1),
		rand: newDice(cfg.Seed, 1), chance: newDice(cfg.Seed, 2), order: newDice(cfg.Seed, 3),
		recent: make([]traceEntry, recent),
		named:  map[string]*instance{}, nodes: map[string]*Node{}, parted: map[[2]*Node]bool{}, lost: map[string]*Node{},
	}
	w.cond.L = &w.mu
	return w
}

// Seed returns the seed, to be printed when a test fails.
func (w *World) Seed() uint64 { return w.cfg.Seed }

// Now reads the virtual clock.
func (w *World) Now() time.Duration { return time.Duration(w.now.Load()) }

// Rand fills b from the seed. What is drawn here does not change which faults happen.
func (w *World) Rand(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) > 0 {
		v := w.rand.pcg.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0] = byte(v)
			v >>= 8
			b = b[1:]
		}
	}
}

// Stats returns the counters.
func (w *World) Stats() Stats {
	w.take()
	defer w.give()
	return w.stats
}

// SetFaults replaces what goes wrong from now on; what has begun stays until it is over. It panics when f is out of
// bounds.
func (w *World) SetFaults(f Faults) {
	if err := f.validate(); err != nil {
		panic(err)
	}
	w.take()
	defer w.give()
	w.faults, w.odds = f, f.odds()
}

// take waits for the turn.
func (w *World) take() {
	w.mu.Lock()
	w.takeLocked()
	w.mu.Unlock()
}

func (w *World) takeLocked() {
	for w.turn {
		w.takers++
		w.sleepLocked()
		w.takers--
	}
	w.turn = true
	w.creditLocked()
}

// sleepLocked waits until somebody broadcasts.
func (w *World) sleepLocked() {
	w.waiting.Add(1)
	w.cond.Wait()
	w.waiting.Add(-1)
}

// give runs the errands that came in meanwhile and gives the turn up.
func (w *World) give() {
	w.settle()
	w.mu.Lock()
	w.giveLocked()
}

// giveLocked is give with the lock held, which it returns.
func (w *World) giveLocked() {
	for w.asked.Load() {
		w.mu.Unlock()
		w.settle()
		w.mu.Lock()
	}
	w.turn = false
	if w.waiting.Load() > 0 { // sleepers look at what has been set
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// An errand is what somebody without the turn wants done.
type errand struct {
	kind errandKind
	link *engine.Link
	end  *end
	look *lookup
	port *port
	last []byte
}

type errandKind uint8

const (
	errandFlush errandKind = iota
	errandDial
	errandCut
	errandLookup
	errandRelease
)

// ask leaves an errand, and runs it at once if nobody has the turn and now is set.
func (w *World) ask(e errand, now bool) {
	w.mu.Lock()
	w.todo = append(w.todo, e)
	w.asked.Store(true)
	switch {
	case w.turn:
	case now:
		w.takeLocked()
		w.giveLocked()
		return
	case w.waiting.Load() > 0:
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// settle runs the errands and looks at the ports that were poked. The turn is held.
func (w *World) settle() {
	for w.asked.Load() {
		w.mu.Lock()
		todo, poked := w.todo, w.poked
		w.asked.Store(false)
		w.todo, w.spare = w.spare[:0], nil
		w.poked, w.poking = w.poking[:0], nil
		w.mu.Unlock()
		for i := range todo {
			w.run(&todo[i])
		}
		clear(todo)
		for i, p := range poked {
			p.poked.Store(false)
			p.look()
			poked[i] = nil
		}
		w.mu.Lock()
		w.spare, w.poking = todo[:0], poked[:0]
		w.mu.Unlock()
	}
}

// step makes the next event happen, unless that is after limit.
func (w *World) step(limit time.Duration) bool {
	ev := w.events.min()
	if ev == nil || ev.at > limit {
		return false
	}
	w.events.unset(ev)
	if int64(ev.at) > w.now.Load() {
		w.now.Store(int64(ev.at))
	}
	w.stats.Events++
	ev.act.fire(ev)
	return true
}

// after is the time d from now.
func (w *World) after(d time.Duration) time.Duration { return time.Duration(w.now.Load()) + d }

// delay draws how long a segment, dial or lookup takes.
func (w *World) delay() time.Duration { return w.cfg.Latency + w.chance.exp(w.faults.Jitter) }

// forever is later than anything.
const forever = time.Duration(1<<63 - 1)

// deadline is when a wait of d that begins now is over.
func (w *World) deadline(d time.Duration) time.Duration {
	switch {
	case d < 0:
		return forever
	case d == 0:
		d = w.cfg.PollCost
	}
	if at := w.after(d); at > 0 {
		return at
	}
	return forever
}
