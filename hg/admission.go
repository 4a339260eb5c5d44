package hg

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// admission limits the requests of a context whose handlers have begun and that have not ended: in
// total, for each session, and for each RPC that sets MaxActive. A request over a limit waits and
// is not accepted: it keeps its envelope, which holds its origin back, and its origin can withdraw
// it. When a request ends, the oldest waiting request that fits the limits begins.
//
//	arrived ─► dispatch ─► room? ─ yes ─► accepted, handler runs … it has ended ───► room for the next
//	                         │ no ─────► waits ◄────────────────────────────────────────┘
//	                         │             ├─ its origin withdraws it: it leaves at once
//	                         │             └─ its deadline passes, or its origin is lost: refused
//	                         └─ RPC.Queue requests of the RPC wait already: refused
//
// Requests with streams may last forever, so they have counters and limits of their own, and a
// request over one of these is refused at once. They wait only for the limit of their RPC. Requests
// of RPCs with CountAsCall are counted with the requests without streams: their streams are data
// that ends.
type admission struct {
	maxActive, maxPerPeer         int64
	maxStreams, maxStreamsPerPeer int64

	active  atomic.Int64
	streams atomic.Int64 // requests with streams; not included in active
	waiting atomic.Int64

	mu             sync.Mutex // guards the fields below, and service.waits of the entries
	head, tail     *service   // wait queue, linked by service.next and service.prev
	waitingStreams int        // entries of the wait queue that have streams
}

// methodLimit limits the requests of one RPC, in all contexts of the class. A nil methodLimit is no
// limit.
type methodLimit struct {
	maxActive, maxWaiting int64
	active, waiting       atomic.Int64 // requests that are admitted, and requests that wait for this limit
}

// newMethodLimit returns the limit of r's requests, nil if r sets none.
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

// acquire counts one more active request, and reports false if that would exceed the limit.
func (b *methodLimit) acquire() bool {
	if b == nil || b.active.Add(1) <= b.maxActive {
		return true
	}
	b.active.Add(-1)
	return false
}

// tryEnqueue reports whether one more request may wait. counted is true if the request waits for
// this limit and is counted in b.waiting.
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

// The load of a session (peerLoad) counts requests in its lower 32 bits, and requests with streams
// in its upper 32 bits.
const streamUnit = 1 << 32

// splitLoad returns the two counters in the load of a session.
func splitLoad(load int64) (requests, streams int64) { return int64(uint32(load)), load >> 32 }

// activeCount returns how many requests are admitted, including those with streams.
func (d *admission) activeCount() int64 { return d.active.Load() + d.streams.Load() }

// tryAcquire counts s as active, and reports false if a limit is reached.
func (d *admission) tryAcquire(s *service) bool {
	if s.isStream {
		return s.rpc.methodLimit.acquire() // acquireStream has counted it against the other limits
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

// acquireStream counts s, a request with streams, unless it is already counted. It returns an error
// if a limit is reached, and s is to be refused.
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

// releaseStream reverts acquireStream.
func (d *admission) releaseStream(s *service) {
	s.streaming = false
	s.peerLoad.Add(-streamUnit)
	d.streams.Add(-1)
}

// admitRequest reports whether the handler of s may begin now. If not, s was refused, or it waits
// and is dispatched again when it may begin.
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
		c.dispatchWaiting() // a request may have ended since tryAcquire failed
	}
	return !waits && err == nil
}

// queueRequest appends s to the wait queue. It returns false without an error if s is to be
// dispatched now, and an error if s is to be refused.
func (c *Context) queueRequest(s *service) (waits bool, err error) {
	c.watchFaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armTimerLocked(s.waitDeadline)
	// Checked after the timer is armed: the timer either finds s waiting, or has fired before.
	if s.isLate() || !s.env.Watch((*waitsForRoom)(s)) {
		return false, nil
	}
	if s.deadline != 0 && c.Now() >= s.waitDeadline {
		return false, errHeldUp(s.describeFullLimit())
	}
	if err := c.appendWaitingLocked(s); err != nil {
		return false, err
	}
	// Checked again: markAbandoned may have run before s was queued; if not, it has removed s.
	if s.env.IsWithdrawn() {
		c.dispatchWithdrawn(s)
	}
	return true, nil
}

// appendWaitingLocked appends s to the wait queue. It returns an error if the queue of its RPC is
// full. s.mu is held.
func (c *Context) appendWaitingLocked(s *service) error {
	d := &c.admission
	d.mu.Lock()
	defer d.mu.Unlock()
	b := s.rpc.methodLimit
	counted, ok := b.tryEnqueue()
	if !ok {
		return na.WithText(ErrExhausted, fmt.Sprintf(
			"queue full: %d requests of %s are active, %d are queued", b.maxActive, s.rpcName(), b.maxWaiting))
	}
	s.counted = counted
	s.setPhaseLocked(serviceWaiting)
	d.pushBackLocked(s)
	return nil
}

// describeFullLimit describes the limit for which s waits, for the text of an error.
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

// releaseAdmission reverts the admission of s, and dispatches requests that waited for it.
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

// dispatchWaiting dispatches the waiting requests that the limits now admit. When the context is
// draining or closed it dispatches all of them, to be refused.
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

// dispatchWithdrawn dispatches s, a withdrawn request, if it waits. It takes only admission.mu,
// since the lock of the endpoint may be held.
func (c *Context) dispatchWithdrawn(s *service) {
	c.admission.mu.Lock()
	defer c.admission.mu.Unlock()
	if s.waits {
		c.dispatchAgainLocked(s)
	}
}

// removeWaiting removes s from the wait queue, and reports false if s was not in it.
func (d *admission) removeWaiting(s *service) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.waits {
		return false
	}
	d.removeLocked(s)
	return true
}

// dispatchAgainLocked moves a waiting request from the wait queue to Trigger's queue. admission.mu
// is held.
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
