package bench

import (
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Workers are goroutines that run dispatched requests. One at most is being woken at a time; it wakes the next if there is more
// to do when it begins. So a batch of quick requests is run by one or two, which stay awake.
type Workers struct {
	all sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	queue  []hg.Request
	first  int             // of queue
	idle   []chan struct{} // each has one slot, and rings for who sleeps
	waking bool
	ended  bool
}

// NewWorkers starts them.
func NewWorkers() *Workers {
	w := &Workers{}
	for range 2 * runtime.GOMAXPROCS(0) {
		bell := make(chan struct{}, 1)
		w.idle = append(w.idle, bell)
		w.all.Go(func() { w.runWorker(bell) })
	}
	return w
}

// Dispatch is hg.Config.Dispatch: it never blocks.
func (w *Workers) Dispatch(r hg.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.queue); n == cap(w.queue) && w.first > n/2 {
		w.queue, w.first = append(w.queue[:0], w.queue[w.first:]...), 0
	}
	w.queue = append(w.queue, r)
	w.wakeOne()
}

// wakeOne wakes one more, if there is something to do. Locked.
func (w *Workers) wakeOne() {
	last := len(w.idle) - 1
	if w.waking || last < 0 || w.first == len(w.queue) {
		return
	}
	w.waking = true
	w.idle[last] <- struct{}{}
	w.idle = w.idle[:last]
}

func (w *Workers) runWorker(bell chan struct{}) {
	for range bell {
		w.mu.Lock()
		w.waking = false
		for w.first < len(w.queue) {
			r := w.queue[w.first]
			w.queue[w.first] = hg.Request{}
			if w.first++; w.first == len(w.queue) {
				w.queue, w.first = w.queue[:0], 0
			}
			w.wakeOne()
			w.mu.Unlock()
			_ = r.Run() // it may have ended before
			w.mu.Lock()
		}
		w.idle = append(w.idle, bell)
		if w.ended {
			close(bell)
		}
		w.mu.Unlock()
	}
}

// End waits for the handlers. Nothing is dispatched any more.
func (w *Workers) End() {
	w.mu.Lock()
	w.ended = true
	for _, bell := range w.idle {
		close(bell)
	}
	w.mu.Unlock()
	w.all.Wait()
}
