package sim

import "slices"

// takeTurn blocks until the turn is free and takes it.
func (w *World) takeTurn() {
	w.mu.Lock()
	w.takeTurnLocked()
	w.mu.Unlock()
}

func (w *World) takeTurnLocked() {
	for w.turnTaken {
		w.turnWaiters++
		w.sleepLocked()
		w.turnWaiters--
	}
	w.turnTaken = true
	w.catchUpLocked()
}

// sleepLocked waits for the next broadcast on w.cond. w.mu must be held.
func (w *World) sleepLocked() {
	w.sleepers.Add(1)
	w.cond.Wait()
	w.sleepers.Add(-1)
}

// releaseTurn runs the queued functions and then releases the turn.
func (w *World) releaseTurn() {
	w.runQueued()
	w.mu.Lock()
	w.releaseTurnAndUnlock()
}

// releaseTurnAndUnlock is like releaseTurn, but the caller must hold w.mu, which it unlocks.
func (w *World) releaseTurnAndUnlock() {
	for w.hasQueued.Load() && !w.hasPanicked {
		w.mu.Unlock()
		w.runQueued()
		w.mu.Lock()
	}
	w.turnTaken = false
	if w.sleepers.Load() > 0 { // let sleepers check whether they can continue
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// runInTurn arranges for f to be run with the turn held. If the turn is free and now is set, the
// calling goroutine runs f before runInTurn returns; otherwise a goroutine that holds the turn runs
// it later. A goroutine runs all queued functions before it releases the turn.
func (w *World) runInTurn(f func(), now bool) {
	w.mu.Lock()
	w.queued = append(w.queued, f)
	w.hasQueued.Store(true)
	switch {
	case w.turnTaken:
	case now:
		w.takeTurnLocked()
		w.releaseTurnAndUnlock()
		return
	case w.sleepers.Load() > 0:
		w.cond.Broadcast()
	}
	w.mu.Unlock()
}

// runQueued runs the queued functions. The caller must hold the turn.
func (w *World) runQueued() {
	for w.hasQueued.Load() && !w.hasPanicked {
		w.mu.Lock()
		todo := w.queued
		w.hasQueued.Store(false)
		w.queued, w.spareQueue = w.spareQueue[:0], nil
		w.mu.Unlock()
		for _, f := range todo {
			f()
		}
		clear(todo)
		w.mu.Lock()
		w.spareQueue = todo[:0]
		w.mu.Unlock()
	}
}

// removeElement removes x from list and returns the modified slice.
func removeElement[T comparable](list []T, x T) []T {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
