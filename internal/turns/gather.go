package turns

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// gatherFrom is how many waiters are woken at a time for their sends to be held back.
	gatherFrom = 2
	// gatherTime is how long the leader waits in vain for one more of them to come home.
	gatherTime = 20 * time.Microsecond
	// parkFrom is how many must be away for the leader to sleep until they have come home, and not only to yield.
	parkFrom = 8
	// maxYields is how often it yields before it sleeps all the same.
	maxYields = 100
	// halves is from how many on what the first half sends leaves before the second: both processes have something to do.
	halves = 12
)

// gathering is what those that were woken are about to send.
type gathering struct {
	away   atomic.Int32  // were woken and have not come home to wait again
	half   atomic.Int32  // whoever brings away to it sends what is held back
	all    chan struct{} // one slot, filled when away comes to 0
	moment *time.Timer   // the leader's
	corked bool          // guarded by Table.mu
	ready  []*Waiter     // likewise; the other half of due, empty
}

// wakeDue wakes those whose end has come, and holds back what they send from now on. It is called with mu held, by the
// leader, and releases it.
func (t *Table) wakeDue(leader *Waiter) {
	if len(t.due) == 0 && !t.look {
		t.mu.Unlock()
		return
	}
	ready := t.due[:0]
	for _, w := range t.due {
		w.due = false
		if w.bed >= 0 && w.seemsOver() { // it may have seen so itself, and wait for something else by now
			t.unlistLocked(w)
			ready = append(ready, w)
		}
	}
	if t.look {
		t.look = false
		for i := len(t.sleepers) - 1; i >= 0; i-- {
			if w := t.sleepers[i]; w.seemsOver() {
				t.unlistLocked(w)
				ready = append(ready, w)
			}
		}
	}
	if n := len(ready); n >= gatherFrom || n > 0 && leader.seemsOver() && n+1 >= gatherFrom {
		if !t.corked {
			t.corked = t.b.Cork()
		}
		if t.corked {
			if leader.seemsOver() {
				n++
			}
			half := int32(-1)
			if n >= halves {
				half = int32(n / 2)
			}
			select {
			case <-t.all: // of a round that was given up
			default:
			}
			t.half.Store(half)
			t.away.Store(int32(n))
		}
	}
	t.due, t.ready = t.ready[:0], ready // whoever leads next needs the other one
	t.mu.Unlock()
	for i, w := range ready {
		ready[i] = nil
		w.token <- struct{}{}
	}
}

// home counts one that has come to wait again.
func (t *Table) home() {
	if t.away.Load() <= 0 {
		return
	}
	switch t.away.Add(-1) {
	case 0:
		select {
		case t.all <- struct{}{}:
		default:
		}
	case t.half.Load():
		t.b.Flush()
	}
}

// park sleeps until all have come home, or for a moment: the leader that yields again and again takes a processor away.
func (t *Table) park() {
	if t.moment == nil {
		t.moment = time.NewTimer(gatherTime)
	} else {
		t.moment.Reset(gatherTime)
	}
	select {
	case <-t.all:
		t.moment.Stop()
	case <-t.moment.C:
	}
}

// gather waits until those that were woken have come home, and sends what they have sent. It gives up when none comes for
// a while, and keeps holding back while they do: else each of them would make a write of its own. The leader calls it.
func (t *Table) gather() {
	last, since := t.away.Load(), t.d.Now()
	for yields := 0; t.away.Load() > 0; yields++ {
		if last >= parkFrom || yields >= maxYields {
			t.park()
		} else {
			runtime.Gosched()
		}
		now := t.d.Now()
		if now-since < gatherTime {
			continue
		}
		n := t.away.Load()
		if n >= last {
			break
		}
		last, since = n, now
		t.b.Flush()
	}
	t.away.Store(0)
	t.uncork()
}

func (t *Table) uncork() {
	t.mu.Lock()
	corked := t.corked
	t.corked = false
	t.mu.Unlock()
	if corked {
		t.b.Uncork()
	}
}
