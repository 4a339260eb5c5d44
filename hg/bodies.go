package hg

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// bodyStats counts bodies (input and output) that did not fit an envelope, or a receive buffer of
// that size.
type bodyStats struct {
	inline atomic.Int64 // sent with their message, in room that the peer had granted
	lent   atomic.Int64
	noRoom atomic.Int64 // lent bodies that were short enough to be sent inline but had no room
	room   atomic.Int64 // bytes reserved for inline responses to calls in flight
}

// countLent counts a body of n bytes that is lent.
func (b *bodyStats) countLent(n int) {
	b.lent.Add(1)
	if n <= na.MaxBody {
		b.noRoom.Add(1)
	}
}

// grantRoom grants a peer room to send bodies of n bytes instead of lending them. front is the size
// of the message before the body. If both fit one message the room is for the message, else for a
// separate body.
func (c *Context) grantRoom(peer na.Addr, n int64, front int) {
	switch long := n + int64(front); {
	case long <= na.MaxRoom && front > 0:
		c.nctx.Upper().GrantRoom(peer, int(long))
	case n <= na.MaxBody:
		c.nctx.Upper().GrantRoom(peer, int(n))
	}
}

// reserveRoomLocked reserves room for a response of the largest size class, unless the calls in
// flight have reserved a quarter of Config.MaxPulled. It only counts: the memory is allocated when
// the response arrives.
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

// returnRoomLocked reverts reserveRoomLocked.
func (k *call) returnRoomLocked() {
	if k.room > 0 {
		k.h.ctx.bodies.room.Add(-int64(na.RoomBytes(k.room)))
		k.room = 0
	}
}

// freeOutputLocked frees the memory of the last response.
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
