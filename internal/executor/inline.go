package executor

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// A Poller is what takes jobs in, on the goroutine of Inline.RunPass.
type Poller interface {
	// OneJobWaits reports whether a pass has one job and nothing else to run.
	OneJobWaits() bool
	// Flush sends what is held back for the end of the pass.
	Flush()
	// Now reads the clock.
	Now() time.Duration
}

// An Inline runs jobs of an Executor on the goroutine that polls for them. While callbacks run, the jobs among them wait in the queue of the
// Executor; then the goroutine takes them from there, one after the other, if no other job runs. A second goroutine stands by, and polls
// when that takes long; goroutines of the Executor take the jobs that still wait. When jobs turn out to take longer than a switch costs,
// none is run here for a while. A job that comes with nothing else has more time, since nothing waits behind it.
//
// Jobs that another goroutine takes in, or that a callback takes in which waits itself, are not left to it.
//
// An Executor may have several: what is left to one is not left to the others, but a job that waits in the queue is taken by any of them.
type Inline[T comparable] struct {
	e      *Executor[T]
	poller Poller

	// e.mu guards the fields below.
	alone   trial // of jobs that come with nothing else
	batch   trial // of others
	begins  trial // of jobs of GiveLasting
	left    int   // how many jobs of the queue are left to this goroutine: while callbacks run, else none
	lasting []T   // the job of GiveLasting that is left to it; one at most

	stay atomic.Pointer[stay[T]] // the job of GiveLasting that runs here, and has not left; nil for none; written under e.mu
}

const (
	// maxAlone is how long a job that comes alone may take and count as quick, with a body of some size that it decodes; maxInBatch each of
	// those that come together.
	maxAlone, maxInBatch = 100 * time.Microsecond, 5 * time.Microsecond
	// maxLasting is how long a job of GiveLasting may take, which sends its items before its answer.
	maxLasting = 200 * time.Microsecond
	// maxBlocked is how long one of a batch may take before goroutines of the Executor take the others.
	maxBlocked = 50 * time.Microsecond
	// minHalved is from how many jobs on what those of the first half have sent leaves before the others have run.
	minHalved = 12
)

// NewInline returns the Inline of one polling goroutine, or of several of which one polls at a time.
func NewInline[T comparable](e *Executor[T], poller Poller) *Inline[T] {
	return &Inline[T]{e: e, poller: poller}
}

// Give is Executor.Give for a job that the goroutine of i has taken in: it may be left to that.
func (i *Inline[T]) Give(job T) {
	e := i.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.giveLocked(job, i.left)
}

// GiveLasting is Executor.GiveLasting for a job that the goroutine of i has taken in: it may begin there.
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

// RunPass implements loop.Runner: it runs callbacks, all that are ready or only the first, and then jobs that came with them. It calls Keep, on
// any goroutine, when the goroutine of p is not to poll any more, since a job keeps it: another one has to.
func (i *Inline[T]) RunPass(p loop.Pass) {
	e := i.e
	trial, maxTime, left := &i.batch, maxInBatch, math.MaxInt
	alone := i.poller.OneJobWaits()
	if alone { // beside it no callback is run that might wait for its job
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
			i.begin(job, p) // which unlocks
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

// work runs job, and the n-1 others that wait, until one takes long. The time of one that came alone includes that in which it was taken in.
func (i *Inline[T]) work(p loop.Pass, job T, n int, trial *trial, maxTime time.Duration) {
	e, begun, over := i.e, p.Polled(), false
	if begun < 0 || trial != &i.alone {
		begun = i.poller.Now()
	}
	defer func() {
		if !over { // a job has ended the goroutine
			e.mu.Lock()
			e.running--
			e.startWaiting()
			e.mu.Unlock()
		}
	}()
	for left := n - 1; !over; left-- {
		e.opts.Run(job)
		if n >= minHalved && left == n/2 {
			i.poller.Flush() // the peer has something to do meanwhile
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

// A stay is a job of GiveLasting on the polling goroutine, for as long as it neither blocks nor takes long. Then the goroutine is the job's.
type stay[T comparable] struct {
	job  T
	pass loop.Pass
}

// begin runs a job of GiveLasting. It is called with the lock held, and lets it go.
func (i *Inline[T]) begin(job T, p loop.Pass) {
	e, begun := i.e, i.poller.Now()
	s := &stay[T]{job, p}
	i.stay.Store(s)
	e.stays++
	e.mu.Unlock()
	defer func() { // deferred: a job may end the goroutine
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

// leave ends the stay. Locked.
func (i *Inline[T]) leave() {
	i.stay.Store(nil)
	i.e.stays--
}

// Blocks says that a job of GiveLasting is about to wait, or that what it has queued waits for the polling goroutine: if it runs on that, another
// one polls from now on.
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

// relieve ends a stay, if there is one, once another goroutine polls, and returns the pass to keep then. Locked.
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

// A trial decides from the time that jobs have taken whether the next ones are run on the polling goroutine.
type trial struct {
	slow  int           // slowStep for each job that took long, less 1 for each that did not
	again time.Duration // none is run before
	pause time.Duration // the last one
}

const (
	// slowStep quick jobs offset one slow job. At maxSlow none is run for a while: that is reached
	// with more than one slow job in five, or three in a row.
	slowStep, maxSlow = 4, 12
	// A pause is twice as long as the one before when jobs were quick for no longer than that.
	firstPause, maxPause = 2 * time.Millisecond, time.Second
)

// allows reports whether jobs are run. The clock is read in a pause only.
func (t *trial) allows(clock Poller) bool { return t.again == 0 || clock.Now() >= t.again }

// judge takes down how long a job has run, unless it began in a pause: after others of the pass that has begun the pause.
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
