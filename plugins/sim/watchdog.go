package sim

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// A watchdog looks, in real time, whether a coroutine has run for too long: it waits for another, which cannot run meanwhile.
type watchdog struct {
	steps atomic.Uint64             // times that a coroutine was resumed
	busy  atomic.Pointer[coroutine] // that runs
}

// watchLooks is how often the watchdog looks before it says something.
const watchLooks = 5

// watch has the watchdog look until stop is called.
func (w *World) watch() (stop func()) {
	if w.cfg.Patience < 0 {
		return func() {}
	}
	over := make(chan struct{})
	go w.watchUntil(over)
	return func() { over <- struct{}{} }
}

func (w *World) watchUntil(over chan struct{}) {
	look := time.NewTicker(w.cfg.Patience / watchLooks)
	defer look.Stop()
	for seen, looks := uint64(0), 0; ; {
		select {
		case <-over:
			return
		case <-look.C:
		}
		if c, steps := w.watchdog.busy.Load(), w.watchdog.steps.Load(); c == nil || steps != seen {
			seen, looks = steps, 0
		} else if looks++; looks == watchLooks {
			w.complain(c)
		}
	}
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
