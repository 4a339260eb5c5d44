package executor

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A Poller receives jobs on the goroutine that calls Inline.RunPass.
type Poller interface {
	// OneJobWaits reports whether the current pass has received exactly one job and has nothing
	// else to run.
	OneJobWaits() bool
	// Flush sends output that is held back until the end of the pass.
	Flush()
	// Now returns the current time of the clock.
	Now() time.Duration
}

// An Inline runs an Executor's jobs on the goroutine that polls for them. While callbacks run, the
// jobs that they give wait in the Executor's queue. Afterward the polling goroutine runs them one
// at a time, if no other job is running. If that takes long, a second goroutine takes over polling,
// and the Executor's goroutines run the remaining jobs. If jobs turn out to take longer than a
// goroutine switch costs, none run inline for a while. A job that arrives alone is allowed more
// time, because nothing waits behind it.
//
// Jobs given by another goroutine, or by a callback that itself waits, are not left to the Inline.
//
// An Executor may have several Inlines. A job left to one of them is not left to the others, but
// any of them may run a job that is already in the queue.
type Inline[T comparable] struct {
	e      *Executor[T]
	poller Poller

	// The Executor's mu guards the fields below.
	alone   trial // for jobs that arrive alone
	batch   trial // for all other jobs
	begins  trial // for starts of GiveLasting jobs
	left    int   // number of queued jobs that may be left to this goroutine; 0 unless callbacks are running
	lasting []T   // the GiveLasting job left to this goroutine; at most one

	stay atomic.Pointer[stay[T]] // the GiveLasting job that is running on this goroutine, or nil; written with e.mu held
}

const (
	// maxAlone is the longest time that a job arriving alone may take and still count as quick,
	// including the decoding of a body of moderate size. maxInBatch is the limit for each of
	// several jobs that arrive together.
	maxAlone, maxInBatch = 100 * time.Microsecond, 5 * time.Microsecond
	// maxLasting is the corresponding limit for a GiveLasting job, which sends its items before its
	// response.
	maxLasting = 200 * time.Microsecond
	// maxBlocked is the longest time that one job of a batch may take before the Executor's
	// goroutines run the others.
	maxBlocked = 50 * time.Microsecond
	// minHalved is the number of jobs at which the output of the first half is sent before the
	// second half runs.
	minHalved = 12
)

// NewInline returns an Inline for one polling goroutine, or for several of which only one polls at
// a time.
func NewInline[T comparable](e *Executor[T], poller Poller) *Inline[T] {
	return &Inline[T]{e: e, poller: poller}
}

// Give is like Executor.Give, for a job received by i's polling goroutine. The job may be left in
// the queue for that goroutine to run.
func (i *Inline[T]) Give(job T) {
	e := i.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveLocked(job, i.left)
}

// GiveLasting is like Executor.GiveLasting, for a job received by i's polling goroutine. The job
// may begin on that goroutine.
func (i *Inline[T]) GiveLasting(job T) {
	e := i.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if i.left == 1 && len(i.lasting) == 0 && e.waiting() == 0 && !e.ended {
		i.lasting = append(i.lasting, job)
		return
	}
	e.startLastingLocked(job)
}

// RunPass implements loop.Runner. It runs either all callbacks that are ready or only the first,
// and then the jobs that the callbacks gave. When a job occupies p's goroutine and another
// goroutine must poll, p.Keep is called, on any goroutine.
func (i *Inline[T]) RunPass(p loop.Pass) {
	e := i.e
	trial, maxTime, left := &i.batch, maxInBatch, math.MaxInt
	alone := i.poller.OneJobWaits()
	if alone { // a callback that might wait for this job must not run along with it
		trial, maxTime, left = &i.alone, maxAlone, 1
	}
	e.mu.Lock()
	relieved := i.relieve()
	here := e.isQuiet() && trial.allows(i.poller)
	i.left = 0
	if here {
		i.left = left
	}
	e.mu.Unlock()
	if relieved != nil {
		relieved.Keep()
	}
	p.Run(alone)
	e.mu.Lock()
	i.left = 0
	n := e.waiting()
	if len(i.lasting) > 0 {
		job := i.lasting[0]
		clear(i.lasting)
		i.lasting = i.lasting[:0]
		if here && n == 0 && e.isQuiet() && !e.ended && i.begins.allows(i.poller) {
			i.begin(job, p) // releases e.mu
			return
		}
		e.startLastingLocked(job)
	}
	if n == 0 || !e.isQuiet() || !here {
		e.startWaiting()
		e.mu.Unlock()
		return
	}
	e.running++
	job := e.pop()
	e.mu.Unlock()
	i.work(p, job, n, trial, maxTime)
}

// work runs job and the n-1 others that arrived with it until one of them takes too long. The run
// time of a job that arrived alone includes the time spent receiving it.
func (i *Inline[T]) work(p loop.Pass, job T, n int, trial *trial, maxTime time.Duration) {
	e, begun, over := i.e, p.Polled(), false
	if begun < 0 || trial != &i.alone {
		begun = i.poller.Now()
	}
	defer func() {
		if !over { // a job called runtime.Goexit or panicked
			e.mu.Lock()
			e.running--
			e.startWaiting()
			e.mu.Unlock()
		}
	}()
	for left := n - 1; !over; left-- {
		e.opts.Run(job)
		if n >= minHalved && left == n/2 {
			i.poller.Flush() // give the peer something to do meanwhile
		}
		now := i.poller.Now()
		e.mu.Lock()
		trial.judge(maxTime, begun, now)
		if over = e.waiting() == 0 || now-begun > maxBlocked; over {
			e.running--
			e.startWaiting()
		} else {
			job, begun = e.pop(), now
		}
		e.mu.Unlock()
		p.SetClock(now)
	}
}

// A stay is the run of a GiveLasting job on the polling goroutine. The stay ends when the job
// blocks or takes too long. Another goroutine then takes over polling, and the job keeps its
// goroutine.
type stay[T comparable] struct {
	job  T
	pass loop.Pass
}

// begin runs a GiveLasting job on the polling goroutine. e.mu must be held when it is called, and
// is not held when it returns.
func (i *Inline[T]) begin(job T, p loop.Pass) {
	e, begun := i.e, i.poller.Now()
	s := &stay[T]{job, p}
	i.stay.Store(s)
	e.stays++
	e.mu.Unlock()
	defer func() { // deferred because a job may end the goroutine
		now := i.poller.Now()
		e.mu.Lock()
		defer e.mu.Unlock()
		if i.stay.Load() == s {
			i.begins.judge(maxLasting, begun, now)
			i.leave()
		}
	}()
	e.opts.Run(job)
}

// leave ends the stay on i's goroutine. e.mu must be held.
func (i *Inline[T]) leave() {
	i.stay.Store(nil)
	i.e.stays--
}

// Blocks reports to i that a GiveLasting job is about to block, or that its queued output needs the
// polling goroutine. If the job is running on the polling goroutine, another goroutine takes over
// polling.
func (i *Inline[T]) Blocks(job T) {
	s := i.stay.Load()
	if s == nil || s.job != job {
		return
	}
	i.e.mu.Lock()
	stays := i.stay.Load() == s
	if stays {
		i.leave()
	}
	i.e.mu.Unlock()
	if stays {
		s.pass.Keep()
	}
}

// relieve ends the current stay, if any, because another goroutine has started polling. It returns
// the pass on which the caller must call Keep, or nil if there was no stay. e.mu must be held.
func (i *Inline[T]) relieve() loop.Pass {
	s := i.stay.Load()
	if s == nil {
		return nil
	}
	now := i.poller.Now()
	i.begins.judge(0, now-1, now)
	i.leave()
	return s.pass
}

// A trial decides, from the run time of earlier jobs, whether the next ones run on the polling
// goroutine.
type trial struct {
	slow  int           // increased by slowStep for each slow job, decreased by 1 for each quick one
	again time.Duration // time before which no job runs inline
	pause time.Duration // length of the last pause
}

const (
	// slowStep is the number of quick jobs that offset one slow job. When slow reaches maxSlow, no
	// job runs inline for a while. That happens if more than one job in five, or three in a row,
	// are slow.
	slowStep, maxSlow = 4, 12
	// The first pause lasts firstPause. Each later one is twice as long as the previous one, up to
	// maxPause, if jobs were quick for no longer than the previous pause in between.
	firstPause, maxPause = 2 * time.Millisecond, time.Second
)

// allows reports whether jobs may run inline. It reads the clock only if a pause was set.
func (t *trial) allows(clock Poller) bool { return t.again == 0 || clock.Now() >= t.again }

// judge records the run time of a job, which began at begun and ended at now. It ignores a job that
// began during a pause, which happens if an earlier job of the same pass caused the pause.
func (t *trial) judge(maxTime, begun, now time.Duration) {
	if begun < t.again {
		return
	}
	if now-begun <= maxTime {
		t.slow = max(t.slow-1, 0)
		return
	}
	if t.slow += slowStep; t.slow < maxSlow {
		return
	}
	t.slow = 0
	if t.pause = min(2*t.pause, maxPause); t.pause == 0 || begun-t.again > t.pause {
		t.pause = firstPause
	}
	t.again = now + t.pause
}
