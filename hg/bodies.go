package hg

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// bodies counts input and output that did not fit an envelope, or a receive of that size.
type bodies struct {
	inline atomic.Int64 // went with its message all the same
	lent   atomic.Int64
	noRoom atomic.Int64 // of these, for want of room
	room   atomic.Int64 // bytes that responses under way may take
}

// countLent counts a body that is lent, of a message that would have n bytes with it.
func (b *bodies) countLent(n int) {
	b.lent.Add(1)
	if n <= na.MaxRoom {
		b.noRoom.Add(1)
	}
}

// reserveRoom accounts for a response of the largest size class, unless calls that are under way have a quarter of
// Config.MaxPulled already. The memory is taken when it comes. Locked.
func (k *call) reserveRoom() {
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

// returnRoom ends that. Locked.
func (k *call) returnRoom() {
	if k.room > 0 {
		k.h.ctx.bodies.room.Add(-int64(na.RoomBytes(k.room)))
		k.room = 0
	}
}

// freeOutput ends the use of a response. Locked.
func (k *call) freeOutput() {
	if k.env != nil {
		k.env.Free()
		k.env = nil
	}
	k.output, k.meta = nil, nil
}
