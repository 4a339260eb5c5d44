package loop

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// batchFrom is how many waiters are woken at a time for their sends to be held back.
	batchFrom = 2
	// batchTime bounds the wait for the next woken goroutine to return.
	batchTime = 20 * time.Microsecond
	// parkFrom is how many must be away for the leader to sleep until they have come home, and not only to yield.
	parkFrom = 8
	// maxYields is how often it yields before it sleeps all the same.
	maxYields = 100
	// splitFrom is from how many on what the first half sends leaves before the second: both processes have something to do.
	splitFrom = 12
)

// A Batch waits for goroutines that are about to send, so that what they send leaves together. One goroutine at a time waits.
type Batch struct {
	outstanding atomic.Int32  // have not come home
	half        atomic.Int32  // the goroutine that brings outstanding to it sends what is held back
	all         chan struct{} // one slot, filled when away comes to 0
	moment      *time.Timer
}

// NewBatch returns a Batch.
func NewBatch() Batch { return Batch{all: make(chan struct{}, 1)} }

// Begin begins with n that are away.
func (b *Batch) Begin(n int32) {
	select {
	case <-b.all: // of a round that was given up
	default:
	}
	b.split(n)
	b.outstanding.Store(n)
}

// split has the first half of n leave before the second, if there are enough.
func (b *Batch) split(n int32) {
	half := int32(-1)
	if n >= splitFrom {
		half = n / 2
	}
	b.half.Store(half)
}

// Add counts one more that is away.
func (b *Batch) Add() { b.outstanding.Add(1) }

// Added ends the calls of Add. A caller of Add begins with Begin(1), for itself, and Added takes that one back.
func (b *Batch) Added() { b.split(b.outstanding.Add(-1)) }

// Returned counts one that has come home, and calls flush when it is to send what is held back.
func (b *Batch) Returned(flush func()) {
	if b.outstanding.Load() <= 0 {
		return
	}
	switch b.outstanding.Add(-1) {
	case 0:
		select {
		case b.all <- struct{}{}:
		default:
		}
	case b.half.Load():
		flush()
	}
}

// Wait waits until all have come home. It gives up, and reports false, when none comes for a while, and has what is held back
// sent while they do. It yields at least so many times before it sleeps.
func (b *Batch) Wait(now func() time.Duration, flush func(), least int) (home bool) {
	last, since := b.outstanding.Load(), now()
	for yields := 0; b.outstanding.Load() > 0; yields++ {
		if last >= parkFrom && yields >= least || yields >= maxYields {
			b.park()
		} else {
			runtime.Gosched()
		}
		now := now()
		if now-since < batchTime {
			continue
		}
		n := b.outstanding.Load()
		if n >= last {
			break
		}
		last, since = n, now
		flush()
	}
	return b.outstanding.Swap(0) <= 0
}

// park sleeps until all have come home, or for a moment: a goroutine that yields again and again takes a processor away.
func (b *Batch) park() {
	if b.moment == nil {
		b.moment = time.NewTimer(batchTime)
	} else {
		b.moment.Reset(batchTime)
	}
	select {
	case <-b.all:
		b.moment.Stop()
	case <-b.moment.C:
	}
}

// batch is what those that were woken are about to send.
type batch struct {
	Batch
	held  atomic.Bool // what is sent is held back, for who leads next to send
	ready []*Waiter   // guarded by Loop.mu; the other half of due, empty
}

// wakeDue wakes those whose end has come. If w leads, what two or more of them send from now on is held back.
func (l *Loop) wakeDue(w *Waiter, leads bool) {
	l.mu.Lock()
	if l.look {
		l.lookDueLocked()
	}
	ready := l.due[:0]
	for _, d := range l.due {
		d.due = false
		if d.index >= 0 && d.seemsOver() { // it may have seen so itself, and wait for something else by now
			l.unlistLocked(d)
			ready = append(ready, d)
		}
	}
	l.dueCount.Store(0)
	if !leads { // who leads has a batch of its own
		wake(ready)
		l.due = l.due[:0]
		l.mu.Unlock()
		return
	}
	n := int32(len(ready))
	over := n > 0 && w.seemsOver()
	if over {
		n++
	}
	if n >= batchFrom {
		if !l.held.Load() {
			l.held.Store(l.d.Hold())
		}
		if l.held.Load() {
			l.Begin(n)
		}
	}
	l.due, l.ready = l.ready[:0], ready // who leads next needs the other one
	l.mu.Unlock()
	one := len(ready) == 1 && !over
	wake(ready)
	if one { // it goes on here and now; a leader that polls would leave it to a processor that has to be woken
		runtime.Gosched()
	}
}

// wake wakes those that are not listed any more.
func wake(all []*Waiter) {
	for i, w := range all {
		all[i] = nil
		w.token <- struct{}{}
	}
}

// lookDueLocked has those be due whose condition is true.
func (l *Loop) lookDueLocked() {
	l.look = false
	for _, w := range l.parked {
		if !w.due && w.seemsOver() {
			w.due = true
			l.due = append(l.due, w)
		}
	}
}

// gather waits until those that were woken have come home, and sends what they have sent. It keeps holding back while they come:
// else each of them would make a write of its own. The leader calls it.
func (l *Loop) gather() {
	l.Batch.Wait(l.now, l.flush, 0)
	l.unhold()
}

func (l *Loop) unhold() {
	if l.held.Swap(false) {
		l.d.Unhold()
	}
}
