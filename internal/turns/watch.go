package turns

import "time"

// A watch looks after a leader that is in callbacks for long while others sleep, and after frames that are held back while
// nobody leads.
type watch struct {
	timer *time.Timer
	on    bool
	seen  uint64 // Table.passes when it was last looked at
}

// watchLocked looks in a moment, unless that is on its way.
func (t *Table) watchLocked() {
	w := &t.watch
	if w.on {
		return
	}
	w.on = true
	if w.timer == nil {
		w.timer = time.AfterFunc(long, t.watched)
		return
	}
	w.timer.Reset(long)
}

func (t *Table) watched() {
	t.mu.Lock()
	w := &t.watch
	w.on = false
	switch {
	case t.leader == nil:
	case t.calling && w.seen == t.passes && t.leader.runs.Load() && !t.othersLocked(): // callbacks stay in their order
		t.watchLocked()
	case t.calling && w.seen == t.passes: // the lead goes to another; whoever is in the callback sees that when it returns
		t.handOnLocked()
	case t.calling:
		w.seen = t.passes
		t.watchLocked()
	}
	uncork := t.leader == nil && t.corked
	t.mu.Unlock()
	if uncork {
		t.uncork()
	}
}

// othersLocked has a waiter that is not of Drive be the next to lead, and reports whether there is one.
func (t *Table) othersLocked() bool {
	last := len(t.sleepers) - 1
	for i := last; i >= 0; i-- {
		if w := t.sleepers[i]; w.around == nil {
			other := t.sleepers[last]
			t.sleepers[i], t.sleepers[last] = other, w
			other.sleeper, w.sleeper = i, last
			return true
		}
	}
	return false
}
