package sim

import "slices"

// takeTurn waits for the turn.
func (w *World) takeTurn() {
	w.mu.Lock()
	w.takeTurnLocked()
	w.mu.Unlock()
}

func (w *World) takeTurnLocked() {
	for w.turn {
		w.takers++
		w.sleepLocked()
		w.takers--
	}
	w.turn = true
	w.creditLocked()
}

// sleepLocked waits until somebody broadcasts.
func (w *World) sleepLocked() {
	w.waiting.Add(1)
	w.cond.Wait()
	w.waiting.Add(-1)
}

// give gives the turn up.
func (w *World) give() {
	w.settle()
	w.mu.Lock()
	w.giveLocked()
}

// giveLocked is give with the lock held, which it returns.
func (w *World) giveLocked() {
	for w.asked.Load() && !w.broken {
		w.mu.Unlock()
		w.settle()
		w.mu.Lock()
	}
	w.turn = false
	if w.waiting.Load() > 0 { // sleepers look at what has been set
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// ask has f run by the goroutine that has the turn: at once by this one if nobody has it and now is set, else soon. Whoever gives
// the turn up runs what was asked for first.
func (w *World) ask(f func(), now bool) {
	w.mu.Lock()
	w.todo = append(w.todo, f)
	w.asked.Store(true)
	switch {
	case w.turn:
	case now:
		w.takeTurnLocked()
		w.giveLocked()
		return
	case w.waiting.Load() > 0:
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// settle runs what was asked for. The turn is held.
func (w *World) settle() {
	for w.asked.Load() && !w.broken {
		w.mu.Lock()
		todo := w.todo
		w.asked.Store(false)
		w.todo, w.spare = w.spare[:0], nil
		w.mu.Unlock()
		for _, f := range todo {
			f()
		}
		clear(todo)
		w.mu.Lock()
		w.spare = todo[:0]
		w.mu.Unlock()
	}
}

// without returns list with x taken out.
func without[T comparable](list []T, x T) []T {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
