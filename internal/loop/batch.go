package loop

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// batchFrom is how many goroutines must be away at the end of a pass for what they send to be held back.
	batchFrom = 2
	// batchTime bounds the wait for the next of them to return.
	batchTime = 20 * time.Microsecond
	// parkFrom is how many must be away for the leader to sleep until they have returned, and not only to yield.
	parkFrom = 8
	// maxYields is how often it yields before it sleeps all the same.
	maxYields = 100
	// splitFrom is from how many on what the first half sends leaves before the second: both processes have something to do.
	splitFrom = 12
	// maxRests bounds the passes that do without workers, once a wait for them has timed out.
	maxRests = 31
)

// The states of a batch.
const (
	noBatch  int32 = iota
	counting       // callbacks run
	resting        // the same, and workers are not counted
	sending        // those that are away are waited for
)

// A batch is what leaves together: what the callbacks of one pass send, and then the goroutines that are away, which the pass has woken or
// has given work to (Away), until they come to wait again, or have returned.
//
//	pass: Begin ─► Run: Away … Away ─► wake ─► fewer than two are away? they send by themselves
//	                     └─► Home               └─ else the next pass begins with the wait for them: all are back, or none comes for a moment
//
// After a wait for workers that has timed out the next passes do not count workers: 1 pass, then 3, 7, 15 and at last 31. Goroutines that were
// woken are counted in any case: they are about to send. The leader waits; a Trigger outside the loop waits for its own batch.
type batch struct {
	state       atomic.Int32
	held        atomic.Bool   // Driver.Hold was called
	number      atomic.Uint32 // of the batch, or of the last one; not 0
	outstanding atomic.Int32  // goroutines that are away
	half        atomic.Int32  // the goroutine that brings outstanding to it sends what is held back
	workers     atomic.Bool   // Away has counted one
	rest        atomic.Int32  // passes that do without workers
	all         chan struct{} // one slot, filled when outstanding comes to 0

	waiting atomic.Bool // a goroutine waits for those that are away; it owns the fields below
	rests   int32       // rest, after the last wait
	moment  *time.Timer
}

// BeginBatch is called by who is about to run callbacks, and EndBatch with what it has returned: 0 while another batch is under way.
func (l *Loop) BeginBatch() (number uint32) {
	b := &l.batch
	rest := b.rest.Load()
	next := counting
	if rest > 0 || l.mode != Lend {
		next = resting
	}
	if !b.state.CompareAndSwap(noBatch, next) {
		return 0
	}
	b.rest.Store(max(rest-1, 0))
	b.half.Store(-1)
	b.outstanding.Store(0)
	b.workers.Store(false)
	number = max(b.number.Add(1), 1)
	b.number.Store(number)
	if l.d.Queued() > 1 {
		l.hold()
	}
	return number
}

// EndBatch waits for those that are away, and sends what is held back.
func (l *Loop) EndBatch(number uint32) {
	b := &l.batch
	if number != b.number.Load() {
		l.d.Flush() // what is in the batch of another one
		return
	}
	b.split(b.outstanding.Load())
	if b.state.Load() != noBatch {
		b.state.Store(sending)
	}
	l.gather()
}

// Away counts a goroutine that a callback gives work to, which is about to send. Home is called with what it has returned.
func (l *Loop) Away() (number uint32) {
	b := &l.batch
	if b.state.Load() != counting {
		return 0
	}
	b.workers.Store(true)
	b.outstanding.Add(1)
	return b.number.Load()
}

// Home says that the work is done. The last one sends what is held back if nobody leads who would.
func (l *Loop) Home(number uint32) {
	b := &l.batch
	if number == 0 || number != b.number.Load() {
		return
	}
	if l.returned() && b.state.Load() == sending && l.lead.Load() == 0 && !b.waiting.Load() && number == b.number.Load() {
		l.closeBatch()
	}
}

// returned counts a goroutine that has come home, and has what is held back sent when that is due. It reports whether it was the last.
func (l *Loop) returned() (last bool) {
	b := &l.batch
	if b.outstanding.Load() <= 0 {
		return false
	}
	switch b.outstanding.Add(-1) {
	case 0:
		select {
		case b.all <- struct{}{}:
		default:
		}
		return true
	case b.half.Load():
		l.d.Flush()
	}
	return false
}

// hold reports whether what is sent is held back for the batch.
func (l *Loop) hold() bool {
	switch b := &l.batch; {
	case b.held.Load():
	case !l.d.Hold():
		return false
	case b.held.Swap(true): // another goroutine came first
		l.d.Unhold()
	}
	return true
}

// settle ends a pass of the leader, which is about to wake so many goroutines. It reports whether exactly one is away.
func (l *Loop) settle(woken int32) (one bool) {
	b := &l.batch
	n := b.outstanding.Add(woken)
	if n >= batchFrom && b.state.Load() != noBatch && l.hold() {
		b.split(n)
		b.state.Store(sending)
		return false
	}
	l.closeBatch()
	return n == 1
}

// split has the first half of n leave before the second, if there are enough.
func (b *batch) split(n int32) {
	if n >= splitFrom {
		b.half.Store(n / 2)
	}
}

// gather waits until those that are away have come home, and sends what they have sent. It keeps holding back while they come: else each
// of them would make a write of its own.
func (l *Loop) gather() {
	b := &l.batch
	if b.state.Load() == sending && b.outstanding.Load() > 0 && b.waiting.CompareAndSwap(false, true) {
		switch home := b.wait(l.d); {
		case !b.workers.Load():
		case home:
			b.rests = 0
		default:
			b.rests = min(2*b.rests+1, maxRests)
			b.rest.Store(b.rests)
		}
		b.waiting.Store(false)
	}
	l.closeBatch()
}

// closeBatch sends what is held back.
func (l *Loop) closeBatch() {
	b := &l.batch
	b.outstanding.Store(0)
	held := b.held.Swap(false)
	b.state.Store(noBatch)
	if held {
		l.d.Unhold()
	}
}

// wait waits until all have come home. It gives up, and reports false, when none comes for a while, and has what is held back sent while they do.
func (b *batch) wait(d Driver) (home bool) {
	last, since := b.outstanding.Load(), d.Now()
	for yields := 0; b.outstanding.Load() > 0; yields++ {
		if last >= parkFrom && yields > 0 || yields >= maxYields {
			b.park()
		} else {
			runtime.Gosched()
		}
		now := d.Now()
		if now-since < batchTime {
			continue
		}
		n := b.outstanding.Load()
		if n >= last {
			return n <= 0
		}
		last, since = n, now
		d.Flush()
	}
	return true
}

// park sleeps until all have come home, or for a moment: a goroutine that yields again and again takes a processor away.
func (b *batch) park() {
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

// takeDue takes those that are parked and whose end has come off the list, for w, which leads, to wake. They are as many as woken, and w, if it
// goes away, too.
func (l *Loop) takeDue(w *Waiter) (ready []*Waiter, woken int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ready = l.dueLocked()
	l.due, l.ready = l.ready[:0], ready // who leads next needs the other one
	if woken = int32(len(ready)); woken > 0 && w.seemsOver() {
		woken++
	}
	return ready, woken
}

// wakeDue wakes those that are parked and whose end has come.
func (l *Loop) wakeDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wake(l.dueLocked())
}

// dueLocked takes those off the list. They are where l.due was.
func (l *Loop) dueLocked() (ready []*Waiter) {
	if l.look {
		l.lookDueLocked()
	}
	ready = l.due[:0]
	for _, d := range l.due {
		d.due = false
		if d.index >= 0 && d.seemsOver() { // it may have seen so itself, and wait for something else by now
			l.unlistLocked(d)
			ready = append(ready, d)
		}
	}
	l.dueCount.Store(0)
	l.due = l.due[:0]
	return ready
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
