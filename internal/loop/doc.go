// Package loop is the event loop of waiting goroutines: it decides which one leads, that is, moves
// bytes and runs callbacks, while the others sleep.
//
//	wait ─ done? ──────────────────────────────────────────────────► endWait: the lead is passed to a parked goroutine
//	  │  ▲
//	  │  └──────────────────────────────────────────────────────────────────────────────┐
//	  ├─ the lead is free, or lent ─► pass: send the batch ─► Poll ─► Run (lent) ─► wake ┤
//	  └─ another goroutine leads ───► parked, until it is done or gets the lead ─────────┘
//
// The lead is one atomic word. It is free, or holds the id of a waiter, or external after TryLead.
// It is lent while its waiter is in Run, where code of the program may block, or wait in the same
// Loop: a goroutine that begins to wait then takes the lead at once. So a wait inside a callback
// makes progress by itself, and goroutines need not be identified. A goroutine that was parked
// before gets a lent lead after 1 to 2 ms.
//
// Invariants:
//
//   - At most one goroutine is in Poll.
//   - If a goroutine is parked, the lead is not free. The exception is a goroutine in Loop.Drive
//     while another one in Drive is in Run, which will either lead again or end its wait.
//   - Of the goroutines in Loop.Drive at most one is in Run.
//   - A goroutine that parks first adds itself to the list, and then checks its condition again. A
//     goroutine that ends a wait or releases the lead does that first, and then checks the list.
//     So neither misses the other.
//
// Another goroutine can stand in as the leader while no goroutine waits, or many do; see OnIdle.
//
// The output of the callbacks of one pass, of the workers to which they give work, and of the
// goroutines that the pass wakes is sent together, by one write; see batch.
//
// The package starts no goroutines, except for the functions of a timer and of contexts that are
// done.
package loop
