package turns

import "context"

// End ends what w waits for. It is called from a callback or from any other goroutine: one that runs in a pass of the leader
// wakes nobody by itself.
func (w *Waiter) End() {
	t := w.t
	w.ended.Store(true)
	t.mu.Lock()
	stir := false
	switch {
	case w.sleeper >= 0 && t.calling:
		if !w.due {
			w.due = true
			t.due = append(t.due, w)
		}
	default:
		stir = t.touchLocked(w)
	}
	t.mu.Unlock()
	if stir {
		t.d.Stir()
	}
}

// Wait returns nil when End was called, or the cause of ctx, or the error of Progress.
func (w *Waiter) Wait(ctx context.Context) error {
	if w.over() {
		return nil
	}
	return w.t.wait(ctx, -1, w)
}

// Await waits for End, and calls cancel, which is to bring it about, when ctx ends first: never once Await has returned.
func (w *Waiter) Await(ctx context.Context, cancel func()) {
	if w.Wait(ctx) != nil && !w.Ended() {
		cancel()
		_ = w.Wait(context.Background())
	}
}
