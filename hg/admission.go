package hg

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// admission limits the number of active requests of a context. A request is active from the time
// its handler begins until the request completes. There is a limit for the context, one for each
// session, and one for each RPC that sets MaxActive. A request that exceeds a limit waits without
// being accepted. It keeps its envelope, which throttles its origin, and the origin can still
// withdraw it. When a request completes, the oldest waiting request that fits within the limits
// begins.
//
// A waiting request is removed if its origin withdraws it, and refused if its deadline expires or
// its origin is lost. A request that would wait for the limit of its RPC is refused at once if
// RPC.Queue requests of that RPC are already waiting.
//
// Requests with streams may stay open indefinitely. They have separate counters and limits, and a
// request that exceeds one of these is refused at once. Such a request waits only for the limit of
// its RPC. Requests of RPCs with CountAsCall are counted as requests without streams, because their
// streams carry a finite amount of data.
type admission struct {
	maxActive, maxPerPeer         int64
	maxStreams, maxStreamsPerPeer int64

	active  atomic.Int64
	streams atomic.Int64 // requests with streams, not included in active
	waiting atomic.Int64

	mu             sync.Mutex // guards the fields below and service.waits of the queued requests
	head, tail     *service   // wait queue, linked by service.next and service.prev
	waitingStreams int        // number of requests with streams in the wait queue
}

// methodLimit limits the requests of one RPC across all contexts of the class. A nil methodLimit
// imposes no limit.
type methodLimit struct {
	maxActive, maxWaiting int64
	active, waiting       atomic.Int64 // admitted requests, and requests waiting for this limit
}

// newMethodLimit returns the limit on r's requests, or nil if r sets none.
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

// acquire increments the number of active requests and returns true. If the limit is reached, it
// returns false and leaves the number unchanged.
func (b *methodLimit) acquire() bool {
	if b == nil || b.active.Add(1) <= b.maxActive {
		return true
	}
	b.active.Add(-1)
	return false
}

// tryEnqueue reports whether one more request may be added to the wait queue. If that request would
// wait for this limit, tryEnqueue adds it to b.waiting and sets counted.
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

// A session's load (peerLoad) holds the number of requests in its lower 32 bits and the number of
// requests with streams in its upper 32 bits.
const streamUnit = 1 << 32

// splitLoad returns the two counters of a session's load.
func splitLoad(load int64) (requests, streams int64) { return int64(uint32(load)), load >> 32 }

// activeCount returns the number of admitted requests, including those with streams.
func (d *admission) activeCount() int64 { return d.active.Load() + d.streams.Load() }

// tryAcquire adds s to the counters of active requests and returns true. If a limit is reached, it
// returns false and leaves the counters unchanged.
func (d *admission) tryAcquire(s *service) bool {
	if s.isStream {
		return s.rpc.methodLimit.acquire() // acquireStream has already counted s against the other limits
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

// acquireStream adds s, a request with streams, to the stream counters of its context and session.
// It does nothing if s has already been added. If a limit is reached, acquireStream returns an
// error, and the caller must refuse s.
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
		return na.WithText(ErrExhausted, fmt.Sprintf(
			"limit of %d open streams per peer reached (hg.Config.MaxStreamsPerPeer)", d.maxStreamsPerPeer))
	case all > d.maxStreams:
		d.releaseStream(s)
		return na.WithText(ErrExhausted, fmt.Sprintf(
			"limit of %d open streams reached (hg.Config.MaxStreams)", d.maxStreams))
	}
	return nil
}

// releaseStream removes s from the counters to which acquireStream added it.
func (d *admission) releaseStream(s *service) {
	s.streaming = false
	s.peerLoad.Add(-streamUnit)
	d.streams.Add(-1)
}

// admitRequest reports whether the handler of s may begin now. If it returns false, s has either
// been refused, or it is waiting and will be dispatched again once it may begin.
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
		c.dispatchWaiting() // a request may have completed since tryAcquire failed
	}
	return !waits && err == nil
}

// queueRequest appends s to the wait queue and sets waits. If err is not nil, s was not queued and
// the caller must refuse it. If waits is false and err is nil, the caller must dispatch s
// immediately.
func (c *Context) queueRequest(s *service) (waits bool, err error) {
	c.watchFaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armTimerLocked(s.waitDeadline)
	// Check after arming the timer: either the timer finds s waiting, or it has already fired.
	if s.isLate() || !s.env.Watch((*waitsForRoom)(s)) {
		return false, nil
	}
	if s.deadline != 0 && c.Now() >= s.waitDeadline {
		return false, errHeldUp(s.describeFullLimit())
	}
	if err := c.appendWaitingLocked(s); err != nil {
		return false, err
	}
	// Check again: markAbandoned may have run before s was queued. Otherwise it has already removed
	// s.
	if s.env.IsWithdrawn() {
		c.dispatchWithdrawn(s)
	}
	return true, nil
}

// appendWaitingLocked appends s to the wait queue. It returns an error if the queue of its RPC is
// full. The caller must hold s.mu.
func (c *Context) appendWaitingLocked(s *service) error {
	d := &c.admission
	d.mu.Lock()
	defer d.mu.Unlock()
	b := s.rpc.methodLimit
	counted, ok := b.tryEnqueue()
	if !ok {
		return na.WithText(ErrExhausted, fmt.Sprintf(
			"queue full: %d requests of %s are active and %d are queued (qs.MaxConcurrent and qs.MaxQueue)", b.maxActive, s.rpcName(), b.maxWaiting))
	}
	s.counted = counted
	s.setPhaseLocked(serviceWaiting)
	d.pushBackLocked(s)
	return nil
}

// describeFullLimit returns a description, for use in an error text, of the limit that s is waiting
// for.
func (s *service) describeFullLimit() string {
	waiting := s.ctx.admission.waiting.Load()
	switch reason, limit := s.fullLimit(); reason {
	case heldby.Method:
		return fmt.Sprintf("%d calls of %s are active (qs.MaxConcurrent, hg.RPC.MaxActive), %d are queued",
			limit, s.rpcName(), s.rpc.methodLimit.waiting.Load())
	case heldby.PerPeer:
		return fmt.Sprintf("%d calls of this process are active (hg.Config.MaxActivePerPeer), %d of all processes are queued",
			limit, waiting)
	case heldby.Total:
		return fmt.Sprintf("%d calls are active (hg.Config.MaxActive), %d are queued", limit, waiting)
	}
	return fmt.Sprintf("%d calls are queued", waiting)
}

// releaseAdmission removes s from the counters of active requests and dispatches the waiting
// requests that then fit within the limits. If an RPC's limit was released, it does so in every
// context of the class.
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

// dispatchWaiting dispatches the waiting requests that now fit within the limits. If the context is
// draining or closed, dispatchWaiting dispatches all waiting requests so that they are refused.
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

// dispatchWithdrawn dispatches s, which its origin has withdrawn, if s is in the wait queue. It
// acquires no request lock, because the caller may hold the endpoint's lock.
func (c *Context) dispatchWithdrawn(s *service) {
	c.admission.mu.Lock()
	defer c.admission.mu.Unlock()
	if s.waits {
		c.dispatchAgainLocked(s)
	}
}

// removeWaiting removes s from the wait queue and reports whether s was in it.
func (d *admission) removeWaiting(s *service) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.waits {
		return false
	}
	d.removeLocked(s)
	return true
}

// dispatchAgainLocked moves s from the wait queue to Trigger's queue. The caller must hold
// admission.mu.
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
