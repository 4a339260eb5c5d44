// Package request turns callbacks into waits with timeouts.
//
//	op started with a callback                  any goroutine that is in Trigger
//	that calls r.Complete ──► network ──┐         cb ──► r.Complete(err)
//	                                    ▼          ▲            │ wakes the goroutine that waits for r
//	goroutine 1  r1.Wait ─► lead ─► Progress ─► Trigger         ▼
//	goroutine 2  r2.Wait ─► sleep ◄── completed │ timeout │ the lead is free
//	goroutine 3  r3.Wait ─► sleep ◄── (goroutine 1 watches the timeouts of all)
//
// It works with every type that has Progress, Trigger and Now. It starts no goroutine, sets no
// timer and reads no clock except that of the Progressor. A context of package na or hg is also a
// Waiter, which implements the waiting itself; the rest of this page is about other Progressors.
//
// Any number of goroutines may wait for requests of one Class. At most one of them is in Progress;
// it holds the lead. It releases the lead before it runs callbacks, and a sleeping goroutine is
// woken to take it. So a callback may block or wait for other requests, and delays only the
// goroutine that runs it. No lock is held during a call of the Progressor or of a cancel function.
//
// The package never completes a request by itself: a timeout of Wait cancels nothing. It does not
// carry the result of an operation beyond its error.
package request
