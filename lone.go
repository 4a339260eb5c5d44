package quicksilver

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A lone request is one that comes alone, with no callback that waits, while no handler is at work. The goroutine that drives its context
// runs the handler by itself: that costs no switch to a worker. Another one stands by, and leads when that takes long; then workers run all
// handlers for a while.
//
//	Serve ─► two goroutines in hg.Context.Drive: one leads, the other sleeps
//	           └─ a batch ─ it is one request, and no handler is at work ─► its handler
//	                      └─ else ─► callbacks, and workers
//
// Nothing else is run between the two: it might wait for the handler.
type lone struct {
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

// batch runs callbacks, or the handler of a lone request, which it keeps in r.
func (n *Node) batch(i int, r *hg.Incoming, run func(*hg.Incoming)) {
	w, k := &n.workers, &n.workers.lone[i]
	w.mu.Lock()
	may := w.busy == 0 && (k.again == 0 || n.now() >= k.again)
	w.mu.Unlock()
	if !may {
		run(nil)
		return
	}
	*r = hg.Incoming{}
	if run(r); *r == (hg.Incoming{}) {
		return
	}
	if !w.counts() {
		w.give(*r)
		return
	}
	begun := n.now()
	defer func() { w.ran(k, n.now(), begun) }() // deferred: a handler may end the goroutine
	w.run(*r)
}

// counts counts the caller as a worker, unless there are enough.
func (w *workers) counts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy >= w.most {
		return false
	}
	w.busy++
	return true
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
