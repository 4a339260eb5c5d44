package qs

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Requests whose handlers are quick are run by the goroutine that drives their context: that costs no switch to a worker. These are a
// lone one, which comes with no callback that waits, and those that come together, one after the other; in both cases while no handler is
// at work. Another goroutine stands by, and leads when that takes long, and workers take what still waits. When handlers turn out to take
// longer than what the switch costs, workers run all of them for a while.
//
//	Serve ─► two goroutines in hghook.Drive: one leads, the other sleeps
//	           └─ a batch ─┬─ it is one request ─► its handler
//	                       └─ else ─► callbacks; the requests among them wait in the queue of the workers ─► their handlers, as a worker
//
// Beside a lone one nothing else is run between the two: it might wait for the handler.
type own struct{ lone, together trial }

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

// batch runs callbacks, or takes a lone request in, to r, and then runs handlers.
func (n *Node) batch(hctx *hg.Context, r *hg.Request, run func(lone any)) {
	w, k := &n.workers, &n.workers.own[hctx.ID()]
	w.mu.Lock()
	lone := w.busy == 0 && k.lone.may(hctx)
	w.held = w.busy == 0 && k.together.may(hctx)
	w.mu.Unlock()
	if *r = (hg.Request{}); lone {
		run(r)
	} else {
		run(nil)
	}
	w.mu.Lock()
	w.held = false
	waiting := len(w.queue) - w.first
	switch {
	case *r != (hg.Request{}) && w.busy < w.most:
		w.busy++
		w.mu.Unlock()
		w.here(hctx, *r, 1, &k.lone, quickTime)
	case *r != (hg.Request{}):
		w.mu.Unlock()
		w.give(*r)
	case waiting > 0 && w.busy == 0:
		w.busy++
		first := w.pop()
		w.mu.Unlock()
		w.here(hctx, first, waiting, &k.together, quickEach)
	default:
		w.mu.Unlock()
	}
}

// here runs a job of so many, and those that wait, as a worker, until one takes long.
func (w *workers) here(hctx *hg.Context, job hg.Request, many int, k *trial, quick time.Duration) {
	begun := hctx.Now()
	defer func() { // deferred: a handler may end the goroutine
		w.mu.Lock()
		defer w.mu.Unlock()
		k.judge(quick, begun, hctx.Now())
		w.busy--
		for w.first < len(w.queue) && w.busy < min(few(), w.most) {
			w.start(w.pop())
		}
	}()
	for left := many - 1; ; left-- {
		w.run(job)
		if many >= halves && left == many/2 {
			hctx.NA().Flush() // the peer has something to do meanwhile
		}
		now := hctx.Now()
		w.mu.Lock()
		if w.first == len(w.queue) || now-begun > longTime {
			w.mu.Unlock()
			return
		}
		k.judge(quick, begun, now)
		job, begun = w.pop(), now
		w.mu.Unlock()
	}
}
