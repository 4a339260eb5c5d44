// Package sim implements a deterministic network within a single process, with virtual time and
// seeded faults. It is for testing this module and services built on it.
//
//	 node "a": coroutines                                                     node "b": coroutines
//	    f() ─ Progress ┐ yields                                        yields ┌ Progress ─ g()
//	         class a   │                                                      │   class b
//	────────────┼──────┼──────────────────────────────────────────────────────┼──────┼────────────
//	 port ─ Pull ──────┼► pipe: segments, window, bandwidth, clog ════════════┼► Deliver ────── port
//	                   │                        ▲                             │
//	                World: events by (virtual time, scheduling order) ── faults drawn from the seed ── trace hash
//
// There are two ways to run a world.
//
// Manual: any goroutine calls Progress or [World.Sleep]. The call advances the world event by event
// until the goroutine's own context is ready or the given virtual time has elapsed, and meanwhile
// handles the events of all nodes. A run with a single goroutine can be replayed. Several
// goroutines may make such calls concurrently. This is safe but cannot be replayed, and should be
// combined with [Config.Paced], which the default world behind "sim://" sets. Without it, the clock
// skips to the next timer as soon as nothing is in flight, so the deadlines of a goroutine that is
// computing expire immediately.
//
// Scheduled: [World.Go] and [Node.Go] create coroutines, and [World.Run] runs them. One runs at a
// time, until it waits in Progress or [World.Sleep]. The seed determines which one runs next.
//
//	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Storm().Draw(rng)})
//	w.Go("server", func() { cls, _ := na.Open("sim://server", na.Config{Plugins: []carrier.Plugin{w.Plugin()}}) … })
//	w.Go("client", …)
//	err := w.Run(time.Minute)        // of virtual time
//	w.Hash()                         // the same for the same seed
//
// A coroutine opens classes with the plugin of its world, [World.Plugin]. Without it, Open fails,
// because "sim://" is then the default world.
//
// A scheduled world, and a manual one driven by a single goroutine, have the following properties:
//   - A given seed and program always produce the same trace, regardless of the machine, GOMAXPROCS
//     and the race detector.
//   - Nothing depends on a system clock, the state of a pool, or the iteration order of a map.
//   - Virtual time advances only in Progress and Sleep, and never past the earliest deadline of a
//     waiting goroutine or coroutine.
//
// Connections behave like TCP connections: they are ordered, reliable until they break, and have a
// window that fills up when the receiver does not read. On [LevelA] they carry whole frames, and on
// [LevelB] a byte stream that may be split anywhere. A node can crash, be paused, or be partitioned
// from others, either by the program or at random. The network may lose, duplicate or reorder
// segments. As with TCP, the program only observes delays and, occasionally, a peer that is silent
// for too long. Posts can fail because of a lack of memory or queue space.
//
// The next step is determined by the seed or, with [Config.Choose], by a search over all orders of
// events. Hooks ([World.After], [World.AfterEvents]) run between two events, which reaches states
// that a program rarely encounters.
//
// A coroutine must wait for others only through Progress and Sleep. If it blocks on a channel or
// mutex that another coroutine would have to release, the world stops forever. After 5 seconds of
// real time, the world reports the coroutine and where it is blocked (see [Config.Patience]). A
// coroutine that needs another one should start it with [World.Spawn] and wait in Context.Wait.
//
// Contexts also use virtual time. [World.WithTimeout] creates such contexts, and handlers receive
// them. In a coroutine, a call, Wait, WaitFor or Sleep with a deadline in real time fails with an
// error that says so.
//
// Datagrams and the cost of computation are not simulated. A callback takes no virtual time.
package sim
