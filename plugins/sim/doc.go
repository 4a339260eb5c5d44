// Package sim is a deterministic network inside one process, with virtual time and seeded faults,
// for tests of this module and of the services that are built on it.
//
//	 node "a": coroutines                                                     node "b": coroutines
//	    f() ─ Progress ┐ yields                                        yields ┌ Progress ─ g()
//	         class a   │                                                      │   class b
//	────────────┼──────┼──────────────────────────────────────────────────────┼──────┼────────────
//	 port ─ Pull ──────┼► pipe: segments, window, bandwidth, clog ════════════┼► Deliver ────── port
//	                   │                        ▲                             │
//	                World: events by (virtual time, order of setting) ── faults drawn from the seed ── trace hash
//
// There are two ways to run a world.
//
// Manual: any goroutine calls Progress, or [World.Sleep]. It makes the world go on, event by event,
// until its own context is ready or the virtual time it gave has passed, and takes care of
// everybody's events meanwhile. One goroutine alone replays. Several may do so at once, which is
// safe but cannot be replayed, and they want [Config.Paced], as the default world behind "sim://"
// has it: otherwise the clock skips to the next timer as soon as nothing is under way, and the
// deadlines of a goroutine that computes pass at once.
//
// Scheduled: [World.Go] and [Node.Go] make coroutines and [World.Run] runs them. One runs at a
// time, until it waits in Progress or [World.Sleep]; which one is next is drawn from the seed.
//
//	w := sim.NewWorld(sim.Config{Seed: seed, Faults: sim.Storm().Draw(rng)})
//	w.Go("server", func() { cls, _ := na.Open("sim://server", na.Config{Plugins: []carrier.Plugin{w.Plugin()}}) … })
//	w.Go("client", …)
//	err := w.Run(time.Minute)        // of virtual time
//	w.Hash()                         // the same for the same seed
//
// What always holds in a scheduled world, and in a manual one that a single goroutine drives:
//   - One seed and one program give one trace, whatever the machine, GOMAXPROCS and the race
//     detector do.
//   - Nothing reads a clock of the system or the state of a pool, and no order comes from a map.
//   - Virtual time passes only in Progress and Sleep, and no further than the first deadline of
//     those who wait.
//
// Connections behave as those of tcp: ordered, reliable while they last, with a window that fills
// up when the receiver does not take. On [LevelA] they carry whole frames, on [LevelB] a stream of
// bytes that is cut anywhere. A node can crash, pause and be partitioned from others, by the
// program or by chance. The network may lose, duplicate or reorder segments. As over tcp, a program
// sees only that everything is later, and at times that a peer is silent for too long. Posts can
// fail for want of memory or room.
//
// The seed decides what is next; with [Config.Choose] a search does, over every order of events.
// Hooks ([World.After], [World.AfterEvents]) run between two events, which reaches states that a
// program rarely meets.
//
// A coroutine waits for others through Progress and Sleep only. One that blocks on a channel or a
// mutex that another coroutine is to release stops the world for good; after 5 real seconds the
// world says which one it is and where ([Config.Patience]). A coroutine that needs another starts
// it with [World.Spawn] and waits in Context.Wait.
//
// Contexts use virtual time, too: [World.WithTimeout] makes them, and handlers get such ones. A
// call made with a deadline in real time fails in a coroutine, with an error that says so.
//
// Not simulated: datagrams, and the cost of computation: a callback takes no virtual time.
package sim
