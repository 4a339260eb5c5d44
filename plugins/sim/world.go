package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/framing"
)

// A World is a network of nodes with one virtual clock. Its methods may be called from any goroutine, callbacks
// included, but for Run.
//
// Whoever has the turn makes things happen, one event at a time; everybody else leaves what is to be done in todo. mu is a
// leaf: it is held for a few instructions and never while anything of another package is called.
type World struct {
	cfg Config
	now atomic.Int64

	traceMu sync.Mutex // guards the fields below
	hash    uint64
	entries uint64
	recent  []traceEntry

	again  atomic.Uint64 // Faults.Again as rates
	failed atomic.Uint64 // posts

	mu       sync.Mutex   // guards the fields below
	cond     sync.Cond    // the turn is free, the clock has moved, or something is in todo
	waiting  atomic.Int32 // who sleeps on cond
	takers   int          // those of them who want nothing but the turn
	turn     bool
	asked    atomic.Bool // todo is not empty
	todo     []func()
	spare    []func() // the other half of todo
	rand     rng      // for programs: incarnations, tokens
	posting  rng      // which post fails
	waiters  []*waiter
	idleFrom time.Time // since when an idle paced world has waited; zero when it does not

	// What follows belongs to the turn.
	faults  Faults
	rates   rates
	chance  rng // faults and delays
	order   rng // which coroutine is next
	events  events
	stats   Stats
	named   map[string]*instance // who listens
	nodes   []*Node              // in the order of their making
	lost    map[string]*Node     // whose names went with a crash
	names   int                  // nodes of classes without a name so far
	conns   uint64
	open    []*conn  // in the order of their making
	due     []func() // hooks that Run is to call
	counted []*hook  // hooks that wait for a number of events
	held    []*event
	parted  map[[2]*Node]*parting
	iov     [][]byte
	bufs    [bufClasses][][]byte
	framing framing.Buffers // of the connections
	sched
	watchdog watchdog
}

// NewWorld returns a world in which nothing has happened. It panics when cfg has a field out of bounds: a mistake of
// the test, not of the tested.
func NewWorld(cfg Config) *World {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	w := &World{
		cfg: cfg.withDefaults(), faults: cfg.Faults, rates: cfg.Faults.rates(), hash: mix(0, 1),
		rand: newRNG(cfg.Seed, 1), chance: newRNG(cfg.Seed, 2), order: newRNG(cfg.Seed, 3), posting: newRNG(cfg.Seed, 4),
		recent: make([]traceEntry, recent),
		named:  map[string]*instance{}, parted: map[[2]*Node]*parting{}, lost: map[string]*Node{},
	}
	w.cond.L = &w.mu
	w.again.Store(w.rates.again)
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
	for i, v := 0, uint64(0); i < len(b); i, v = i+1, v>>8 {
		if i%8 == 0 {
			v = w.rand.pcg.Uint64()
		}
		b[i] = byte(v)
	}
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
	Lost       uint64 // segments that were sent again, once for each time
	Duplicated uint64
	Reordered  uint64
	Failed     uint64 // posts
}

// Stats returns the counters.
func (w *World) Stats() Stats {
	w.takeTurn()
	defer w.give()
	w.stats.Failed = w.failed.Load()
	return w.stats
}

// SetFaults replaces what goes wrong from now on; what has begun stays until it is over. It panics when f is out of
// bounds.
func (w *World) SetFaults(f Faults) {
	if err := f.validate(); err != nil {
		panic(err)
	}
	w.takeTurn()
	defer w.give()
	w.faults, w.rates = f, f.rates()
	w.again.Store(w.rates.again)
}

// step makes the next event happen, unless that is after limit.
func (w *World) step(limit time.Duration) bool {
	ev := w.events.min()
	if ev == nil || ev.at > limit {
		return false
	}
	w.happen(ev)
	return true
}

// happen makes an event happen.
func (w *World) happen(ev *event) {
	w.events.unset(ev)
	if int64(ev.at) > w.now.Load() {
		w.now.Store(int64(ev.at))
	}
	w.stats.Events++
	ev.act.fire(ev)
}

// forever is later than anything.
const forever = time.Duration(1<<63 - 1)

// after is the time d from now.
func (w *World) after(d time.Duration) time.Duration { return time.Duration(w.now.Load()) + d }

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

// delay draws how long a segment, dial or lookup takes.
func (w *World) delay() time.Duration { return w.cfg.Latency + w.chance.exp(w.faults.Jitter) }
