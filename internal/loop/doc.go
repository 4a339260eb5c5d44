// Package loop implements the event loop of waiting goroutines. It decides which goroutine leads,
// that is, moves bytes and runs callbacks, while the others sleep.
//
//	wait ─ done? ──────────────────────────────────────────────────► endWait: the lead is passed to a parked goroutine
//	  │  ▲
//	  │  └──────────────────────────────────────────────────────────────────────────────┐
//	  ├─ the lead is free, or lent ─► pass: send the batch ─► Poll ─► Run (lent) ─► wake ┤
//	  └─ another goroutine leads ───► parked, until it is done or gets the lead ─────────┘
//
// The lead is a single atomic word. It is free, holds the ID of a waiter, or is external after
// TryLead. It is lent while its waiter is in Run, where code of the program may block or may wait
// in the same Loop. A goroutine that starts to wait at that time takes the lead immediately. A wait
// inside a callback therefore makes progress by itself, without any need to identify goroutines. A
// goroutine that was already parked gets a lent lead after 1 to 2 ms.
//
// Invariants:
//
//   - At most one goroutine is in Poll.
//   - If a goroutine is parked, the lead is not free. The exception is a goroutine in Loop.Drive while
//     another one in Drive is in Run, which will either lead again or end its wait.
//   - At most one of the goroutines in Loop.Drive is in Run.
//   - A goroutine that parks first adds itself to the list and then rechecks its condition. A goroutine
//     that ends a wait or releases the lead does so first and then checks the list. Neither can
//     therefore miss the other.
//
// Another goroutine can stand in as the leader while no goroutine is waiting, or while many are;
// see OnIdle.
//
// The output of the callbacks of one pass, of the workers to which they hand work, and of the
// goroutines that the pass wakes is sent in one write; see batch.
//
// The package starts no goroutines, except for functions run by a timer or by a context that is
// done.
package loop
