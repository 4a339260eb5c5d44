package loop

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// batchThreshold is the number of goroutines that must be outstanding at the end of a pass for
	// output to be held back.
	batchThreshold = 2
	// batchTimeout is how long the leader waits for another outstanding goroutine to return.
	batchTimeout = 20 * time.Microsecond
	// parkThreshold is the number of outstanding goroutines at which the leader sleeps until they
	// have returned, rather than yielding.
	parkThreshold = 8
	// maxYields is the number of times that the leader yields before sleeping for fewer goroutines
	// than parkThreshold.
	maxYields = 100
	// splitThreshold is the number of outstanding goroutines at which the output is sent in two
	// parts: as soon as half of them have returned, so that the peer can start processing it, and
	// at the end.
	splitThreshold = 12
	// maxSkips is the maximum number of consecutive passes in which workers are not counted after a
	// wait for workers has timed out.
	maxSkips = 31
)

// States of a batch.
const (
	noBatch         int32 = iota
	counting              // callbacks are running, and workers are counted
	skippingWorkers       // callbacks are running, and workers are not counted
	draining              // the leader is waiting for outstanding goroutines
)

// A batch coalesces into one write the output of the callbacks of one pass and of the outstanding
// goroutines. Those are the workers to which callbacks hand work (Away), until they have finished
// it (Home), and the goroutines that the pass wakes, until they wait again.
//
// A batch begins with BeginBatch, before the callbacks of a pass run. At the end of the pass, if
// fewer than two goroutines are outstanding, each sends its own output. Otherwise output is held
// back, and the next pass first waits until all outstanding goroutines have returned or none has
// returned for batchTimeout.
//
// After a wait for workers has timed out, the next passes do not count workers: first 1 pass, then
// 3, 7, 15 and at most 31. Woken goroutines are always counted, because they are about to send.
// Only the leader waits for outstanding goroutines; a Trigger outside of the loop waits for its own
// batch.
type batch struct {
	state       atomic.Int32
	held        atomic.Bool   // whether Driver.Hold was called
	number      atomic.Uint32 // number of the current or last batch; never 0
	outstanding atomic.Int32  // number of goroutines counted that have not returned
	// splitAt is the value of outstanding at which the goroutine that decrements it flushes the
	// output, or -1 for none.
	splitAt     atomic.Int32
	hasWorkers  atomic.Bool   // whether Away has counted a worker
	skips       atomic.Int32  // number of upcoming passes that do not count workers
	allReturned chan struct{} // capacity 1; receives a value when outstanding becomes 0

	waiting   atomic.Bool // whether a goroutine is in drainBatch; that goroutine owns the fields below
	lastSkips int32       // value of skips set after the last wait
	timer     *time.Timer
}

// BeginBatch begins a batch and returns its number, or 0 if another batch is in progress. It must
// be called before callbacks run. EndBatch ends the batch.
func (l *Loop) BeginBatch() (number uint32) {
	b := &l.batch
	skips := b.skips.Load()
	next := counting
	if skips > 0 || l.mode != Lend {
		next = skippingWorkers
	}
	if !b.state.CompareAndSwap(noBatch, next) {
		return 0
	}
	b.skips.Store(max(skips-1, 0))
	b.splitAt.Store(-1)
	b.outstanding.Store(0)
	b.hasWorkers.Store(false)
	number = max(b.number.Add(1), 1)
	b.number.Store(number)
	if l.driver.Queued() > 1 {
		l.holdOutput()
	}
	return number
}

// EndBatch ends the batch with the given number. It waits for the outstanding goroutines and then
// sends their output. If number is 0, it only flushes the output of the batch in progress.
func (l *Loop) EndBatch(number uint32) {
	b := &l.batch
	if number != b.number.Load() {
		l.driver.Flush() // this goroutine's output is part of another goroutine's batch
		return
	}
	b.setSplit(b.outstanding.Load())
	if b.state.Load() != noBatch {
		b.state.Store(draining)
	}
	l.drainBatch()
}

// Away counts a worker to which a callback hands work that will send output. When the work is done,
// the worker must call Home with the result of Away.
func (l *Loop) Away() (number uint32) {
	b := &l.batch
	if b.state.Load() != counting {
		return 0
	}
	b.hasWorkers.Store(true)
	b.outstanding.Add(1)
	return b.number.Load()
}

// Home reports that the work counted by Away is done. The last worker of a batch sends the output,
// unless a goroutine leads, which then sends it.
func (l *Loop) Home(number uint32) {
	b := &l.batch
	if number == 0 || number != b.number.Load() {
		return
	}
	if l.countReturned() && b.state.Load() == draining && l.lead.Load() == 0 && !b.waiting.Load() && number == b.number.Load() {
		l.closeBatch()
	}
}

// countReturned counts a goroutine as returned and reports whether it was the last outstanding
// goroutine. It flushes the output if setSplit has arranged for that at this point.
func (l *Loop) countReturned() (last bool) {
	b := &l.batch
	if b.outstanding.Load() <= 0 {
		return false
	}
	switch b.outstanding.Add(-1) {
	case 0:
		select {
		case b.allReturned <- struct{}{}:
		default:
		}
		return true
	case b.splitAt.Load():
		l.driver.Flush()
	}
	return false
}

// holdOutput makes the Driver hold back output until closeBatch is called. It returns false if the
// Driver does not support that.
func (l *Loop) holdOutput() bool {
	switch b := &l.batch; {
	case b.held.Load():
	case !l.driver.Hold():
		return false
	case b.held.Swap(true): // another goroutine has also called Hold
		l.driver.Unhold()
	}
	return true
}

// endPass ends a pass of the leader. woken is the number of goroutines that the leader is about to
// wake, which endPass counts as outstanding. It reports whether exactly one goroutine is then
// outstanding.
func (l *Loop) endPass(woken int32) (one bool) {
	b := &l.batch
	n := b.outstanding.Add(woken)
	if n >= batchThreshold && b.state.Load() != noBatch && l.holdOutput() {
		b.setSplit(n)
		b.state.Store(draining)
		return false
	}
	l.closeBatch()
	return n == 1
}

// setSplit arranges for the output of the first half of n outstanding goroutines to be sent before
// the second half has returned, if n is at least splitThreshold.
func (b *batch) setSplit(n int32) {
	if n >= splitThreshold {
		b.splitAt.Store(n / 2)
	}
}

// drainBatch waits for the outstanding goroutines to return, then sends the output. Output is held
// back meanwhile, so that they do not each make a write of their own.
func (l *Loop) drainBatch() {
	b := &l.batch
	if b.state.Load() == draining && b.outstanding.Load() > 0 && b.waiting.CompareAndSwap(false, true) {
		all := b.waitOutstanding(l.driver)
		switch {
		case !b.hasWorkers.Load():
		case all:
			b.lastSkips = 0
		default:
			b.lastSkips = min(2*b.lastSkips+1, maxSkips)
			b.skips.Store(b.lastSkips)
		}
		b.waiting.Store(false)
	}
	l.closeBatch()
}

// closeBatch ends the batch and sends any output held back.
func (l *Loop) closeBatch() {
	b := &l.batch
	b.outstanding.Store(0)
	held := b.held.Swap(false)
	b.state.Store(noBatch)
	if held {
		l.driver.Unhold()
	}
}

// waitOutstanding waits until all outstanding goroutines have returned, and then returns true. It
// returns false if none of them has returned for batchTimeout. While goroutines return, it flushes
// the output every batchTimeout.
func (b *batch) waitOutstanding(d Driver) (all bool) {
	last, since := b.outstanding.Load(), d.Now()
	for yields := 0; b.outstanding.Load() > 0; yields++ {
		if last >= parkThreshold && yields > 0 || yields >= maxYields {
			b.parkBriefly()
		} else {
			runtime.Gosched()
		}
		now := d.Now()
		if now-since < batchTimeout {
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

// parkBriefly sleeps until all outstanding goroutines have returned, or for batchTimeout. Unlike
// yielding, this does not keep a processor busy.
func (b *batch) parkBriefly() {
	if b.timer == nil {
		b.timer = time.NewTimer(batchTimeout)
	} else {
		b.timer.Reset(batchTimeout)
	}
	select {
	case <-b.allReturned:
		b.timer.Stop()
	case <-b.timer.C:
	}
}

// takeDue removes from the lists the parked waiters whose wait is complete, and returns them for
// the leader w to wake. woken is their number, plus one if w's own wait is complete and w is about
// to return.
func (l *Loop) takeDue(w *Waiter) (ready []*Waiter, woken int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ready = l.takeDueLocked()
	l.due, l.ready = l.ready[:0], ready // the next leader may append to due while w is still waking ready
	if woken = int32(len(ready)); woken > 0 && w.isOverSafe() {
		woken++
	}
	return ready, woken
}

// wakeDue wakes the parked waiters whose wait is complete.
func (l *Loop) wakeDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wakeAll(l.takeDueLocked())
}

// takeDueLocked removes from the lists the parked waiters whose wait is complete, and returns them
// in the array of l.due. l.mu must be held.
func (l *Loop) takeDueLocked() (ready []*Waiter) {
	if l.checkAll {
		l.markDueLocked()
	}
	ready = l.due[:0]
	for _, d := range l.due {
		d.due = false
		if d.index >= 0 && d.isOverSafe() { // it may have returned already and be parked for another wait
			l.unlistLocked(d)
			ready = append(ready, d)
		}
	}
	l.dueCount.Store(0)
	l.due = l.due[:0]
	return ready
}

// wakeAll wakes waiters that have been removed from the list of parked waiters.
func wakeAll(all []*Waiter) {
	for i, w := range all {
		all[i] = nil
		w.token <- struct{}{}
	}
}

// markDueLocked marks the parked waiters whose wait is complete as due. l.mu must be held.
func (l *Loop) markDueLocked() {
	l.checkAll = false
	for _, w := range l.parked {
		if !w.due && w.isOverSafe() {
			w.due = true
			l.due = append(l.due, w)
		}
	}
}
