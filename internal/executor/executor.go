package executor

import (
	"runtime"
	"sync"
	"time"
)

// Options configures an Executor.
type Options[T comparable] struct {
	// Go runs f on a new goroutine.
	Go func(f func())
	// Run runs a job. It may block, panic, or call runtime.Goexit.
	Run func(job T)
	// IsOver reports whether a queued job no longer needs to run. It is called with a lock held. If
	// IsOver is nil, every job runs.
	IsOver func(job T) bool
	// MaxRunning is the maximum number of jobs that run at a time, not counting those started by
	// Spawn.
	MaxRunning int
}

// An Executor runs jobs on goroutines. Its methods are safe for concurrent use and do not block.
type Executor[T comparable] struct {
	opts Options[T]

	mu      sync.Mutex // guards the fields below
	running int        // number of goroutines running a job
	allowed int        // number of goroutines allowed to run; treated as at least shared()
	idle    []chan T   // inputs of the goroutines without a job
	queue   []T
	first   int  // index of the oldest job in queue
	ended   bool // End was called; no more jobs are accepted

	stays   int // number of GiveLasting jobs running on an Inline's goroutine; they are not included in running
	sweepAt int // queue length at which obsolete jobs are removed

	timer     *time.Timer
	isChecked bool // whether timer is set
	queued    int  // total number of jobs ever added to the queue
	taken     int  // total number of jobs ever taken from it to run
	lastCheck struct {
		queued, taken int // values at the last check
		rate          int // number of jobs taken in the preceding interval
	}
	checksSinceGrown int
}

const (
	// maxIdle is the maximum number of goroutines without a job that are kept.
	maxIdle = 64
	// checkInterval is the minimum time that a job waits before more goroutines may run. The
	// maximum is twice that.
	checkInterval = 500 * time.Microsecond
	// patientChecks is the number of checks for which no goroutines are added if the last ones
	// added did not increase throughput, because processors rather than goroutines are then assumed
	// to be the bottleneck.
	patientChecks = 10
	// minSweep is the minimum queue length at which obsolete jobs are removed.
	minSweep = 1024
)

// shared returns the number of goroutines that quick jobs share.
func shared() int { return 2 * runtime.GOMAXPROCS(0) }

// New returns an Executor that has no goroutines yet.
func New[T comparable](opts Options[T]) *Executor[T] { return &Executor[T]{opts: opts} }

// Give schedules job to run soon. Jobs are assigned to goroutines in the order in which they were
// given. After End, Give does nothing.
func (e *Executor[T]) Give(job T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveLocked(job, 0)
}

// giveLocked implements Give. It leaves up to left jobs in the queue for an Inline to run. e.mu
// must be held.
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
	if left == 1 { // the Inline runs it at once, or hands it to another goroutine
		return
	}
	e.startChecks()
}

// GiveLasting schedules job, which may run forever, to start soon on a goroutine of its own. The
// job does not count toward any limit. After End, GiveLasting does nothing.
func (e *Executor[T]) GiveLasting(job T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startLastingLocked(job)
}

// startLastingLocked implements GiveLasting. e.mu must be held.
func (e *Executor[T]) startLastingLocked(job T) {
	if !e.ended {
		e.opts.Go(func() { e.opts.Run(job) })
	}
}

// Spawn runs f on a new goroutine that does not count toward any limit. After End, Spawn does
// nothing and returns false.
func (e *Executor[T]) Spawn(f func()) bool {
	e.mu.Lock() // so that Go is not called after End has returned
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	e.opts.Go(f)
	return true
}

// End stops the Executor. It releases idle goroutines at once and the others when their jobs
// return, and discards queued jobs.
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

// dropOver removes the queued jobs that no longer need to run. This is the only limit on the number
// of such jobs: a canceled request no longer occupies a slot at its target, so the next request may
// arrive. e.mu must be held.
func (e *Executor[T]) dropOver() {
	if e.opts.IsOver != nil {
		early := e.lastCheck.queued - e.taken // number of waiting jobs that also waited at the last check
		kept := e.queue[:0]
		for i, job := range e.queue[e.first:] {
			if !e.opts.IsOver(job) {
				kept = append(kept, job)
				continue
			}
			e.queued--
			if i < early {
				e.lastCheck.queued--
			}
		}
		clear(kept[len(kept):cap(kept)])
		e.queue, e.first = kept, 0
	}
	e.sweepAt = 2 * len(e.queue)
}

// waiting returns the number of jobs in the queue. e.mu must be held.
func (e *Executor[T]) waiting() int { return len(e.queue) - e.first }

// startWaiting starts queued jobs until shared() jobs are running. If jobs remain in the queue, it
// starts the checks that allow more goroutines. e.mu must be held.
func (e *Executor[T]) startWaiting() {
	for e.waiting() > 0 && e.running < min(shared(), e.opts.MaxRunning) {
		e.start(e.pop())
	}
	if e.waiting() > 0 { // the running jobs may be blocked
		e.startChecks()
	}
}

// start runs job on an idle goroutine or a new one. e.mu must be held.
func (e *Executor[T]) start(job T) {
	e.running++
	if last := len(e.idle) - 1; last >= 0 {
		e.idle[last] <- job // does not block: the channel has room for one job
		e.idle = e.idle[:last]
		return
	}
	e.opts.Go(func() { e.work(job) })
}

// startChecks starts the timer that calls check, unless it is already running or MaxRunning jobs
// are running. e.mu must be held.
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

// check allows more goroutines to run if a job that was queued at the last check is still queued.
// If no job has left the queue since, all goroutines are assumed to be blocked, and every queued
// job gets a goroutine.
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

// grow starts goroutines for up to n queued jobs. e.mu must be held.
func (e *Executor[T]) grow(n int) {
	e.checksSinceGrown = 0
	for ; n > 0 && e.waiting() > 0 && e.running < e.opts.MaxRunning; n-- {
		e.start(e.pop())
	}
	e.allowed = e.running
}

// isQuiet reports whether no job is running, other than GiveLasting jobs that have a goroutine of
// their own. e.mu must be held.
func (e *Executor[T]) isQuiet() bool { return e.running == 0 && e.stays == 0 }

// pop removes and returns the oldest job in the queue. e.mu must be held.
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

// work runs job and then queued ones until enough other goroutines are idle.
func (e *Executor[T]) work(job T) {
	in := make(chan T, 1)
	over := false
	defer func() {
		if !over { // the job called runtime.Goexit or panicked
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

// next returns the next queued job. If there is none, ok is false, the calling goroutine is idle,
// and its channel in later receives a job or is closed.
func (e *Executor[T]) next(in chan T) (job T, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting() > 0 {
		return e.pop(), true
	}
	e.running--
	if e.running < e.allowed/2 {
		e.allowed-- // the goroutines are no longer blocked
	}
	if e.ended || len(e.idle) >= maxIdle {
		close(in)
	} else {
		e.idle = append(e.idle, in)
	}
	return job, false
}
