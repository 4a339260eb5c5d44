package sim

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A watchdog looks, in real time, whether a coroutine has run for too long: it waits for another, which cannot run meanwhile.
type watchdog struct {
	steps atomic.Uint64             // times that a coroutine was resumed
	busy  atomic.Pointer[coroutine] // that runs

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	seen  uint64 // steps, at the last look
	looks int    // at which they were the same
}

// watchLooks is how often the watchdog looks before it says something.
const watchLooks = 5

// watch has the watchdog look until stop is called.
func (w *World) watch() (stop func()) {
	d := &w.watchdog
	if w.cfg.Patience < 0 {
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks = 0
	timer := time.AfterFunc(w.cfg.Patience/watchLooks, w.watched)
	d.timer = timer
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		timer.Stop()
		d.timer = nil
	}
}

func (w *World) watched() {
	d := &w.watchdog
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		return
	}
	c, steps := d.busy.Load(), d.steps.Load()
	if c == nil || steps != d.seen {
		d.seen, d.looks = steps, 0
	} else if d.looks++; d.looks == watchLooks {
		w.complain(c)
	}
	d.timer.Reset(w.cfg.Patience / watchLooks)
}

// complain says which coroutine keeps the world, and where.
func (w *World) complain(c *coroutine) {
	out := w.cfg.Log
	if out == nil {
		out = os.Stderr
	}
	_, _ = fmt.Fprintf(out, "sim: seed %d: coroutine %s has not yielded for %v: if it waits for another coroutine, on a channel or a mutex, "+
		"it waits for ever, since coroutines run one at a time; wait with Call, Context.Wait or World.Sleep instead\n%s\n",
		w.cfg.Seed, c.name, w.cfg.Patience, c.trace())
}

// body runs f. It stands in the stack of its goroutine, with the address of c.
//
//go:noinline
func (c *coroutine) body(f func()) {
	f()
	runtime.KeepAlive(c)
}

// trace returns the stack of c, which may be running.
func (c *coroutine) trace() []byte {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	mark := fmt.Appendf(nil, "(*coroutine).body(%p", c)
	for one := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.Contains(one, mark) {
			return one
		}
	}
	return []byte("its stack was not found among those of all goroutines")
}
