package na

import (
	"sync/atomic"
	"time"
)

// backgroundPoller moves bytes when nobody drives the context: it receives, answers heartbeats, serves puts and gets. It runs no
// user code. It is one goroutine, parked behind a gate. While the gate is shut an arriving byte does not reach it.
//
//	parked, gate shut ◄── a leader sleeps in the poller (it will be woken by the byte itself) ◄──┐
//	   │ the leader wakes: opens the gate    │ it wakes soon and often, holds frames back, or      │
//	   │                                     │ there are inlets                                   │
//	   ▼                                     ▼                                                     │
//	parked, gate open ── a byte arrives ──► ticking: each 2 ms it looks whether somebody drove since
//	   ▲                                        │ nobody did: one pass, which arms the bells, then the gate again
//	   └────────────────────────────────────────┘
//
// While it ticks the gate, which costs a system call each way, is left alone.
type backgroundPoller struct {
	nctx *Context
	gate pollGate
	quit atomic.Bool
}

// A pollGate is where the background poller rests. All but park and sleepFor are called from anywhere.
type pollGate interface {
	// park waits until something is ready in the context's poller while the gate is open, which shuts it, or until wake or
	// the time of alarm. It reports false after close. A wake before it counts.
	park() bool
	// sleepFor waits for d.
	sleepFor(d time.Duration)
	open()
	shut()
	wake()
	alarm(d time.Duration)
	close()
}

// What the background poller does is in Context.watch, together with whether a leader sleeps: who changes the one sees the other.
const (
	backgroundShut  int32 = 0 // parked, gate shut
	backgroundOpen  int32 = 1 // parked, gate open, bells armed
	backgroundTicks int32 = 2 // awake

	leaderAsleep int32 = 4 // beside one of these
)

// backgroundAfter is how long nobody may have driven before the background poller does.
const backgroundAfter = 2 * time.Millisecond

func newBackgroundPoller(c *Context) (*backgroundPoller, error) {
	g, err := newGate(c.poller)
	if g == nil {
		return nil, err
	}
	c.watch.Store(backgroundOpen)
	return &backgroundPoller{nctx: c, gate: g}, nil
}

// start begins to serve; without it only drop is left.
func (a *backgroundPoller) start() {
	if a == nil {
		return
	}
	if len(a.nctx.poller.inlets) > 0 {
		a.startTicking() // their bells are not armed
	}
	go a.run()
}

func (a *backgroundPoller) detach() {
	if a != nil {
		a.gate.close()
	}
}

// leaderSleeps shuts the gate: arriving bytes wake the leader.
func (a *backgroundPoller) leaderSleeps() {
	if a != nil && a.nctx.watch.CompareAndSwap(backgroundOpen|leaderAsleep, backgroundShut|leaderAsleep) {
		a.gate.shut()
	}
}

// leaderWakes says that the leader may be off to user code: the gate is opened again, or, after a short sleep and where bells
// are not armed any more, the background poller ticks.
func (a *backgroundPoller) leaderWakes(slept time.Duration, disarmed bool) {
	switch {
	case a == nil:
	case disarmed || slept < backgroundAfter:
		a.startTicking()
	case a.nctx.watch.CompareAndSwap(backgroundShut, backgroundOpen):
		a.gate.open()
	}
}

// startTicking has the background poller tick from now on, until the next time that nobody drove: bytes may come that nobody takes, or
// frames are held back that nobody sends.
func (a *backgroundPoller) startTicking() {
	if a != nil && a.nctx.watch.Load()&^leaderAsleep != backgroundTicks && a.setDoing(backgroundTicks) != backgroundTicks {
		a.gate.wake()
	}
}

// setDoing changes what the background poller does, and returns what it did.
func (a *backgroundPoller) setDoing(next int32) (was int32) {
	for w := &a.nctx.watch; ; {
		if old := w.Load(); w.CompareAndSwap(old, old&leaderAsleep|next) {
			return old &^ leaderAsleep
		}
	}
}

// stop ends the goroutine; it does not wait for it. The poller may be closed afterwards.
func (a *backgroundPoller) stop() {
	if a == nil {
		return
	}
	a.quit.Store(true)
	a.gate.close()
}

func (a *backgroundPoller) run() {
	c := a.nctx
	var seen uint64 // passes when the background poller last drove
	for !a.quit.Load() && a.gate.park() {
		ticking := a.setDoing(backgroundTicks) == backgroundTicks
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
				c.Upper().Flush() // what was held back before had us tick in vain
				break
			}
			if a.runWhileFree() {
				break
			}
		}
		seen = c.passes.Load()
	}
}

// runWhileFree drives, if nobody leads, until there is nothing to take in, and opens the gate. Between two rounds it gives up the lead.
func (a *backgroundPoller) runWhileFree() bool {
	for a.nctx.loop.TryLead() {
		if a.driveOnce() {
			return true
		}
	}
	return false
}

// driveOnce drives once, and reports whether the gate is open afterwards. It is called with lead held and gives it up.
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
	a.setDoing(backgroundOpen)
	if c.nudged.Load() { // since Poll, by who saw that the background poller was awake
		a.setDoing(backgroundTicks)
		return false
	}
	a.gate.open()
	c.Upper().Flush() // what was held back before had us tick in vain
	return true
}
