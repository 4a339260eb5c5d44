package quicksilver

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// workers are the goroutines that run handlers: as many as there are requests, up to Config.Workers. Some that have nothing to do are
// kept. In the simulator each request has a coroutine.
type workers struct {
	n   *Node
	all sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	busy  int        // goroutines, the idle ones left out
	idle  []chan hg.Incoming
	queue []hg.Incoming // beyond Config.Workers
	first int           // of them
	ended bool
}

// maxIdleWorkers bounds the goroutines that are kept.
const maxIdleWorkers = 64

// dispatch is hg.Config.Dispatch.
func (w *workers) dispatch(r hg.Incoming) {
	if nctx := r.Queue().NA(); nctx.Scheduled() {
		nctx.Spawn(func() { _ = r.Run() })
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.idle) - 1
	switch {
	case w.ended: // the class has shut down: it answers by itself
	case w.busy >= w.n.cfg.Workers:
		w.queue = append(w.queue, r)
	case last >= 0:
		w.busy++
		w.idle[last] <- r
		w.idle = w.idle[:last]
	default:
		w.busy++
		w.all.Go(func() { w.work(r) })
	}
}

// work runs requests until too many goroutines are idle.
func (w *workers) work(r hg.Incoming) {
	in := make(chan hg.Incoming, 1)
	over := false
	defer func() {
		if !over { // a handler has ended this goroutine
			w.mu.Lock()
			w.busy--
			w.mu.Unlock()
		}
	}()
	for ok := true; ok; {
		_ = r.Run() // it may have ended before
		if r, ok = w.next(in); !ok {
			r, ok = <-in
		}
	}
	over = true
}

// next returns the next request in the queue, or has in receive one; it is closed when there is none to come.
func (w *workers) next(in chan hg.Incoming) (r hg.Incoming, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first < len(w.queue) {
		r = w.queue[w.first]
		w.queue[w.first] = hg.Incoming{}
		if w.first++; w.first == len(w.queue) {
			w.queue, w.first = w.queue[:0], 0
		}
		return r, true
	}
	w.busy--
	if w.ended || len(w.idle) >= maxIdleWorkers {
		close(in)
	} else {
		w.idle = append(w.idle, in)
	}
	return r, false
}

// end lets the goroutines go.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for _, in := range w.idle {
		close(in)
	}
	w.idle, w.queue, w.first = nil, nil, 0
}
