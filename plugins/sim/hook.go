package sim

import (
	"slices"
	"time"
)

// A hook is something that Run calls between two events.
type hook struct {
	w  *World
	ev event  // of After
	at uint64 // of AfterEvents
	f  func()
}

// After has Run call f when d has passed. f belongs to no coroutine: it may call anything that does not wait.
func (w *World) After(d time.Duration, f func()) {
	w.takeTurn()
	defer w.give()
	h := &hook{w: w, f: f}
	h.ev = event{act: h, slow: true}
	w.events.set(&h.ev, w.after(max(d, 0)))
}

func (h *hook) fire(*event) { h.w.due = append(h.w.due, h.f) }

// AfterEvents has Run call f as soon as n more events have happened, as After does: there it meets a program in states that
// no time would name. It is dropped if nothing happens any more.
func (w *World) AfterEvents(n int, f func()) {
	w.takeTurn()
	defer w.give()
	h := &hook{at: w.stats.Events + uint64(max(n, 0)), f: f}
	w.counted = append(w.counted, h)
}

// hooks takes out those that are due.
func (w *World) hooks() (due []func()) {
	w.counted = slices.DeleteFunc(w.counted, func(h *hook) bool {
		if h.at > w.stats.Events {
			return false
		}
		w.due = append(w.due, h.f)
		return true
	})
	due, w.due = w.due, nil
	return due
}
