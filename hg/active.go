package hg

import (
	"sync"
	"sync/atomic"
)

// The load of a context is the requests whose handlers have begun and whose handles are not closed. It is bounded, for the
// context and for each session: a request beyond a bound is not accepted, so it keeps its envelope, can be withdrawn, and
// holds its origin back. It begins when another one is closed, oldest first among those that may.
//
//	arrived ─► dispatch ─► room? ─ yes ─► accepted, handler runs … last reference ─► room for the next
//	                         └─ no ──► waits ◄──────────────────────────────────────────┘
//	                                     └─ its deadline passes: dispatched, to be refused
type load struct {
	most, mostPerPeer int64

	n       atomic.Int64
	waiting atomic.Int64

	mu         sync.Mutex // guards the fields below, and waits of those in the list
	head, tail *Handle    // by service.next and prev
	sweepAt    int64      // when so many wait, those that were taken back are looked for
}

// sweepFirst is how many requests that were taken back may wait for room unnoticed; else no more than do wait.
const sweepFirst = 64

// take takes room for h, if there is some.
func (d *load) take(h *Handle) bool {
	if d.n.Add(1) <= d.most {
		if h.service.peerLoad.Add(1) <= d.mostPerPeer {
			return true
		}
		h.service.peerLoad.Add(-1)
	}
	d.n.Add(-1)
	return false
}

// admit reports whether the handler of h may begin, or is not to; otherwise h is dispatched again when it may.
func (c *Context) admit(h *Handle) bool {
	d := &c.load
	s := h.service
	if s.admitted || c.nctx.Draining() {
		return true
	}
	if d.waiting.Load() == 0 && d.take(h) {
		s.admitted = true
		return true
	}
	h.mu.Lock()
	h.arm()
	h.mu.Unlock()
	d.mu.Lock()
	if h.late() || s.env.IsWithdrawn() { // looked at here: the alarm either finds h in the list, or has rung before
		d.mu.Unlock()
		return true
	}
	s.found(evNoRoom)
	d.push(h)
	s.note(evNoRoom)
	if d.waiting.Load() >= max(d.sweepAt, sweepFirst) {
		c.sweep()
	}
	d.mu.Unlock()
	c.advance() // there may be room by now
	return false
}

// leave returns the room of h.
func (c *Context) leave(h *Handle) {
	if !h.service.admitted {
		return
	}
	h.service.admitted = false
	h.service.peerLoad.Add(-1)
	c.load.n.Add(-1)
	c.advance()
}

// advance dispatches what has waited for room and may begin; when the context is shut down or closed, everything, to be
// refused.
func (c *Context) advance() {
	d := &c.load
	if d.waiting.Load() == 0 {
		return
	}
	closing := c.nctx.Draining()
	d.mu.Lock()
	defer d.mu.Unlock()
	for h := d.head; h != nil; {
		next := h.service.next
		if !closing && d.n.Load() >= d.most {
			return
		}
		if closing || d.take(h) {
			h.service.admitted = !closing
			c.dispatch(h)
		}
		h = next
	}
}

// sweep dispatches the requests that wait and were taken back: they use no envelope, so nothing else bounds them. Locked.
func (c *Context) sweep() {
	d := &c.load
	for h := d.head; h != nil; {
		next := h.service.next
		if h.service.env.IsWithdrawn() {
			c.dispatch(h)
		}
		h = next
	}
	d.sweepAt = 2 * d.waiting.Load()
}

// expire dispatches h, whose deadline has passed, if it waits.
func (c *Context) expire(h *Handle) {
	c.load.mu.Lock()
	defer c.load.mu.Unlock()
	if h.service.waits {
		c.dispatch(h)
	}
}

// dispatch has a request that waits go on. Locked.
func (c *Context) dispatch(h *Handle) {
	h.service.found(evDispatched)
	c.load.remove(h)
	h.service.note(evDispatched)
	_ = c.PostTask(&h.service.dispatch)
}

func (d *load) push(h *Handle) {
	s := h.service
	s.waits, s.prev, s.next = true, d.tail, nil
	if d.tail == nil {
		d.head = h
	} else {
		d.tail.service.next = h
	}
	d.tail = h
	d.waiting.Add(1)
}

func (d *load) remove(h *Handle) {
	s := h.service
	if s.prev == nil {
		d.head = s.next
	} else {
		s.prev.service.next = s.next
	}
	if s.next == nil {
		d.tail = s.prev
	} else {
		s.next.service.prev = s.prev
	}
	s.waits, s.prev, s.next = false, nil, nil
	d.waiting.Add(-1)
}
