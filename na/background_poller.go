package na

import (
	"sync/atomic"
	"time"
)

// A backgroundPoller polls a context while no other goroutine does. It receives frames, responds
// to heartbeats, and serves puts and gets. It never runs user code. Its single goroutine parks
// behind a gate. Received bytes wake the goroutine only while the gate is open.
//
// While a leader sleeps in the context's poller, the background poller is parked with its gate
// shut, because received bytes wake the leader. When the leader wakes, the gate is opened. Once a
// byte arrives, the background poller ticks: every 2 ms it checks whether another goroutine has
// polled since the previous tick. If none has, the background poller polls once, arms the inlets,
// and parks with its gate open again.
//
// When a leader wakes after a short sleep or with disarmed inlets, and when frames are held back,
// the background poller starts to tick without waiting for a byte. While ticking, it does not use
// the gate, because each opening or shutting costs a system call.
type backgroundPoller struct {
	nctx *Context
	gate pollGate
	quit atomic.Bool
}

// A pollGate parks the goroutine of a background poller. All methods except park and sleepFor are
// safe for concurrent use.
type pollGate interface {
	// park blocks until the context's poller becomes ready while the gate is open, until wake is
	// called, or until the alarm expires. Readiness also shuts the gate. If wake was called before
	// park, park returns immediately. It returns false once close has been called.
	park() bool
	// sleepFor blocks for d.
	sleepFor(d time.Duration)
	open()
	shut()
	wake()
	alarm(d time.Duration)
	close()
}

// States of the background poller. Context.watch combines one of them with the leaderAsleep bit, so
// that both change atomically.
const (
	backgroundShut  int32 = 0 // parked, gate shut
	backgroundOpen  int32 = 1 // parked, gate open, inlets armed
	backgroundTicks int32 = 2 // ticking

	leaderAsleep int32 = 4 // set while a leader sleeps in the poller
)

// backgroundAfter is how long a context must go without being polled before the background poller
// polls it.
const backgroundAfter = 2 * time.Millisecond

func newBackgroundPoller(c *Context) (*backgroundPoller, error) {
	g, err := newGate(c.poller)
	if g == nil {
		return nil, err
	}
	c.watch.Store(backgroundOpen)
	return &backgroundPoller{nctx: c, gate: g}, nil
}

// start starts the background poller's goroutine. Before start is called, only detach may be
// called.
func (a *backgroundPoller) start() {
	if a == nil {
		return
	}
	if len(a.nctx.poller.inlets) > 0 {
		a.startTicking() // the inlets are not yet armed
	}
	go a.run()
}

// detach releases a background poller that has not been started.
func (a *backgroundPoller) detach() {
	if a != nil {
		a.gate.close()
	}
}

// leaderSleeps is called when a leader is about to sleep in the poller. It shuts the gate, because
// received bytes then wake the leader instead.
func (a *backgroundPoller) leaderSleeps() {
	if a != nil && a.nctx.watch.CompareAndSwap(backgroundOpen|leaderAsleep, backgroundShut|leaderAsleep) {
		a.gate.shut()
	}
}

// leaderWakes is called when the leader wakes, after which the leader may run user code. It opens
// the gate, or makes the background poller tick if the sleep was short or the inlets are no longer
// armed.
func (a *backgroundPoller) leaderWakes(slept time.Duration, disarmed bool) {
	switch {
	case a == nil:
	case disarmed || slept < backgroundAfter:
		a.startTicking()
	case a.nctx.watch.CompareAndSwap(backgroundShut, backgroundOpen):
		a.gate.open()
	}
}

// startTicking makes the background poller tick until a tick finds that no other goroutine has
// polled since the previous one. Ticking is needed because bytes can arrive, or frames can be held
// back, without waking any goroutine.
func (a *backgroundPoller) startTicking() {
	if a != nil && a.nctx.watch.Load()&^leaderAsleep != backgroundTicks && a.setState(backgroundTicks) != backgroundTicks {
		a.gate.wake()
	}
}

// setState sets the state of the background poller and returns the previous state.
func (a *backgroundPoller) setState(next int32) (was int32) {
	for w := &a.nctx.watch; ; {
		if old := w.Load(); w.CompareAndSwap(old, old&leaderAsleep|next) {
			return old &^ leaderAsleep
		}
	}
}

// stop makes the goroutine exit, without waiting for it. The caller may close the context's poller
// after stop has returned.
func (a *backgroundPoller) stop() {
	if a == nil {
		return
	}
	a.quit.Store(true)
	a.gate.close()
}

// run is the body of the background poller's goroutine.
func (a *backgroundPoller) run() {
	c := a.nctx
	var seen uint64 // value of Context.passes at the last poll
	for !a.quit.Load() && a.gate.park() {
		ticking := a.setState(backgroundTicks) == backgroundTicks
		for {
			if !ticking && c.passes.Load() == seen && a.runWhileFree() {
				break
			}
			ticking = false
			before := c.passes.Load()
			a.gate.sleepFor(backgroundAfter)
			if a.quit.Load() {
				return
			}
			if c.passes.Load() != before {
				continue
			}
			if c.watch.CompareAndSwap(backgroundTicks|leaderAsleep, backgroundShut|leaderAsleep) {
				// Frames may have been held back before the sleep without another call to
				// startTicking.
				c.Upper().Flush()
				break
			}
			if a.runWhileFree() {
				break
			}
		}
		seen = c.passes.Load()
	}
}

// runWhileFree polls until nothing is ready, releasing the lead between rounds, and then opens the
// gate. It stops early if another goroutine leads. It reports whether the goroutine may park.
func (a *backgroundPoller) runWhileFree() bool {
	for a.nctx.loop.TryLead() {
		if a.driveOnce() {
			return true
		}
	}
	return false
}

// driveOnce polls once and reports whether it left the gate open. The caller must hold the lead,
// which driveOnce releases.
func (a *backgroundPoller) driveOnce() bool {
	c := a.nctx
	defer c.loop.Unlead()
	if c.state.Load() == ctxReleased {
		return true
	}
	now := c.Now()
	c.pollAll(now)
	c.nudged.Store(false)
	if next := c.ep.Poll(now); next != 0 {
		a.gate.alarm(max(next-now, 0))
	}
	if c.poller.arm() {
		return false
	}
	a.setState(backgroundOpen)
	if c.nudged.Load() { // pollSoon was called after Poll, while the background poller was ticking
		a.setState(backgroundTicks)
		return false
	}
	a.gate.open()
	c.Upper().Flush() // frames may have been held back before the sleep without another call to startTicking
	return true
}
