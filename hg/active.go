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
type load struct {
	most, mostPerPeer int64

	n       atomic.Int64
	waiting atomic.Int64

	mu         sync.Mutex // guards the list
	head, tail *Handle    // by service.next
}

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

// admit reports whether the handler of h may begin; otherwise h is dispatched again when it may.
func (c *Context) admit(h *Handle) bool {
	d := &c.load
	s := h.service
	if s.admitted || c.nctx.Closing() {
		return true
	}
	if d.waiting.Load() == 0 && d.take(h) {
		s.admitted = true
		return true
	}
	d.mu.Lock()
	s.next = nil
	if d.tail == nil {
		d.head = h
	} else {
		d.tail.service.next = h
	}
	d.tail = h
	d.waiting.Add(1)
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

// advance dispatches what has waited for room and may begin; when the context is closed, everything.
func (c *Context) advance() {
	d := &c.load
	if d.waiting.Load() == 0 {
		return
	}
	closing := c.nctx.Closing()
	d.mu.Lock()
	defer d.mu.Unlock()
	var last *Handle
	for h := d.head; h != nil; {
		next := h.service.next
		if !closing && d.n.Load() >= d.most {
			return
		}
		if closing || d.take(h) {
			h.service.admitted = !closing
			h.service.next = nil
			if last == nil {
				d.head = next
			} else {
				last.service.next = next
			}
			if next == nil {
				d.tail = last
			}
			d.waiting.Add(-1)
			c.PostTask(&h.service.dispatch)
		} else {
			last = h
		}
		h = next
	}
}
