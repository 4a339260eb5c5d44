package sim

import (
	"slices"
	"time"
)

// A hook is a function that Run calls between two events.
type hook struct {
	w     *World
	event event  // scheduled by After
	at    uint64 // number of events at which to call run; used by AfterEvents
	run   func()
}

// After makes Run call f after d of virtual time has elapsed. f is not part of any coroutine and
// may do anything that does not wait.
func (w *World) After(d time.Duration, f func()) {
	w.takeTurn()
	defer w.releaseTurn()
	h := &hook{w: w, run: f}
	h.event = event{actor: h, isTimer: true}
	w.events.schedule(&h.event, w.timeAfter(max(d, 0)))
}

func (h *hook) fire(*event) { h.w.dueHooks = append(h.w.dueHooks, h.run) }

// AfterEvents is like After, but makes Run call f after n more events. This catches a program in
// states that no particular time would reach. If fewer than n events occur, f is not called.
func (w *World) AfterEvents(n int, f func()) {
	w.takeTurn()
	defer w.releaseTurn()
	h := &hook{at: w.stats.Events + uint64(max(n, 0)), run: f}
	w.countedHooks = append(w.countedHooks, h)
}

// takeDueHooks removes and returns the functions of the hooks that are due.
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
