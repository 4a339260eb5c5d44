package qs

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// workers are the goroutines that run handlers, up to Config.MaxConcurrent, and one for each request with streams. In the simulator each request has a coroutine.
type workers struct {
	crew[hg.Request]
	own []own // of each context; mu guards their trials

	// health runs requests of hg.PingRPC and hg.HealthRPC, about which an authorizer is asked: they do not wait for handlers.
	health  crew[hg.Request]
	isAsked bool // the node has an authorizer
}

// maxHealthWorkers bounds the goroutines of workers.health.
const maxHealthWorkers = 16

func (w *workers) init(n *Node) {
	w.run, w.most = func(r hg.Request) { _ = r.Run() }, n.cfg.MaxConcurrent // it may have ended before
	w.over = func(r hg.Request) bool { return r.Name() == "" }
	w.health.run, w.health.most, w.health.over = w.run, maxHealthWorkers, w.over
	w.isAsked = n.cfg.Authorize != nil || n.cfg.HG.Authorize != nil
	w.own = make([]own, n.cfg.Contexts)
}

var pingID, healthID = hg.HashName(hg.PingRPC), hg.HashName(hg.HealthRPC)

// dispatch is hg.Config.Dispatch.
func (w *workers) dispatch(r hg.Request) {
	if nctx := r.HG().NA(); nctx.Scheduled() {
		nctx.Spawn(func() { w.run(r) })
		return
	}
	if w.isAsked {
		if id := r.ID(); id == pingID || id == healthID {
			w.health.give(r, false)
			return
		}
	}
	w.give(r, r.HG().NA().Upper().Loop().Driving())
}

// end lets the goroutines of both crews go.
func (w *workers) end() {
	w.crew.end()
	w.health.end()
}

// wait waits until they have gone, after end.
func (w *workers) wait() {
	w.all.Wait()
	w.health.all.Wait()
}

// apart has a request with streams run on a goroutine of its own: it may last for ever.
func (w *workers) apart(r hg.Request) {
	if nctx := r.HG().NA(); nctx.Scheduled() {
		nctx.Spawn(func() { w.run(r) })
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.all.Go(func() { w.run(r) })
	}
}

// A crew runs jobs on goroutines. Quick jobs share a few, which take one after the other: that is faster than to wake a goroutine for
// each. When a job has waited for too long, more are let loose.
//
//	give ─ fewer than enough are busy ─► one that is idle, or a new one ─► run ─► the next of the queue, or idle
//	  └───── else ─► queue ◄─ looked at each lookTime: has the oldest waited for so long? then twice as many are enough
type crew[T any] struct {
	run  func(T)
	over func(T) bool // reports whether a job in the queue need not run any more; may be nil
	most int          // goroutines

	all sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	busy   int        // goroutines, the idle ones left out
	enough int        // of them are let loose; 0 before the first job
	keep   int        // of the queue give leaves so many to own.pass, which runs them after its callbacks; one at once
	idle   []chan T
	queue  []T
	first  int // of queue
	sweep  int // when the queue is so long, jobs that are over leave it
	timer  *time.Timer
	looks  bool // timer is set
	ended  bool

	taken    int // from the queue, ever
	given    int // to it, ever
	before   int // given, at the last look: what came before has waited for lookTime
	rate     int // jobs taken in the time before the last look
	seen     int // taken, at the last look
	grownFor int // looks since more were let loose
}

const (
	// maxIdle bounds the goroutines that are kept.
	maxIdleWorkers = 64
	// lookTime is how long a job waits before more goroutines may be let loose, and at most twice that.
	lookTime = 500 * time.Microsecond
	// uselessLooks is how many looks go by before even more are let loose when the last did not bring more jobs to their end: it is
	// processors that are short, not goroutines, or so it seems.
	uselessLooks = 10
	// sweepFirst is how many jobs that are over may stay in the queue; else no more than wait.
	sweepFirst = 1024
)

// few is how many goroutines quick jobs share.
func few() int { return 2 * runtime.GOMAXPROCS(0) }

// give has a job run soon. One that may be kept waits for own.pass, if that wants it.
func (w *crew[T]) give(job T, mayKeep bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended: // the class has shut down: it answers by itself
	case w.busy < max(w.enough, min(few(), w.most)) && (!mayKeep || w.waiting() >= w.keep):
		w.start(job)
	default:
		if len(w.queue) >= max(w.sweep, sweepFirst) {
			w.dropOver()
		}
		w.queue = append(w.queue, job)
		w.given++
		if !w.looks && w.busy < w.most && !(mayKeep && w.keep == 1) {
			w.looks, w.seen, w.rate, w.before = true, w.taken, 0, w.given
			if w.timer == nil {
				w.timer = time.AfterFunc(lookTime, w.look)
			} else {
				w.timer.Reset(lookTime)
			}
		}
	}
}

// dropOver takes the jobs that are over out of the queue: requests that were taken back, or whose time is up, have no place at the
// target any more, so nothing else bounds them. Locked.
func (w *crew[T]) dropOver() {
	if w.over != nil {
		waits := slices.DeleteFunc(w.queue[w.first:], w.over)
		w.queue = append(w.queue[:0], waits...)
		clear(w.queue[len(w.queue):cap(w.queue)])
		w.first = 0
	}
	w.sweep = 2 * len(w.queue)
}

// waiting returns how many jobs are in the queue. Locked.
func (w *crew[T]) waiting() int { return len(w.queue) - w.first }

// startWaiting has goroutines run jobs of the queue, as give would. Locked.
func (w *crew[T]) startWaiting() {
	for w.first < len(w.queue) && w.busy < min(few(), w.most) {
		w.start(w.pop())
	}
}

// start has a goroutine run a job. Locked.
func (w *crew[T]) start(job T) {
	w.busy++
	if last := len(w.idle) - 1; last >= 0 {
		w.idle[last] <- job // it has room for one
		w.idle = w.idle[:last]
		return
	}
	w.all.Go(func() { w.work(job) })
}

// spawn runs f on a goroutine of w that end does not end, and that all waits for. It reports false once w has ended.
func (w *crew[T]) spawn(f func()) bool {
	w.mu.Lock() // all is waited for once w has ended
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	w.all.Go(f)
	return true
}

// look lets more goroutines loose if a job that was there at the last look still waits. If nothing was taken since, all are
// blocked, and each job that waits gets one.
func (w *crew[T]) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks = w.first < len(w.queue) && w.busy < w.most && !w.ended; !w.looks {
		return
	}
	took := w.taken - w.seen
	w.grownFor++
	switch {
	case took == 0:
		w.grow(len(w.queue))
	case w.taken < w.before && (took > w.rate+w.rate/4 || w.grownFor >= uselessLooks):
		w.grow(w.busy)
	}
	w.rate, w.seen, w.before = took, w.taken, w.given
	w.timer.Reset(lookTime)
}

// grow lets up to n more goroutines loose. Locked.
func (w *crew[T]) grow(n int) {
	w.grownFor = 0
	for ; n > 0 && w.first < len(w.queue) && w.busy < w.most; n-- {
		w.start(w.pop())
	}
	w.enough = w.busy
}

// pop takes the oldest job of the queue. Locked.
func (w *crew[T]) pop() T {
	var none T
	job := w.queue[w.first]
	w.queue[w.first] = none
	w.taken++
	if w.first++; w.first == len(w.queue) {
		w.queue, w.first = w.queue[:0], 0
	}
	return job
}

// work runs jobs until too many goroutines are idle.
func (w *crew[T]) work(job T) {
	in := make(chan T, 1)
	over := false
	defer func() {
		if !over { // a job has ended this goroutine
			w.mu.Lock()
			w.busy--
			if w.first < len(w.queue) {
				w.start(w.pop())
			}
			w.mu.Unlock()
		}
	}()
	for ok := true; ok; {
		w.run(job)
		if job, ok = w.next(in); !ok {
			job, ok = <-in
		}
	}
	over = true
}

// next returns the next job in the queue, or has in receive one; it is closed when there is none to come.
func (w *crew[T]) next(in chan T) (job T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first < len(w.queue) {
		return w.pop(), true
	}
	w.busy--
	if w.busy < w.enough/2 {
		w.enough-- // they are not blocked any more
	}
	if w.ended || len(w.idle) >= maxIdleWorkers {
		close(in)
	} else {
		w.idle = append(w.idle, in)
	}
	return job, false
}

// end lets the goroutines go.
func (w *crew[T]) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, in := range w.idle {
		close(in)
	}
	w.idle, w.queue, w.first = nil, nil, 0
	if w.timer != nil {
		w.timer.Stop()
	}
}

// An own runs the handlers that the goroutine which drives a context runs itself, if they are quick: that costs no switch to a worker. While
// callbacks run, the requests among them wait in the queue of the workers. Then the goroutine takes them from there, as a worker, one after
// the other, if no other handler is at work. Another goroutine stands by, and leads when that takes long, and workers take what still waits,
// also while a callback takes long. When handlers turn out to take longer than what the switch costs, workers run all of them for a while.
// A lone request, which comes with nothing else, has more time; beside it no callback is run that might wait for its handler. What another
// goroutine takes in, or a wait inside a callback, goes to workers at once.
//
//	Serve ─► two goroutines in hghook.Drive: one leads, the other sleeps
//	           └─ pass ─► callbacks; requests wait in the queue ─► their handlers, here or on workers
type own struct {
	w              *workers
	hctx           *hg.Context
	lone, together trial // of lone requests, and of others
}

func (o *own) init(w *workers, hctx *hg.Context) { o.w, o.hctx = w, hctx }

// A trial is what has become of handlers that the goroutine which drives has run.
type trial struct {
	slow  int           // by slowStep for one that took long, less 1 for each that did not
	again time.Duration // none is run before
	pause time.Duration // that this was the last time
}

const (
	// quickTime is how long a lone handler may take, with a body that it decodes, quickEach those that come together, each; where one of
	// these takes longer than longTime workers take the others.
	quickTime, quickEach, longTime = 100 * time.Microsecond, 5 * time.Microsecond, 50 * time.Microsecond
	// slowStep that are quick make good for one that is not. At slowMost workers run all: for one in five, or three in a row.
	slowStep, slowMost = 4, 12
	// The bounds of trial.pause. It grows when handlers were quick for no longer than it.
	firstPause, lastPause = 2 * time.Millisecond, time.Second
	// halves is from how many on the answers of the first half leave before the others are there.
	halves = 12
)

// may reports whether handlers are run.
func (k *trial) may(hctx *hg.Context) bool { return k.again == 0 || hctx.Now() >= k.again }

// judge notes how long one has taken, and whether that was quick.
func (k *trial) judge(quick, begun, now time.Duration) {
	if now-begun <= quick {
		k.slow = max(k.slow-1, 0)
		return
	}
	if k.slow += slowStep; k.slow < slowMost {
		return
	}
	k.slow = 0
	if k.pause = min(2*k.pause, lastPause); k.pause == 0 || begun-k.again > k.pause {
		k.pause = firstPause
	}
	k.again = now + k.pause
}

// pass runs callbacks, and then handlers of requests that have come with them.
func (o *own) pass(run func(one bool)) {
	w := o.w
	nctx := o.hctx.NA()
	alone := nctx.Upper().Arrived() && nctx.Upper().Queued() == 1
	k, quick, keep := &o.together, quickEach, math.MaxInt
	if alone {
		k, quick, keep = &o.lone, quickTime, 1
	}
	w.mu.Lock()
	here := w.busy == 0 && k.may(o.hctx)
	if w.keep = 0; here {
		w.keep = keep
	}
	w.mu.Unlock()
	run(alone)
	w.mu.Lock()
	w.keep = 0
	many := w.waiting()
	if many == 0 || w.busy > 0 || !here {
		w.startWaiting()
		w.mu.Unlock()
		return
	}
	w.busy++
	job := w.pop()
	w.mu.Unlock()
	o.work(job, many, k, quick)
}

// work runs a job of so many, and those that wait, as a worker, until one takes long.
func (o *own) work(job hg.Request, many int, k *trial, quick time.Duration) {
	w, begun, over := o.w, o.hctx.Now(), false
	defer func() {
		if !over { // a handler has ended the goroutine
			w.mu.Lock()
			w.busy--
			w.startWaiting()
			w.mu.Unlock()
		}
	}()
	for left := many - 1; !over; left-- {
		_ = job.Run() // it may have ended before
		if many >= halves && left == many/2 {
			o.hctx.NA().Upper().Flush() // the peer has something to do meanwhile
		}
		now := o.hctx.Now()
		w.mu.Lock()
		k.judge(quick, begun, now)
		if over = w.waiting() == 0 || now-begun > longTime; over {
			w.busy--
			w.startWaiting()
		} else {
			job, begun = w.pop(), now
		}
		w.mu.Unlock()
	}
}
