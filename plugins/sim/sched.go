package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors returned by a Run that did not complete.
var (
	// ErrDeadlock means that all coroutines are waiting without a timeout and no event is in
	// flight.
	ErrDeadlock = errors.New("deadlock")
	// ErrLimit means that coroutines remained when Run's limit of virtual time was reached.
	ErrLimit = errors.New("time limit")
)

// sched is the part of a World that schedules coroutines.
type sched struct {
	current     *coroutine
	isRunning   bool // whether Run is in progress
	hasPanicked bool // a coroutine has panicked and may hold locks that would block queued functions
	coroutines  []*coroutine
	runnable    []*coroutine
	killed      []*coroutine // killed coroutines that have not been unwound
	created     uint64
	contexts    []*virtualContext // contexts that have not ended
	// needsCheck is set if a coroutine or hook has run or a context has ended, so waiting
	// coroutines may be ready.
	needsCheck bool
}

// Run runs the coroutines, the network and the clock until every coroutine has returned. It returns
// ErrLimit after limit of virtual time, if limit is not zero, and ErrDeadlock if no event is left.
// These errors include the names of the waiting coroutines. If a coroutine panics, Run panics with
// a message that includes the seed.
func (w *World) Run(limit time.Duration) error {
	w.takeTurn()
	if w.isRunning {
		w.releaseTurn()
		panic("sim: Run called within Run")
	}
	w.isRunning = true
	defer w.startWatchdog()()
	mine := true // whether this goroutine holds the turn
	defer func() {
		if !mine { // a coroutine ended this goroutine, as FailNow in package testing does
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

// takeNext removes and returns one of the runnable coroutines. If Config.Choose selects an event
// instead, takeNext runs the event and happened is true.
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

// removeRunnable removes and returns the i-th runnable coroutine.
func (w *World) removeRunnable(i int) *coroutine {
	last := len(w.runnable) - 1
	c := w.runnable[i]
	w.runnable[i] = w.runnable[last]
	w.runnable[last] = nil
	w.runnable = w.runnable[:last]
	return c
}

// isBlocked reports whether the runnable coroutine c cannot continue, either because its node is
// paused or because its condition is no longer true. In the latter case it makes c wait again.
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

// resumeCoroutine runs c until it waits again or returns, and reports whether it waits. It releases
// the turn while c runs.
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

// handleYield handles the return of a resumed coroutine. It makes c wait if more is true, and
// removes c otherwise.
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

// Close ends all remaining coroutines. The world can still be inspected afterward.
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

// Sleep waits until d of virtual time has elapsed.
func (w *World) Sleep(d time.Duration) {
	if c := w.current; c != nil {
		c.yieldUntil(nil, max(d, 0), nil)
		return
	}
	w.driveUntil(nil, max(d, 0), nil)
}

// newStuckError returns the error of a Run that cannot complete. It lists the remaining coroutines,
// with one line for those with the same name that wait for the same thing. The line includes their
// number and, if they are sleeping, the earliest time at which one of them wakes.
func (w *World) newStuckError(why error) error {
	type kind struct{ name, waits string }
	type group struct {
		kind
		n     int
		until time.Duration // earliest deadline; noDeadline if there is none
	}
	var groups []*group
	at := map[kind]*group{}
	for _, c := range w.coroutines {
		k, until := kind{name: c.name}, noDeadline
		// Coroutines after the first one on a node have a number appended.
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
