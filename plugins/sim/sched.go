package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Why Run gave up.
var (
	// ErrDeadlock: every coroutine waits without limit and nothing is under way.
	ErrDeadlock = errors.New("deadlock")
	// ErrLimit: coroutines are left when the virtual time of Run is over.
	ErrLimit = errors.New("time limit")
)

// sched is the part of a World that runs coroutines.
type sched struct {
	cur      *coroutine
	running  bool // in Run
	broken   bool // a coroutine has panicked: it may have locks, which what is asked for would wait for
	all      []*coroutine
	runnable []*coroutine
	killed   []*coroutine // and not yet unwound
	made     uint64
	timed    []*timed // contexts that have not ended
	stirred  bool     // a coroutine or a hook has run, or a context has ended: look at those who wait
}

// Run runs coroutines and lets the network and the clock go on until every coroutine has returned. It gives up with
// ErrLimit after limit of virtual time, if that is not zero, and with ErrDeadlock when nothing can happen any more; the
// error tells who waits. A panic in a coroutine becomes one of Run, with the seed in it.
func (w *World) Run(limit time.Duration) error {
	w.takeTurn()
	if w.running {
		w.give()
		panic("sim: Run is called inside Run")
	}
	w.running = true
	defer w.watch()()
	mine := true // the turn
	defer func() {
		if !mine { // a coroutine has ended this goroutine, as FailNow of package testing does
			w.takeTurn()
			if c := w.cur; c != nil {
				w.cur = nil
				w.over(c)
			}
		}
		w.running = false
		w.give()
	}()
	end := forever
	if limit > 0 {
		end = w.deadline(limit)
	}
	for {
		w.settle()
		if w.stirred {
			w.stir()
			continue
		}
		for len(w.killed) > 0 {
			c := w.killed[0]
			w.killed = w.killed[1:]
			mine = false
			w.unwind(c)
			mine = true
			w.over(c)
		}
		if due := w.hooks(); len(due) > 0 {
			w.stirred = true
			mine = false
			w.give()
			for _, f := range due {
				f()
			}
			w.takeTurn()
			mine = true
			continue
		}
		c, happened := w.next()
		if happened {
			continue
		}
		if c != nil {
			mine = false
			more := w.resume(c)
			mine = true
			w.yielded(c, more)
			continue
		}
		if len(w.all) == 0 {
			return nil
		}
		ev := w.events.min()
		switch {
		case ev == nil:
			return w.stuck(ErrDeadlock)
		case ev.at > end:
			w.now.Store(int64(end))
			return w.stuck(ErrLimit)
		}
		w.step(end)
	}
}

// next takes one of the coroutines that can go on, or makes an event happen, if Config.Choose says so.
func (w *World) next() (c *coroutine, happened bool) {
	if w.cfg.Choose == nil {
		return w.pick(), false
	}
	var first, last []*coroutine
	for i := 0; i < len(w.runnable); {
		switch c := w.runnable[i]; {
		case w.parked(c):
			w.takeOut(i)
			continue
		case c.begun:
			first = append(first, c)
		default:
			last = append(last, c)
		}
		i++
	}
	under := w.events.underWay()
	i, n := 0, len(first)+len(under)+len(last)
	switch n {
	case 0:
		return nil, false
	case 1:
	default:
		i = w.cfg.Choose(n)
	}
	if k := i - len(first); k >= 0 && k < len(under) {
		w.happen(under[k])
		return nil, true
	}
	if i >= len(first) {
		c = last[i-len(first)-len(under)]
	} else {
		c = first[i]
	}
	return w.takeOut(slices.Index(w.runnable, c)), false
}

// pick takes one of the runnable coroutines, drawn by the seed.
func (w *World) pick() *coroutine {
	for len(w.runnable) > 0 {
		if c := w.takeOut(w.order.below(len(w.runnable))); !w.parked(c) {
			return c
		}
	}
	return nil
}

// takeOut takes the i-th of the runnable coroutines out.
func (w *World) takeOut(i int) *coroutine {
	last := len(w.runnable) - 1
	c := w.runnable[i]
	w.runnable[i] = w.runnable[last]
	w.runnable[last] = nil
	w.runnable = w.runnable[:last]
	return c
}

// parked reports whether a runnable coroutine cannot go on after all; then it waits for something else.
func (w *World) parked(c *coroutine) bool {
	switch {
	case c.node.paused:
		c.state = coFrozen
	case c.ready != nil && !c.late && !c.ready(): // another one has taken what was there
		c.listen()
	default:
		return false
	}
	return true
}

// resume lets c run until it waits again, and reports false when it has returned. The turn is given up meanwhile.
func (w *World) resume(c *coroutine) bool {
	c.state, c.begun = coRunning, true
	c.ok = c.ready != nil && c.ready()
	c.ready, c.port = nil, nil
	w.stats.Resumes++
	w.stirred = true
	w.trace("resume", c.name, c.id, 0)
	w.cur = c
	w.give()
	w.watchdog.steps.Add(1)
	w.watchdog.busy.Store(c)
	_, more := c.next()
	w.watchdog.busy.Store(nil)
	w.takeTurn()
	w.cur = nil
	return more
}

// yielded takes note of what a coroutine waits for, or that it has returned.
func (w *World) yielded(c *coroutine, more bool) {
	if !more {
		w.over(c)
		return
	}
	if c.dying {
		return
	}
	c.late = false
	c.listen()
	if p := c.port; p != nil && w.cfg.NoAssist {
		p.serve()
	}
}

// Close ends every coroutine that is left. The world can be looked at afterwards.
func (w *World) Close() {
	w.takeTurn()
	defer w.give()
	for len(w.all) > 0 {
		c := w.all[0]
		w.kill(c)
		w.unwind(c)
		w.over(c)
	}
	w.killed = nil
}

// Sleep lets virtual time pass.
func (w *World) Sleep(d time.Duration) {
	if c := w.cur; c != nil {
		c.wait(nil, max(d, 0), nil)
		return
	}
	w.drive(nil, max(d, 0), nil)
}

// stuck is the error of a Run that gives up. It names the coroutines that are left, a line for each kind: how many have a name and wait for
// the same, and, if they sleep, until when the first does.
func (w *World) stuck(why error) error {
	type kind struct{ name, waits string }
	type group struct {
		kind
		n     int
		until time.Duration // the earliest; forever without one
	}
	var groups []*group
	at := map[kind]*group{}
	for _, c := range w.all {
		k, until := kind{name: c.name}, forever
		if i := strings.LastIndexByte(c.name, '/'); i > 0 && strings.Trim(c.name[i+1:], "0123456789") == "" { // several of one name are numbered
			k.name = c.name[:i]
		}
		switch c.state {
		case coFrozen:
			k.waits = "paused"
		case coWaiting:
			until = c.limit
			if k.waits = "sleeping"; c.port != nil {
				k.waits = "in Progress on " + c.port.addr()
			}
		}
		g := at[k]
		if g == nil {
			g = &group{kind: k, until: forever}
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
		if g.until != forever {
			until = fmt.Sprintf(" until %v", g.until)
		}
		if g.waits != "" {
			text += " (" + g.waits + until + ")"
		}
	}
	return fmt.Errorf("sim: seed %d: %w at %v: %d coroutines are left:%s", w.cfg.Seed, why, w.Now(), len(w.all), text)
}
