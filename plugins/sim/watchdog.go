package sim

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// A watchdog detects a coroutine that runs for too long in real time. Such a coroutine is usually
// blocked on another one, which cannot run at the same time.
type watchdog struct {
	steps   atomic.Uint64             // number of times that a coroutine was resumed
	running atomic.Pointer[coroutine] // the running coroutine
}

// watchSteps is the number of consecutive checks without progress after which the watchdog reports.
const watchSteps = 5

// startWatchdog starts the watchdog, which runs until stop is called.
func (w *World) startWatchdog() (stop func()) {
	if w.cfg.Patience < 0 {
		return func() {}
	}
	over := make(chan struct{})
	go w.watchUntil(over)
	return func() { over <- struct{}{} }
}

func (w *World) watchUntil(over chan struct{}) {
	look := time.NewTicker(w.cfg.Patience / watchSteps)
	defer look.Stop()
	for seen, looks := uint64(0), 0; ; {
		select {
		case <-over:
			return
		case <-look.C:
		}
		if c, steps := w.watchdog.running.Load(), w.watchdog.steps.Load(); c == nil || steps != seen {
			seen, looks = steps, 0
		} else if looks++; looks == watchSteps {
			w.reportBlocked(c)
		}
	}
}

// reportBlocked writes the name and the stack of c, which blocks the world, to Config.Log.
func (w *World) reportBlocked(c *coroutine) {
	out := w.cfg.Log
	if out == nil {
		out = os.Stderr
	}
	_, _ = fmt.Fprintf(out, "sim: seed %d: coroutine %s has not yielded for %v; if it waits for another coroutine on a channel or mutex, "+
		"it blocks forever, since coroutines run one at a time; wait with Call, Context.Wait or World.Sleep instead\n%s\n",
		w.cfg.Seed, c.name, w.cfg.Patience, c.stackTrace())
}

// runBody runs f. It puts the address of c on the goroutine's stack, where stackTrace finds it.
//
//go:noinline
func (c *coroutine) runBody(f func()) {
	f()
	runtime.KeepAlive(c)
}

// isCoroutine reports whether the calling goroutine is a coroutine of any World.
func isCoroutine() bool {
	pcs := make([]uintptr, 64)
	for skip := 1; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			if f, more = frames.Next(); strings.HasSuffix(f.Function, "sim.(*coroutine).runBody") {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

// stackTrace returns the stack of c, which may be running.
func (c *coroutine) stackTrace() []byte {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	mark := fmt.Appendf(nil, "(*coroutine).runBody(%p", c)
	for one := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.Contains(one, mark) {
			return one
		}
	}
	return []byte("its stack was not found")
}
