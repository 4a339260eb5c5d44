package bench

import (
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Workers is a pool of goroutines that run dispatched requests. At most one goroutine is being woken at a time. When it
// starts to run and more requests are queued, it wakes the next goroutine. A few quick requests are therefore run by
// one or two goroutines, while the others continue to sleep.
type Workers struct {
	all sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	queue  []hg.Request
	first  int             // index of the first request in queue
	idle   []chan struct{} // channels on which idle goroutines wait, each with capacity 1; a send wakes the goroutine
	waking bool
	ended  bool
}

// NewWorkers starts a pool of 2 × GOMAXPROCS goroutines.
func NewWorkers() *Workers {
	w := &Workers{}
	for range 2 * runtime.GOMAXPROCS(0) {
		bell := make(chan struct{}, 1)
		w.idle = append(w.idle, bell)
		w.all.Go(func() { w.runWorker(bell) })
	}
	return w
}

// Dispatch queues a request and never blocks. It is intended for hg.Config.Dispatch.
func (w *Workers) Dispatch(r hg.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.queue); n == cap(w.queue) && w.first > n/2 {
		w.queue, w.first = append(w.queue[:0], w.queue[w.first:]...), 0
	}
	w.queue = append(w.queue, r)
	w.wakeWorkerLocked()
}

// wakeWorkerLocked wakes an idle goroutine if a request is queued and no other goroutine is being woken.
// The caller must hold w.mu.
func (w *Workers) wakeWorkerLocked() {
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
			w.wakeWorkerLocked()
			w.mu.Unlock()
			_ = r.Run() // ignore the error, because the request may already have been completed
			w.mu.Lock()
		}
		w.idle = append(w.idle, bell)
		if w.ended {
			close(bell)
		}
		w.mu.Unlock()
	}
}

// End waits until all dispatched requests have run and the goroutines have returned. No request may be dispatched
// afterward.
func (w *Workers) End() {
	w.mu.Lock()
	w.ended = true
	for _, bell := range w.idle {
		close(bell)
	}
	w.mu.Unlock()
	w.all.Wait()
}
