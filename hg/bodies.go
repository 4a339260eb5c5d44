package hg

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// bodyStats counts input and output that did not fit an envelope, or a receive of that size.
type bodyStats struct {
	inline atomic.Int64 // went with its message all the same
	lent   atomic.Int64
	noRoom atomic.Int64 // of these, for want of room
	room   atomic.Int64 // bytes that responses under way may take
}

// countLent counts a body that is lent, of n bytes.
func (b *bodyStats) countLent(n int) {
	b.lent.Add(1)
	if n <= na.MaxBody {
		b.noRoom.Add(1)
	}
}

// grantRoom lets a peer send more bodies like one of n bytes that it has lent, behind front bytes: with their message, if they are not
// too long for that, or beside it.
func (c *Context) grantRoom(peer na.Addr, n int64, front int) {
	switch long := n + int64(front); {
	case long <= na.MaxRoom && front > 0:
		c.nctx.Upper().GrantRoom(peer, int(long))
	case n <= na.MaxBody:
		c.nctx.Upper().GrantRoom(peer, int(n))
	}
}

// reserveRoomLocked accounts for a response of the largest size class, unless calls that are under way have a quarter of
// Config.MaxPulled already. The memory is taken when it comes. Locked.
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

// returnRoomLocked ends that. Locked.
func (k *call) returnRoomLocked() {
	if k.room > 0 {
		k.h.ctx.bodies.room.Add(-int64(na.RoomBytes(k.room)))
		k.room = 0
	}
}

// freeOutputLocked ends the use of a response. Locked.
func (k *call) freeOutputLocked() {
	k.responseMemory.free()
	k.output, k.meta = nil, nil
}

// free gives the memory of a response back.
func (m *responseMemory) free() {
	if m.env != nil {
		m.env.Free()
	}
	slab.Put(m.fetched)
	*m = responseMemory{}
}
