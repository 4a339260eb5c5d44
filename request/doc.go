// Package request lets goroutines wait, with a timeout, for operations that complete by callback.
//
//	op started with a callback                  any goroutine that is in Trigger
//	that calls r.Complete ──► network ──┐         cb ──► r.Complete(err)
//	                                    ▼          ▲            │ wakes the goroutine that waits for r
//	goroutine 1  r1.Wait ─► lead ─► Progress ─► Trigger         ▼
//	goroutine 2  r2.Wait ─► sleep ◄── completed │ timeout │ the lead is free
//	goroutine 3  r3.Wait ─► sleep ◄── (goroutine 1 watches the timeouts of all)
//
// The package works with any type that has the methods Progress, Trigger and Now. It starts no
// goroutines, sets no timers, and reads no clock except that of the Progressor. A context of
// package na or hg is also a Waiter, which implements waiting itself. The rest of this comment is
// about other Progressors.
//
// Any number of goroutines may wait for requests of one Class. At most one of them, the one that
// holds the lead, is in Progress. It releases the lead before it runs callbacks, and a sleeping
// goroutine is woken to take over. A callback may therefore block or wait for other requests, and
// delays only the goroutine that runs it. No lock is held while the Progressor or a cancel function
// is called.
//
// The package never completes a request by itself, and a Wait that times out cancels nothing. Of an
// operation's result, a request carries only the error.
package request
