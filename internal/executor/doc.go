// Package executor decides which goroutine runs a job when it is not known in advance whether the
// job is quick or blocks.
//
// An [Executor] runs jobs on a small number of goroutines, each of which runs one job after
// another, because that is faster than waking a goroutine for every job. When a job has waited too
// long in the queue, the Executor allows more goroutines to run.
//
//	Give ── below the limit of goroutines ──► idle or new goroutine ──► run ──► next job in the queue, or idle
//	  └──── otherwise ──► queue ◄── every checkInterval: if the oldest job has waited for an interval, raise the limit
//
// An [Inline] avoids even the switch to one of those goroutines: the goroutine that polls a
// connection runs quick jobs itself, as long as they turn out to be quick.
//
// A job that may run forever (GiveLasting) also begins on the polling goroutine if it arrives
// alone. When it is about to block, or takes too long, it keeps that goroutine and another
// goroutine takes over polling.
//
// An Executor starts goroutines with a function supplied by its creator, and uses one timer.
package executor
