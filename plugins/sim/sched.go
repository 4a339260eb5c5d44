package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The errors of a Run that gave up.
var (
	// ErrDeadlock: all coroutines wait without a timeout, and no event is in flight.
	ErrDeadlock = errors.New("deadlock")
	// ErrLimit: coroutines are left when the virtual time of Run is over.
	ErrLimit = errors.New("time limit")
)

// sched is the part of a World that runs coroutines.
type sched struct {
	current     *coroutine
	isRunning   bool // in Run
	hasPanicked bool // a coroutine has panicked: it may hold locks for which queued functions would wait
	coroutines  []*coroutine
	runnable    []*coroutine
	killed      []*coroutine // killed coroutines that are not yet unwound
	created     uint64
	contexts    []*virtualContext // contexts that have not ended
	// a coroutine or a hook has run, or a context has ended: waiting coroutines may be ready
	needsCheck bool
}

// Run runs the coroutines, the network and the clock until every coroutine has returned. It gives
// up with ErrLimit after limit of virtual time, if that is not zero, and with ErrDeadlock when
// there is no event left; the error names the waiting coroutines. A panic in a coroutine becomes a
// panic of Run, with the seed in it.
func (w *World) Run(limit time.Duration) error {
	w.takeTurn()
	if w.isRunning {
		w.releaseTurn()
		panic("sim: Run called within Run")
	}
	w.isRunning = true
	defer w.startWatchdog()()
	mine := true // this goroutine has the turn
	defer func() {
		if !mine { // a coroutine has ended this goroutine, as FailNow of package testing does
			w.takeTurn()
			if c := w.current; c != nil {
				w.current = nil
				w.removeCoroutine(c)
			}
		}
		w.isRunning = false
		w.releaseTurn()
	}()
	end := noDeadline
	if limit > 0 {
		end = w.deadlineAfter(limit)
	}
	for {
		w.runQueued()
		if w.needsCheck {
			w.checkContexts()
			continue
		}
		for len(w.killed) > 0 {
			c := w.killed[0]
			w.killed = w.killed[1:]
			mine = false
			w.unwindCoroutine(c)
			mine = true
			w.removeCoroutine(c)
		}
		if due := w.takeDueHooks(); len(due) > 0 {
			w.needsCheck = true
			mine = false
			w.releaseTurn()
			for _, f := range due {
				f()
			}
			w.takeTurn()
			mine = true
			continue
		}
		c, happened := w.takeNext()
		if happened {
			continue
		}
		if c != nil {
			mine = false
			more := w.resumeCoroutine(c)
			mine = true
			w.handleYield(c, more)
			continue
		}
		if len(w.coroutines) == 0 {
			return nil
		}
		ev := w.events.first()
		switch {
		case ev == nil:
			return w.newStuckError(ErrDeadlock)
		case ev.at > end:
			w.now.Store(int64(end))
			return w.newStuckError(ErrLimit)
		}
		w.runNext(end)
	}
}

// takeNext removes and returns one of the runnable coroutines, or runs an event if Config.Choose
// selects one.
func (w *World) takeNext() (c *coroutine, happened bool) {
	if w.cfg.Choose == nil {
		return w.takeRandom(), false
	}
	var first, last []*coroutine
	for i := 0; i < len(w.runnable); {
		switch c := w.runnable[i]; {
		case w.isBlocked(c):
			w.removeRunnable(i)
			continue
		case c.hasBegun:
			first = append(first, c)
		default:
			last = append(last, c)
		}
		i++
	}
	under := w.events.inFlight()
	i, n := 0, len(first)+len(under)+len(last)
	switch n {
	case 0:
		return nil, false
	case 1:
	default:
		i = w.cfg.Choose(n)
	}
	if k := i - len(first); k >= 0 && k < len(under) {
		w.runEvent(under[k])
		return nil, true
	}
	if i >= len(first) {
		c = last[i-len(first)-len(under)]
	} else {
		c = first[i]
	}
	return w.removeRunnable(slices.Index(w.runnable, c)), false
}

// takeRandom removes and returns a random runnable coroutine.
func (w *World) takeRandom() *coroutine {
	for len(w.runnable) > 0 {
		if c := w.removeRunnable(w.orderRNG.intn(len(w.runnable))); !w.isBlocked(c) {
			return c
		}
	}
	return nil
}

// removeRunnable removes the i-th of the runnable coroutines and returns it.
func (w *World) removeRunnable(i int) *coroutine {
	last := len(w.runnable) - 1
	c := w.runnable[i]
	w.runnable[i] = w.runnable[last]
	w.runnable[last] = nil
	w.runnable = w.runnable[:last]
	return c
}

// isBlocked reports whether a runnable coroutine can no longer continue, and makes it wait
// again if so.
func (w *World) isBlocked(c *coroutine) bool {
	switch {
	case c.node.isPaused:
		c.state = coFrozen
	case c.ready != nil && !c.timedOut && !c.ready(): // another coroutine has consumed the event
		c.waitForEvent()
	default:
		return false
	}
	return true
}

// resumeCoroutine runs c until it waits again, and returns false when c has returned. The turn
// is released during that.
func (w *World) resumeCoroutine(c *coroutine) bool {
	c.state, c.hasBegun = coRunning, true
	c.result = c.ready != nil && c.ready()
	c.ready, c.port = nil, nil
	w.stats.Resumes++
	w.needsCheck = true
	w.addTrace("resume", c.name, c.id, 0)
	w.current = c
	w.releaseTurn()
	w.watchdog.steps.Add(1)
	w.watchdog.running.Store(c)
	_, more := c.next()
	w.watchdog.running.Store(nil)
	w.takeTurn()
	w.current = nil
	return more
}

// handleYield makes a coroutine that has yielded wait, or removes it if it has returned.
func (w *World) handleYield(c *coroutine, more bool) {
	if !more {
		w.removeCoroutine(c)
		return
	}
	if c.isKilled {
		return
	}
	c.timedOut = false
	c.waitForEvent()
	if p := c.port; p != nil && w.cfg.NoAssist {
		p.serveDelayed()
	}
}

// Close ends every remaining coroutine. The world can be inspected afterwards.
func (w *World) Close() {
	w.takeTurn()
	defer w.releaseTurn()
	for len(w.coroutines) > 0 {
		c := w.coroutines[0]
		w.killCoroutine(c)
		w.unwindCoroutine(c)
		w.removeCoroutine(c)
	}
	w.killed = nil
}

// Sleep advances virtual time.
func (w *World) Sleep(d time.Duration) {
	if c := w.current; c != nil {
		c.yieldUntil(nil, max(d, 0), nil)
		return
	}
	w.driveUntil(nil, max(d, 0), nil)
}

// newStuckError returns the error of a Run that cannot finish. It names the remaining coroutines,
// with a line for those that have the same name and wait for the same: how many there are, and, if
// they sleep, until when the first does.
func (w *World) newStuckError(why error) error {
	type kind struct{ name, waits string }
	type group struct {
		kind
		n     int
		until time.Duration // the earliest; forever without one
	}
	var groups []*group
	at := map[kind]*group{}
	for _, c := range w.coroutines {
		k, until := kind{name: c.name}, noDeadline
		// several of one name are numbered
		if i := strings.LastIndexByte(c.name, '/'); i > 0 && strings.Trim(c.name[i+1:], "0123456789") == "" {
			k.name = c.name[:i]
		}
		switch c.state {
		case coFrozen:
			k.waits = "paused"
		case coWaiting:
			until = c.deadline
			if k.waits = "sleeping"; c.port != nil {
				k.waits = "in Progress on " + c.port.address()
			}
		}
		g := at[k]
		if g == nil {
			g = &group{kind: k, until: noDeadline}
			at[k] = g
			groups = append(groups, g)
		}
		g.n++
		g.until = min(g.until, until)
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return b.n - a.n })
	text := ""
	for _, g := range groups {
		text += "\n\t" + g.name
		if g.n > 1 {
			text += fmt.Sprintf(" x %d", g.n)
		}
		until := ""
		if g.until != noDeadline {
			until = fmt.Sprintf(" until %v", g.until)
		}
		if g.waits != "" {
			text += " (" + g.waits + until + ")"
		}
	}
	return fmt.Errorf("sim: seed %d: %w at %v: %d coroutines are left:%s", w.cfg.Seed, why, w.Now(), len(w.coroutines), text)
}
