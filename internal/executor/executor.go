package executor

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// Options are those of New.
type Options[T comparable] struct {
	// Go starts f on a goroutine of its own.
	Go func(f func())
	// Run runs a job. It may block, panic and end its goroutine.
	Run func(job T)
	// IsOver reports whether a job that waits need not run any more; nil means that all must. It is called with a lock held.
	IsOver func(job T) bool
	// MaxRunning bounds the jobs that run at a time, those of Spawn left out.
	MaxRunning int
}

// An Executor runs jobs on goroutines. Its methods may be called from any goroutine, and none of them blocks.
type Executor[T comparable] struct {
	opts Options[T]

	mu      sync.Mutex // guards the rest
	running int        // goroutines that run a job
	allowed int        // goroutines that may run; shared() at the least
	idle    []chan T   // of goroutines without a job
	queue   []T
	first   int  // of queue
	ended   bool // no more job is taken

	stays   int // jobs of GiveLasting that run on the goroutine of an Inline: not in running, which MaxRunning bounds
	sweepAt int // the length of the queue at which jobs that are over leave it

	timer     *time.Timer
	isChecked bool // timer is set
	queued    int  // jobs that came to the queue, ever
	taken     int  // and left it, ever
	lastCheck struct {
		queued, taken int // then
		rate          int // jobs taken in the interval before
	}
	checksSinceGrown int
}

const (
	// maxIdle bounds the goroutines without a job that are kept.
	maxIdle = 64
	// checkInterval is how long a job waits, at least, before more goroutines may run, and at most twice that.
	checkInterval = 500 * time.Microsecond
	// patientChecks is how many checks pass before more goroutines run although the last that were added did not end more jobs: then it is
	// processors that are short, not goroutines, or so it seems.
	patientChecks = 10
	// minSweep is how many jobs that are over may stay in the queue, if no more than that wait.
	minSweep = 1024
)

// shared is how many goroutines quick jobs share.
func shared() int { return 2 * runtime.GOMAXPROCS(0) }

// New returns an Executor without a goroutine.
func New[T comparable](opts Options[T]) *Executor[T] { return &Executor[T]{opts: opts} }

// Give has job run soon, in the order of Give as far as goroutines start jobs in it. After End it does nothing.
func (e *Executor[T]) Give(job T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveLocked(job, 0)
}

// giveLocked is Give. Up to left jobs of the queue are left to an Inline.
func (e *Executor[T]) giveLocked(job T, left int) {
	if e.ended {
		return
	}
	isLeft := e.waiting() < left
	if !isLeft && e.running < max(e.allowed, min(shared(), e.opts.MaxRunning)) {
		e.start(job)
		return
	}
	if len(e.queue) >= max(e.sweepAt, minSweep) {
		e.dropOver()
	}
	e.queue = append(e.queue, job)
	e.queued++
	if left == 1 { // the Inline runs it at once, or another goroutine sees to it
		return
	}
	e.startChecks()
}

// GiveLasting has job, which may run for ever and counts for no limit, begin soon on a goroutine of its own. After End it does nothing.
func (e *Executor[T]) GiveLasting(job T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startLastingLocked(job)
}

// startLastingLocked is GiveLasting.
func (e *Executor[T]) startLastingLocked(job T) {
	if !e.ended {
		e.opts.Go(func() { e.opts.Run(job) })
	}
}

// Spawn runs f on a goroutine of its own that counts for no limit. It reports false, and does nothing, after End.
func (e *Executor[T]) Spawn(f func()) bool {
	e.mu.Lock() // so that Go is not called once End has returned
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	e.opts.Go(f)
	return true
}

// End lets idle goroutines go, the others when their jobs have returned, and forgets the jobs that wait.
func (e *Executor[T]) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	for _, in := range e.idle {
		close(in)
	}
	e.idle, e.queue, e.first = nil, nil, 0
	if e.timer != nil {
		e.timer.Stop()
	}
}

// dropOver takes the jobs that are over out of the queue. Nothing else bounds them: a request that was canceled has no place at its target any
// more, and the next one may come. Locked.
func (e *Executor[T]) dropOver() {
	if e.opts.IsOver != nil {
		waiting := slices.DeleteFunc(e.queue[e.first:], e.opts.IsOver)
		e.queue = append(e.queue[:0], waiting...)
		clear(e.queue[len(e.queue):cap(e.queue)])
		e.first = 0
	}
	e.sweepAt = 2 * len(e.queue)
}

// waiting returns how many jobs are in the queue. Locked.
func (e *Executor[T]) waiting() int { return len(e.queue) - e.first }

// startWaiting starts jobs of the queue, as Give would have. Locked.
func (e *Executor[T]) startWaiting() {
	for e.waiting() > 0 && e.running < min(shared(), e.opts.MaxRunning) {
		e.start(e.pop())
	}
	if e.waiting() > 0 { // those that run may be blocked
		e.startChecks()
	}
}

// start has a goroutine run a job. Locked.
func (e *Executor[T]) start(job T) {
	e.running++
	if last := len(e.idle) - 1; last >= 0 {
		e.idle[last] <- job // it has room for one
		e.idle = e.idle[:last]
		return
	}
	e.opts.Go(func() { e.work(job) })
}

// startChecks sets the timer of check. Locked.
func (e *Executor[T]) startChecks() {
	if e.isChecked || e.running >= e.opts.MaxRunning {
		return
	}
	e.isChecked = true
	e.lastCheck.taken, e.lastCheck.queued, e.lastCheck.rate = e.taken, e.queued, 0
	if e.timer == nil {
		e.timer = time.AfterFunc(checkInterval, e.check)
		return
	}
	e.timer.Reset(checkInterval)
}

// check lets more goroutines run if a job that was in the queue at the last check is still there. If none has left it since, all goroutines
// are blocked, and each job that waits gets one.
func (e *Executor[T]) check() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isChecked = e.waiting() > 0 && e.running < e.opts.MaxRunning && !e.ended
	if !e.isChecked {
		return
	}
	last := &e.lastCheck
	took := e.taken - last.taken
	hasWaited := e.taken < last.queued
	gained := took > last.rate+last.rate/4
	e.checksSinceGrown++
	switch {
	case took == 0:
		e.grow(len(e.queue))
	case hasWaited && (gained || e.checksSinceGrown >= patientChecks):
		e.grow(e.running)
	}
	last.rate, last.taken, last.queued = took, e.taken, e.queued
	e.timer.Reset(checkInterval)
}

// grow lets up to n more goroutines run. Locked.
func (e *Executor[T]) grow(n int) {
	e.checksSinceGrown = 0
	for ; n > 0 && e.waiting() > 0 && e.running < e.opts.MaxRunning; n-- {
		e.start(e.pop())
	}
	e.allowed = e.running
}

// isQuiet reports whether no job runs but those of GiveLasting that have a goroutine of their own. Locked.
func (e *Executor[T]) isQuiet() bool { return e.running == 0 && e.stays == 0 }

// pop takes the oldest job of the queue. Locked.
func (e *Executor[T]) pop() T {
	var none T
	job := e.queue[e.first]
	e.queue[e.first] = none
	e.taken++
	if e.first++; e.first == len(e.queue) {
		e.queue, e.first = e.queue[:0], 0
	}
	return job
}

// work runs jobs until enough other goroutines are idle.
func (e *Executor[T]) work(job T) {
	in := make(chan T, 1)
	over := false
	defer func() {
		if !over { // the job has ended this goroutine
			e.mu.Lock()
			e.running--
			if e.waiting() > 0 {
				e.start(e.pop())
			}
			e.mu.Unlock()
		}
	}()
	for ok := true; ok; {
		e.opts.Run(job)
		if job, ok = e.next(in); !ok {
			job, ok = <-in
		}
	}
	over = true
}

// next returns the next job of the queue. If there is none, ok is false and in receives one, or is closed.
func (e *Executor[T]) next(in chan T) (job T, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting() > 0 {
		return e.pop(), true
	}
	e.running--
	if e.running < e.allowed/2 {
		e.allowed-- // they are not blocked any more
	}
	if e.ended || len(e.idle) >= maxIdle {
		close(in)
	} else {
		e.idle = append(e.idle, in)
	}
	return job, false
}
