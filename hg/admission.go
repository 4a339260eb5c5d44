package hg

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The admission of a context is the requests whose handlers have begun and that have not ended. It is bounded, for the context, for
// each session, and for an RPC that says so: a request beyond a bound is not accepted, so it keeps its envelope, can be
// withdrawn, and holds its origin back. It begins when another one ends, oldest first among those that may.
//
//	arrived ─► dispatch ─► room? ─ yes ─► accepted, handler runs … it has ended ───► room for the next
//	                         │ no ─────► waits ◄────────────────────────────────────────┘
//	                         │             ├─ its origin takes it back: it leaves at once
//	                         │             └─ its deadline passes, or its origin is lost: refused
//	                         └─ so many of the RPC wait already: refused
//
// Requests with streams are counted apart, with bounds of their own, since they may last for ever: one beyond them is refused at once. They wait
// only for the bound of their RPC. Those of RPCs with CountAsCall are counted with the others: their streams are data that ends.
type admission struct {
	maxActive, maxPerPeer         int64
	maxStreams, maxStreamsPerPeer int64

	active  atomic.Int64
	streams atomic.Int64 // requests with streams, which n does not count
	waiting atomic.Int64

	mu             sync.Mutex // guards the fields below, and waits of those in the list
	head, tail     *service   // by service.next and prev
	waitingStreams int        // requests with streams among them
}

// A methodLimit is that of an RPC, in all contexts of the class.
type methodLimit struct {
	maxActive, maxWaiting int64
	active, waiting       atomic.Int64 // its requests that have room, and that wait because there is none
}

// newMethodLimit returns what bounds the requests of an RPC by themselves; nil for nothing.
func (r *RPC) newMethodLimit() *methodLimit {
	if r.MaxActive <= 0 {
		return nil
	}
	b := &methodLimit{maxActive: int64(r.MaxActive), maxWaiting: int64(max(r.Queue, 0))}
	if r.Queue == 0 {
		b.maxWaiting = b.maxActive
	}
	return b
}

// acquire takes room, if there is some.
func (b *methodLimit) acquire() bool {
	if b == nil || b.active.Add(1) <= b.maxActive {
		return true
	}
	b.active.Add(-1)
	return false
}

// tryEnqueue reports whether one more may wait; it is counted if it waits for this bound.
func (b *methodLimit) tryEnqueue() (counted, ok bool) {
	if b == nil || b.active.Load() < b.maxActive {
		return false, true
	}
	if b.waiting.Add(1) <= b.maxWaiting {
		return true, true
	}
	b.waiting.Add(-1)
	return false, false
}

// The load of a session counts requests in its lower half, and those with streams in its upper half.
const streamUnit = 1 << 32

// splitLoad returns both halves.
func splitLoad(load int64) (requests, streams int64) { return int64(uint32(load)), load >> 32 }

// activeCount is how many requests have room, those with streams among them.
func (d *admission) activeCount() int64 { return d.active.Load() + d.streams.Load() }

// tryAcquire takes room for s, if there is some.
func (d *admission) tryAcquire(s *service) bool {
	if s.isStream {
		return s.rpc.methodLimit.acquire() // the rest it has: see takeStreams
	}
	if d.active.Add(1) <= d.maxActive {
		if int64(uint32(s.peerLoad.Add(1))) <= d.maxPerPeer && s.rpc.methodLimit.acquire() {
			return true
		}
		s.peerLoad.Add(-1)
	}
	d.active.Add(-1)
	return false
}

// acquireStream takes room for a request with streams, once, or returns the refusal.
func (d *admission) acquireStream(s *service) error {
	if s.streaming {
		return nil
	}
	_, n := splitLoad(s.peerLoad.Add(streamUnit))
	all := d.streams.Add(1)
	s.streaming = true
	switch {
	case n > d.maxStreamsPerPeer:
		d.releaseStream(s)
		return na.WithText(ErrExhausted, fmt.Sprintf("%d streams of this process are open at the peer (hg.Config.MaxStreamsPerPeer)", d.maxStreamsPerPeer))
	case all > d.maxStreams:
		d.releaseStream(s)
		return na.WithText(ErrExhausted, fmt.Sprintf("%d streams are open at the peer (hg.Config.MaxStreams)", d.maxStreams))
	}
	return nil
}

// releaseStream returns the room of takeStreams.
func (d *admission) releaseStream(s *service) {
	s.streaming = false
	s.peerLoad.Add(-streamUnit)
	d.streams.Add(-1)
}

// admitRequest reports whether the handler of s may begin, or is not to; otherwise s is dispatched again when it may.
func (c *Context) admitRequest(s *service) bool {
	d := &c.admission
	if s.admitted || s.rpc.own.Expedited || c.nctx.Draining() {
		return true
	}
	streaming := s.isStream
	if streaming {
		if err := d.acquireStream(s); err != nil {
			s.rejectRequest(err)
			return false
		}
	}
	if (d.waiting.Load() == 0 || streaming && s.rpc.methodLimit == nil) && d.tryAcquire(s) {
		s.admitted = true
		return true
	}
	waits, err := c.queueRequest(s)
	switch {
	case err != nil:
		s.rejectRequest(err)
	case waits:
		c.dispatchWaiting() // there may be room by now
	}
	return !waits && err == nil
}

// queueRequest has s wait for room, unless it is to be refused.
func (c *Context) queueRequest(s *service) (waits bool, err error) {
	c.watchFaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armTimerLocked(s.waitDeadline)
	if s.isLate() || !s.env.Watch((*waitsForRoom)(s)) { // looked at here: the alarm either finds s waiting, or has rung before
		return false, nil
	}
	if s.deadline != 0 && c.Now() >= s.waitDeadline {
		return false, errHeldUp(s.describeFullLimit())
	}
	if err := c.appendWaitingLocked(s); err != nil {
		return false, err
	}
	if s.env.IsWithdrawn() { // meanwhile: abandon has not found it in the list, or has taken it out
		c.dispatchWithdrawn(s)
	}
	return true, nil
}

// appendWaitingLocked puts s at the end of the list, unless as many requests of its RPC wait as may. Locked.
func (c *Context) appendWaitingLocked(s *service) error {
	d := &c.admission
	d.mu.Lock()
	defer d.mu.Unlock()
	b := s.rpc.methodLimit
	counted, ok := b.tryEnqueue()
	if !ok {
		return na.WithText(ErrExhausted, fmt.Sprintf("%d requests of %s are at work and %d wait, which is the limit there", b.maxActive, s.rpcName(), b.maxWaiting))
	}
	s.counted = counted
	s.setPhaseLocked(serviceWaiting)
	d.pushBackLocked(s)
	return nil
}

// describeFullLimit names the bound for which s waits.
func (s *service) describeFullLimit() string {
	waiting := s.ctx.admission.waiting.Load()
	switch reason, limit := s.fullLimit(); reason {
	case heldby.Method:
		return fmt.Sprintf("%d calls of %s are active there (qs.MaxConcurrent, hg.RPC.MaxActive), and %d wait", limit, s.rpcName(), s.rpc.methodLimit.waiting.Load())
	case heldby.PerPeer:
		return fmt.Sprintf("%d calls of this process are active there (hg.Config.MaxActivePerPeer), and %d of all processes wait", limit, waiting)
	case heldby.Total:
		return fmt.Sprintf("%d calls are active there (hg.Config.MaxActive), and %d wait", limit, waiting)
	}
	return fmt.Sprintf("%d calls wait there for others to end", waiting)
}

// releaseAdmission returns the room of s.
func (c *Context) releaseAdmission(s *service) {
	streaming := s.streaming
	if streaming {
		c.admission.releaseStream(s)
	}
	if !s.admitted {
		return
	}
	s.admitted = false
	if !streaming {
		s.peerLoad.Add(-1)
		c.admission.active.Add(-1)
	}
	b := s.rpc.methodLimit
	if b != nil {
		b.active.Add(-1)
	}
	c.dispatchWaiting()
	if b == nil || b.waiting.Load() == 0 {
		return
	}
	for _, other := range c.class.Contexts() {
		if other != c {
			other.dispatchWaiting()
		}
	}
}

// dispatchWaiting dispatches what has waited for room and may begin; when the context is shut down or closed, everything, to be
// refused.
func (c *Context) dispatchWaiting() {
	d := &c.admission
	if d.waiting.Load() == 0 {
		return
	}
	closing := c.nctx.Draining()
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := d.head; s != nil; {
		next := s.next
		full := d.active.Load() >= d.maxActive
		if !closing && full && d.waitingStreams == 0 {
			return
		}
		if closing || (!full || s.isStream) && d.tryAcquire(s) {
			s.admitted = !closing
			c.dispatchAgainLocked(s)
		}
		s = next
	}
}

// dispatchWithdrawn dispatches s, which has been taken back, if it waits. The lock of the endpoint may be held.
func (c *Context) dispatchWithdrawn(s *service) {
	c.admission.mu.Lock()
	defer c.admission.mu.Unlock()
	if s.waits {
		c.dispatchAgainLocked(s)
	}
}

// removeWaiting takes s out of the list, and reports false if it was not there.
func (d *admission) removeWaiting(s *service) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.waits {
		return false
	}
	d.removeLocked(s)
	return true
}

// dispatchAgainLocked has a request that waits go on. Locked.
func (c *Context) dispatchAgainLocked(s *service) {
	c.admission.removeLocked(s)
	_ = c.post(&s.dispatch)
}

func (d *admission) pushBackLocked(s *service) {
	s.waits, s.prev, s.next = true, d.tail, nil
	if d.tail == nil {
		d.head = s
	} else {
		d.tail.next = s
	}
	d.tail = s
	d.waiting.Add(1)
	if s.isStream {
		d.waitingStreams++
	}
}

func (d *admission) removeLocked(s *service) {
	if s.prev == nil {
		d.head = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		d.tail = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.waits, s.prev, s.next = false, nil, nil
	d.waiting.Add(-1)
	if s.isStream {
		d.waitingStreams--
	}
	if s.counted {
		s.counted = false
		s.rpc.methodLimit.waiting.Add(-1)
	}
}
