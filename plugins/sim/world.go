package sim

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/framing"
)

// A World is a network of nodes that share a virtual clock. Except for Run, its methods may be
// called by any goroutine, including from callbacks.
//
// The goroutine that holds the turn runs the world, one event at a time. Other goroutines queue
// functions for it to run. mu is a leaf lock: it is held only briefly, and never while another
// package is called.
type World struct {
	cfg Config
	now atomic.Int64

	traceMu    sync.Mutex // guards the fields below
	hash       uint64
	traceCount uint64
	recent     []traceEntry

	again       atomic.Uint64 // rate for Faults.Again
	failedPosts atomic.Uint64 // number of posts that failed

	mu          sync.Mutex   // guards the fields below
	cond        sync.Cond    // signaled when the turn is free, the clock has advanced, or a function is queued
	sleepers    atomic.Int32 // number of goroutines sleeping on cond
	turnWaiters int          // number of those that are waiting only for the turn
	turnTaken   bool
	hasQueued   atomic.Bool // whether queued is not empty
	queued      []func()
	spareQueue  []func() // the second buffer, swapped with queued
	programRNG  rng      // for use by programs: incarnations and tokens
	postRNG     rng      // selects the posts that fail
	waiters     []*waiter
	idleFrom    time.Time // time since which an idle paced world has been waiting; zero if it is not

	// The fields below may be used only by the goroutine that holds the turn.
	faults       Faults
	rates        faultRates
	faultRNG     rng // for faults and delays
	orderRNG     rng // selects the next coroutine
	events       eventQueue
	stats        Stats
	listeners    map[string]*instance // instances by the name on which they listen
	nodes        []*Node              // in order of creation
	crashedNames map[string]*Node     // nodes that have crashed, by the names of their instances
	unnamed      int                  // number of classes opened without a name
	conns        uint64
	openConns    []*conn  // in order of creation
	dueHooks     []func() // hooks for Run to call
	countedHooks []*hook  // hooks waiting for a number of events
	heldEvents   []*event
	partitions   map[[2]*Node]*timedPartition
	iov          [][]byte
	freeBufs     [bufClasses][][]byte
	framing      framing.Buffers // shared by the connections
	sched
	watchdog watchdog
}

// NewWorld returns a new world at time 0. It panics if a field of cfg is out of range, because that
// is a mistake in the test.
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

// Seed returns the world's seed, which is needed to replay a failed test.
func (w *World) Seed() uint64 { return w.cfg.Seed }

// Now returns the current virtual time.
func (w *World) Now() time.Duration { return time.Duration(w.now.Load()) }

// Rand fills b with random bytes derived from the seed. It does not affect which faults are drawn.
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

// Stats holds counters of the events in a world.
type Stats struct {
	Events     uint64 // events of any kind
	Segments   uint64 // segments delivered
	Bytes      uint64 // bytes in those segments
	Cuts       uint64 // segments that ended within the data of one flush
	Full       uint64 // times that a sender encountered a full window
	Dials      uint64
	Connects   uint64
	Refusals   uint64
	Lookups    uint64
	Resumes    uint64 // times that a coroutine was resumed
	Dropped    uint64 // segments whose receiver no longer existed
	Resets     uint64 // this counter and those below count faults
	Corrupted  uint64
	Clogs      uint64
	Pauses     uint64
	Partitions uint64
	Crashes    uint64
	Lost       uint64 // retransmissions of segments and dials
	Duplicated uint64
	Reordered  uint64
	Failed     uint64 // posts that failed
}

// Stats returns the current values of the counters.
func (w *World) Stats() Stats {
	w.takeTurn()
	defer w.releaseTurn()
	w.stats.Failed = w.failedPosts.Load()
	return w.stats
}

// SetFaults replaces the faults to be drawn. Faults that have already begun continue. It panics if
// f is out of range.
func (w *World) SetFaults(f Faults) {
	if err := f.validate(); err != nil {
		panic(err)
	}
	w.takeTurn()
	defer w.releaseTurn()
	w.faults, w.rates = f, f.toRates()
	w.again.Store(w.rates.postFailure)
}

// runNext runs the next event unless its time is after limit, and reports whether it did.
func (w *World) runNext(limit time.Duration) bool {
	ev := w.events.first()
	if ev == nil || ev.at > limit {
		return false
	}
	w.runEvent(ev)
	return true
}

// runEvent advances the clock to ev's time and runs ev.
func (w *World) runEvent(ev *event) {
	w.events.cancel(ev)
	if int64(ev.at) > w.now.Load() {
		w.now.Store(int64(ev.at))
	}
	w.stats.Events++
	ev.actor.fire(ev)
}

// noDeadline is later than any other time.
const noDeadline = time.Duration(1<<63 - 1)

// timeAfter returns the virtual time d from now.
func (w *World) timeAfter(d time.Duration) time.Duration { return time.Duration(w.now.Load()) + d }

// deadlineAfter returns the virtual time at which a wait of d that begins now times out. A negative
// d means no deadline, and 0 means PollCost.
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

// drawDelay returns a random delay for a segment, dial or lookup.
func (w *World) drawDelay() time.Duration {
	return w.cfg.Latency + w.faultRNG.expDuration(w.faults.Jitter)
}
