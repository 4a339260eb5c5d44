package hg

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// bodyStats counts the inputs and outputs (bodies) that did not fit in an envelope or in a receive
// buffer of the same size.
type bodyStats struct {
	inline atomic.Int64 // number of bodies sent inline, in memory that the peer had reserved for them
	lent   atomic.Int64
	noRoom atomic.Int64 // number of lent bodies that could have been sent inline if the peer had reserved memory
	room   atomic.Int64 // number of bytes reserved for inline responses to calls in flight
}

// countLent records that a body of n bytes was lent because the peer had granted no room to send it
// inline.
func (b *bodyStats) countLent(n int) {
	b.lent.Add(1)
	if n <= na.MaxBody {
		b.noRoom.Add(1)
	}
}

// grantRoom reserves memory so that a peer can send bodies of n bytes inline instead of lending
// them. front is the size of the message that precedes the body. If both fit in one message, the
// memory is reserved for that message, and otherwise for a separate body.
func (c *Context) grantRoom(peer na.Addr, n int64, front int) {
	switch long := n + int64(front); {
	case long <= na.MaxRoom && front > 0:
		c.nctx.Upper().GrantRoom(peer, int(long))
	case n <= na.MaxBody:
		c.nctx.Upper().GrantRoom(peer, int(n))
	}
}

// reserveRoomLocked reserves room for an inline response of the largest size class, unless the
// calls in flight would then have reserved more than a quarter of Config.MaxPulled. It only updates
// counters. The memory is allocated when the response arrives. The caller must hold k.h.mu.
func (k *call) reserveRoomLocked() {
	const class = 3
	c := k.h.ctx
	if c.class.cfg.MaxOutput <= int64(c.limits.MaxExpected) {
		return
	}
	if c.bodies.room.Add(int64(na.RoomBytes(class))) > c.class.cfg.MaxPulled/4 {
		c.bodies.room.Add(-int64(na.RoomBytes(class)))
		return
	}
	k.room = class
}

// returnRoomLocked releases the room reserved by reserveRoomLocked, if any. The caller must hold
// k.h.mu.
func (k *call) returnRoomLocked() {
	if k.room > 0 {
		k.h.ctx.bodies.room.Add(-int64(na.RoomBytes(k.room)))
		k.room = 0
	}
}

// freeOutputLocked frees the memory of the previous response. The caller must hold k.h.mu.
func (k *call) freeOutputLocked() {
	k.responseMemory.free()
	k.output, k.meta = nil, nil
}

// free returns the memory of a response to its pool.
func (m *responseMemory) free() {
	if m.env != nil {
		m.env.Free()
	}
	slab.Put(m.fetched)
	*m = responseMemory{}
}
