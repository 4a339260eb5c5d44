package quicksilver

import (
	"runtime"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// workers are the goroutines that run handlers. Quick handlers share a few, which take one request after the other: that is
// faster than to wake a goroutine for each. When all of these seem to be blocked more are let loose, up to Config.Workers. In
// the simulator each request has a coroutine.
//
//	dispatch ─ fewer than enough are busy ─► one that is idle, or a new one ─► Run ─► the next of the queue, or idle
//	    └───── else ─► queue ◄─ looked at each stuckTime: nobody has taken anything? then more are enough
type workers struct {
	n   *Node
	all sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	busy   int        // goroutines, the idle ones left out
	enough int        // of them are let loose; 0 before the first request
	idle   []chan hg.Incoming
	queue  []hg.Incoming
	first  int // of queue
	taken  int // from it, ever
	seen   int // taken, at the last look
	timer  *time.Timer
	looks  bool // timer is set
	ended  bool
}

const (
	// maxIdleWorkers bounds the goroutines that are kept.
	maxIdleWorkers = 64
	// stuckTime is how long a request waits for goroutines that are blocked, and at most twice that.
	stuckTime = 500 * time.Microsecond
)

// few is how many goroutines quick handlers share.
func few() int { return 2 * runtime.GOMAXPROCS(0) }

// dispatch is hg.Config.Dispatch.
func (w *workers) dispatch(r hg.Incoming) {
	if nctx := r.Queue().NA(); nctx.Scheduled() {
		nctx.Spawn(func() { _ = r.Run() })
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended: // the class has shut down: it answers by itself
	case w.busy < max(w.enough, min(few(), w.n.cfg.Workers)):
		w.start(r)
	default:
		w.queue = append(w.queue, r)
		if !w.looks && w.busy < w.n.cfg.Workers {
			w.looks, w.seen = true, w.taken
			if w.timer == nil {
				w.timer = time.AfterFunc(stuckTime, w.look)
			} else {
				w.timer.Reset(stuckTime)
			}
		}
	}
}

// start has a goroutine run r. Locked.
func (w *workers) start(r hg.Incoming) {
	w.busy++
	if last := len(w.idle) - 1; last >= 0 {
		w.idle[last] <- r // it has room for one
		w.idle = w.idle[:last]
		return
	}
	w.all.Go(func() { w.work(r) })
}

// look lets more goroutines loose if those that are seem to be blocked.
func (w *workers) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks = w.first < len(w.queue) && w.busy < w.n.cfg.Workers && !w.ended; !w.looks {
		return
	}
	if w.taken == w.seen {
		for w.first < len(w.queue) && w.busy < w.n.cfg.Workers {
			w.start(w.pop())
		}
		w.enough = w.busy
	}
	w.seen = w.taken
	w.timer.Reset(stuckTime)
}

// pop takes the oldest request of the queue. Locked.
func (w *workers) pop() hg.Incoming {
	r := w.queue[w.first]
	w.queue[w.first] = hg.Incoming{}
	w.taken++
	if w.first++; w.first == len(w.queue) {
		w.queue, w.first = w.queue[:0], 0
	}
	return r
}

// work runs requests until too many goroutines are idle.
func (w *workers) work(r hg.Incoming) {
	in := make(chan hg.Incoming, 1)
	over := false
	defer func() {
		if !over { // a handler has ended this goroutine
			w.mu.Lock()
			w.busy--
			if w.first < len(w.queue) {
				w.start(w.pop())
			}
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
	if w.timer != nil {
		w.timer.Stop()
	}
}
