// Package request turns callbacks into waits with timeouts.
//
//	op started with a callback                  any goroutine that is in Trigger
//	that calls r.Complete ──► network ──┐         cb ──► r.Complete(err)
//	                                    ▼          ▲            │ wakes r's sleeper
//	goroutine 1  r1.Wait ─► lead ─► Progress ─► Trigger         ▼
//	goroutine 2  r2.Wait ─► sleep ◄── completed │ time is up │ the lead is free
//	goroutine 3  r3.Wait ─► sleep ◄── (goroutine 1 keeps the time for all)
//
// It works with anything that has Progress, Trigger and Now. It starts no goroutine, sets no timer and reads no clock but the
// Progressor's. A context of package na or hg is also a Waiter, which does the waiting itself; what follows is about the others.
//
// Any number of goroutines may wait on requests of one Class. At most one of them is in Progress; it holds the lead. The lead
// is given up before callbacks run and one sleeper is woken to take it, so a callback may block or wait for other requests, and
// holds up only the goroutine that runs it. No lock is held during a call to the Progressor or to a cancel function.
//
// Not here: completing a request by itself (a timeout of Wait cancels nothing), and the result of an operation beyond its error.
package request
