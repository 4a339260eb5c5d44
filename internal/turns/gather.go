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
	// splitFrom is from how many on what the first half sends leaves before the second: both processes have something to do.
	splitFrom = 12
)

// A Gather waits for goroutines that are about to send, so that what they send leaves together. One goroutine at a time waits.
type Gather struct {
	outstanding atomic.Int32  // have not come home
	half        atomic.Int32  // whoever brings away to it sends what is held back
	all         chan struct{} // one slot, filled when away comes to 0
	moment      *time.Timer
}

// NewGather returns a Gather.
func NewGather() Gather { return Gather{all: make(chan struct{}, 1)} }

// Begin begins with n that are away.
func (g *Gather) Begin(n int32) {
	select {
	case <-g.all: // of a round that was given up
	default:
	}
	g.split(n)
	g.outstanding.Store(n)
}

// split has the first half of n leave before the second, if there are enough.
func (g *Gather) split(n int32) {
	half := int32(-1)
	if n >= splitFrom {
		half = n / 2
	}
	g.half.Store(half)
}

// Add counts one more that is away.
func (g *Gather) Add() { g.outstanding.Add(1) }

// Added says that no more will leave. Whoever sends them away one by one expects itself first.
func (g *Gather) Added() { g.split(g.outstanding.Add(-1)) }

// Returned counts one that has come home, and calls flush when it is to send what is held back.
func (g *Gather) Returned(flush func()) {
	if g.outstanding.Load() <= 0 {
		return
	}
	switch g.outstanding.Add(-1) {
	case 0:
		select {
		case g.all <- struct{}{}:
		default:
		}
	case g.half.Load():
		flush()
	}
}

// Wait waits until all have come home. It gives up, and reports false, when none comes for a while, and has what is held back
// sent while they do. It yields at least so many times before it sleeps.
func (g *Gather) Wait(now func() time.Duration, flush func(), least int) (home bool) {
	last, since := g.outstanding.Load(), now()
	for yields := 0; g.outstanding.Load() > 0; yields++ {
		if last >= parkFrom && yields >= least || yields >= maxYields {
			g.park()
		} else {
			runtime.Gosched()
		}
		now := now()
		if now-since < gatherTime {
			continue
		}
		n := g.outstanding.Load()
		if n >= last {
			break
		}
		last, since = n, now
		flush()
	}
	return g.outstanding.Swap(0) <= 0
}

// park sleeps until all have come home, or for a moment: a goroutine that yields again and again takes a processor away.
func (g *Gather) park() {
	if g.moment == nil {
		g.moment = time.NewTimer(gatherTime)
	} else {
		g.moment.Reset(gatherTime)
	}
	select {
	case <-g.all:
		g.moment.Stop()
	case <-g.moment.C:
	}
}

// gathering is what those that were woken are about to send.
type gathering struct {
	Gather
	flush  func()    // of the Batcher
	corked bool      // guarded by Table.mu
	ready  []*Waiter // likewise; the other half of due, empty
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
		if w.sleeper >= 0 && w.seemsOver() { // it may have seen so itself, and wait for something else by now
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
			t.Begin(int32(n))
		}
	}
	t.due, t.ready = t.ready[:0], ready // whoever leads next needs the other one
	one := len(ready) == 1 && !leader.seemsOver()
	t.mu.Unlock()
	for i, w := range ready {
		ready[i] = nil
		w.token <- struct{}{}
	}
	if one { // it goes on here and now; a leader that polls would leave it to a processor that has to be woken
		runtime.Gosched()
	}
}

// gather waits until those that were woken have come home, and sends what they have sent. It keeps holding back while they come:
// else each of them would make a write of its own. The leader calls it.
func (t *Table) gather() {
	t.Gather.Wait(t.now, t.flush, 0)
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
