// Package loop decides which goroutine drives: who moves bytes and runs callbacks, and who sleeps meanwhile.
//
//	wait ─ done? ──────────────────────────────────────────────────► leave: the lead goes to one that is parked
//	  │  ▲
//	  │  └──────────────────────────────────────────────────────────────────────────────┐
//	  ├─ the lead is free, or lent ─► pass: send the batch ─► Poll ─► Run (lent) ─► wake ┤
//	  └─ another goroutine leads ───► parked, until it is done, or handed the lead ──────┘
//
// The lead is one word. It is free, or has the number of a waiter, or of one who called TryLead. It is lent while its waiter is in Run, where
// code of the program may block, or wait in the same Loop: then a goroutine that comes to wait takes the lead at once. So a wait inside a
// callback goes on by itself, and nobody needs to know which goroutine it is. One that is parked already gets the lead after 1 to 2 ms.
//
// What always holds:
//
//   - At most one goroutine is in Poll.
//   - If any is parked, the lead is not free; but for drivers (Waiter.Drive) while another driver is in Run, which comes back or leaves.
//   - Of drivers at most one is in Run.
//   - A goroutine that parks is listed first and looks again then; one that ends a wait, or gives the lead up, does so first and looks for
//     those that are listed then. So neither misses the other.
//
// What the callbacks of one pass send, the workers that they give work to, and those that the pass wakes, leaves together, by one write: see
// batch.
//
// The package starts no goroutine, but the functions of a timer and of contexts that end.
package loop
