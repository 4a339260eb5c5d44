package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/framing"
)

// A World is a network of nodes with one virtual clock. Its methods may be called from any
// goroutine, callbacks included, but for Run.
//
// The goroutine that has the turn runs the world, one event at a time; all others queue functions
// for it. mu is a leaf lock: it is held for a few instructions and never while another package is
// called.
type World struct {
	cfg Config
	now atomic.Int64

	traceMu    sync.Mutex // guards the fields below
	hash       uint64
	traceCount uint64
	recent     []traceEntry

	again       atomic.Uint64 // Faults.Again as rates
	failedPosts atomic.Uint64 // posts

	mu          sync.Mutex   // guards the fields below
	cond        sync.Cond    // the turn is free, the clock has moved, or a function is queued
	sleepers    atomic.Int32 // goroutines that sleep on cond
	turnWaiters int          // those of them that wait for the turn only
	turnTaken   bool
	hasQueued   atomic.Bool // todo is not empty
	queued      []func()
	spareQueue  []func() // the other buffer of queued
	programRNG  rng      // for programs: incarnations, tokens
	postRNG     rng      // draws the posts that fail
	waiters     []*waiter
	idleFrom    time.Time // since when an idle paced world has waited; zero when it does not

	// The following fields belong to the goroutine that has the turn.
	faults       Faults
	rates        faultRates
	faultRNG     rng // faults and delays
	orderRNG     rng // draws the next coroutine
	events       eventQueue
	stats        Stats
	listeners    map[string]*instance // instances by the name that they listen on
	nodes        []*Node              // in the order of their making
	crashedNames map[string]*Node     // nodes that have crashed, by the names of their instances
	unnamed      int                  // nodes of classes without a name so far
	conns        uint64
	openConns    []*conn  // in the order of their making
	dueHooks     []func() // hooks that Run is to call
	countedHooks []*hook  // hooks that wait for a number of events
	heldEvents   []*event
	partitions   map[[2]*Node]*timedPartition
	iov          [][]byte
	freeBufs     [bufClasses][][]byte
	framing      framing.Buffers // of the connections
	sched
	watchdog watchdog
}

// NewWorld returns a new world at time 0. It panics if cfg has a field out of
// bounds: a mistake of the test, not of the tested.
func NewWorld(cfg Config) *World {
	if err := cfg.validate(); err != nil {
		panic(err)
	}
	w := &World{
		cfg: cfg.withDefaults(), faults: cfg.Faults, rates: cfg.Faults.toRates(), hash: mixHash(0, 1),
		programRNG: newRNG(cfg.Seed, 1), faultRNG: newRNG(cfg.Seed, 2), orderRNG: newRNG(cfg.Seed, 3), postRNG: newRNG(cfg.Seed, 4),
		recent:    make([]traceEntry, traceLen),
		listeners: map[string]*instance{}, partitions: map[[2]*Node]*timedPartition{}, crashedNames: map[string]*Node{},
	}
	w.cond.L = &w.mu
	w.again.Store(w.rates.postFailure)
	return w
}

// Seed returns the seed, to be printed when a test fails.
func (w *World) Seed() uint64 { return w.cfg.Seed }

// Now reads the virtual clock.
func (w *World) Now() time.Duration { return time.Duration(w.now.Load()) }

// Rand fills b from the seed. It does not change the faults that are drawn.
func (w *World) Rand(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, v := 0, uint64(0); i < len(b); i, v = i+1, v>>8 {
		if i%8 == 0 {
			v = w.programRNG.pcg.Uint64()
		}
		b[i] = byte(v)
	}
}

// Stats counts the events of a world.
type Stats struct {
	Events     uint64 // events of any kind
	Segments   uint64 // segments that were delivered
	Bytes      uint64 // bytes in them
	Cuts       uint64 // segments that ended inside the data of one flush
	Full       uint64 // times that a sender met a full window
	Dials      uint64
	Connects   uint64
	Refusals   uint64
	Lookups    uint64
	Resumes    uint64 // resumes of coroutines
	Dropped    uint64 // segments whose receiver was gone
	Resets     uint64 // this and the following are faults
	Corrupted  uint64
	Clogs      uint64
	Pauses     uint64
	Partitions uint64
	Crashes    uint64
	Lost       uint64 // segments that were sent again, once for each time
	Duplicated uint64
	Reordered  uint64
	Failed     uint64 // posts that failed
}

// Stats returns the counters.
func (w *World) Stats() Stats {
	w.takeTurn()
	defer w.releaseTurn()
	w.stats.Failed = w.failedPosts.Load()
	return w.stats
}

// SetFaults replaces the faults from now on; those that have begun stay until they are over. It
// panics when f is out of bounds.
func (w *World) SetFaults(f Faults) {
	if err := f.validate(); err != nil {
		panic(err)
	}
	w.takeTurn()
	defer w.releaseTurn()
	w.faults, w.rates = f, f.toRates()
	w.again.Store(w.rates.postFailure)
}

// runNext runs the next event, unless that is after limit.
func (w *World) runNext(limit time.Duration) bool {
	ev := w.events.first()
	if ev == nil || ev.at > limit {
		return false
	}
	w.runEvent(ev)
	return true
}

// runEvent runs an event.
func (w *World) runEvent(ev *event) {
	w.events.cancel(ev)
	if int64(ev.at) > w.now.Load() {
		w.now.Store(int64(ev.at))
	}
	w.stats.Events++
	ev.actor.fire(ev)
}

// noDeadline is later than any time.
const noDeadline = time.Duration(1<<63 - 1)

// timeAfter returns the virtual time d from now.
func (w *World) timeAfter(d time.Duration) time.Duration { return time.Duration(w.now.Load()) + d }

// deadlineAfter returns the end of a wait of d that begins now.
func (w *World) deadlineAfter(d time.Duration) time.Duration {
	switch {
	case d < 0:
		return noDeadline
	case d == 0:
		d = w.cfg.PollCost
	}
	if at := w.timeAfter(d); at > 0 {
		return at
	}
	return noDeadline
}

// drawDelay draws the delay of a segment, dial or lookup.
func (w *World) drawDelay() time.Duration {
	return w.cfg.Latency + w.faultRNG.expDuration(w.faults.Jitter)
}
