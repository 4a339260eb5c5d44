// Package executor decides which goroutine runs a job, for jobs of which nobody knows beforehand whether they are quick or block.
//
// An [Executor] runs them on a few goroutines, one job after the other on each, since that is faster than waking a goroutine for each
// job; when a job has waited in the queue for long, it lets more goroutines run.
//
//	Give ── fewer goroutines run than may ──► an idle one, or a new one ──► run ──► the next job of the queue, or idle
//	  └──── else ──► queue ◄── each checkInterval: has the oldest job waited for one interval? then more may run
//
// An [Inline] saves even the switch to one of those goroutines: the goroutine that polls a connection runs quick jobs itself, for as long as
// they turn out to be quick.
//
// A job that may run for ever (GiveLasting) begins on that goroutine, too, if it comes alone. When it is about to wait, or takes long, the goroutine
// is its own from then on, and another one polls.
//
// An Executor starts goroutines by a function that it is given, and has one timer.
package executor
