package quicksilver

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A lone request is one that comes alone while no handler is at work. The goroutine that drives its context runs the handler by itself:
// that costs no switch to a worker. Another one stands by, and leads when that takes long; then workers run all handlers for a while.
//
//	Serve ─► two goroutines in hg.Context.Drive: one leads, the other sleeps
//	           └─ a batch of callbacks ─ it dispatched one request, and no handler is at work ─► its handler
//	                                   └─ else ─► workers
type lone struct {
	opens bool // a batch is being run, and so far
	has   bool // r alone was dispatched in it
	r     hg.Incoming
	slow  int           // by slowStep for a handler that took long, less 1 for each that did not
	again time.Duration // no handler is run here before
	pause time.Duration // that this was the last time
}

const (
	// quickTime is how long a handler may take that the goroutine which drives runs.
	quickTime = 50 * time.Microsecond
	// slowStep handlers that are quick make good for one that is not. At slowMost workers run all: for one in five, or three in a row.
	slowStep, slowMost = 4, 12
	// The bounds of lone.pause. It grows when handlers were quick for no longer than it.
	lonePause, maxLonePause = 2 * time.Millisecond, time.Second
)

// aside keeps a request for the goroutine that drives, if it may be a lone one.
func (w *workers) aside(r hg.Incoming) bool {
	w.mu.Lock()
	k := &w.lone[r.Queue().ID()]
	was, first := *k, k.opens && !k.has
	k.opens, k.has, k.r = first, first, hg.Incoming{}
	if first {
		k.r = r
	}
	w.mu.Unlock()
	if was.has {
		w.give(was.r)
	}
	return first
}

// batch runs callbacks, and the handler of a lone request.
func (n *Node) batch(i int, run func()) {
	w, k := &n.workers, &n.workers.lone[i]
	w.mu.Lock()
	k.opens = w.busy == 0 && (k.again == 0 || n.now() >= k.again)
	w.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // a callback has ended the goroutine
			if r, ok := w.endBatch(k, false); ok {
				w.give(r)
			}
		}
	}()
	run()
	r, ok := w.endBatch(k, true)
	returned = true
	if ok {
		begun := n.now()
		defer func() { w.ran(k, n.now(), begun) }() // deferred: a handler may end the goroutine
		w.run(r)
	}
}

// endBatch ends a batch, and returns its lone request. If runs, the caller runs it: it is counted as a worker.
func (w *workers) endBatch(k *lone, runs bool) (r hg.Incoming, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok = k.r, k.has
	k.opens, k.has, k.r = false, false, hg.Incoming{}
	if ok && runs {
		w.busy++
	}
	return r, ok
}

// ran is the end of a handler that the goroutine which drives has run.
func (w *workers) ran(k *lone, now, begun time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if w.first < len(w.queue) {
		w.start(w.pop())
	}
	if now-begun <= quickTime {
		k.slow = max(k.slow-1, 0)
		return
	}
	if k.slow += slowStep; k.slow < slowMost {
		return
	}
	k.slow = 0
	if k.pause = min(2*k.pause, maxLonePause); k.pause == 0 || begun-k.again > k.pause {
		k.pause = lonePause
	}
	k.again = now + k.pause
}
