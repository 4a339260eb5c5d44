package main

import (
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// maxActive is how many requests a class gives to Config.Dispatch at a time: the default of hg.Config.MaxActive.
const maxActive = 1024

// workers are goroutines that run dispatched requests.
type workers struct {
	queue chan hg.Incoming
	all   sync.WaitGroup
}

func newWorkers() *workers {
	w := &workers{queue: make(chan hg.Incoming, maxActive)}
	for range 2 * runtime.GOMAXPROCS(0) {
		w.all.Go(w.work)
	}
	return w
}

func (w *workers) work() {
	for r := range w.queue {
		_ = r.Run() // it may have ended before
	}
}

// dispatch never blocks: the queue has room for all that are active.
func (w *workers) dispatch(r hg.Incoming) { w.queue <- r }

// end waits for the handlers. Nothing is dispatched any more.
func (w *workers) end() {
	close(w.queue)
	w.all.Wait()
}
