package sim

import (
	"slices"
	"time"
)

// A hook is something that Run calls between two events.
type hook struct {
	w     *World
	event event  // scheduled by After
	at    uint64 // the number of events, for AfterEvents
	run   func()
}

// After has Run call f when d has passed. f belongs to no coroutine: it may call anything that does
// not wait.
func (w *World) After(d time.Duration, f func()) {
	w.takeTurn()
	defer w.releaseTurn()
	h := &hook{w: w, run: f}
	h.event = event{actor: h, isTimer: true}
	w.events.schedule(&h.event, w.timeAfter(max(d, 0)))
}

func (h *hook) fire(*event) { h.w.dueHooks = append(h.w.dueHooks, h.run) }

// AfterEvents has Run call f as soon as n more events have happened, as After does: there it meets
// a program in states that no time would name. It is dropped if nothing happens any more.
func (w *World) AfterEvents(n int, f func()) {
	w.takeTurn()
	defer w.releaseTurn()
	h := &hook{at: w.stats.Events + uint64(max(n, 0)), run: f}
	w.countedHooks = append(w.countedHooks, h)
}

// takeDueHooks removes and returns the hooks whose time has come.
func (w *World) takeDueHooks() (due []func()) {
	w.countedHooks = slices.DeleteFunc(w.countedHooks, func(h *hook) bool {
		if h.at > w.stats.Events {
			return false
		}
		w.dueHooks = append(w.dueHooks, h.run)
		return true
	})
	due, w.dueHooks = w.dueHooks, nil
	return due
}
