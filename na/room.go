package na

import "github.com/quicksilver-rpc/quicksilver/internal/slab"

// A message longer than an envelope, or a body, needs room: memory at the peer, in size classes.
// The peer grants room after the first such message. The room is free again once its message has
// been freed. No operation waits for room. If none is free, the body is lent instead.
//
//	source                                                destination
//	ClaimRoom ─ granted and free? ─ no ─► lend the body ─► GrantRoom
//	                │ yes                                     │
//	                ▼                        ◄──── credit ────┘
//	            SendUnexpected ─────────────────────────────► Envelope ─► Free ─► credit

// roomClasses is the number of size classes.
const roomClasses = 3

// RoomHead is the number of bytes that each size class has in addition to 16, 32, or 64 KiB. They
// hold a header in front of the data.
const RoomHead = MaxRoom - 64<<10

// MaxRoom is the maximum length of a message, in bytes.
const MaxRoom = slab.Least

// roomClass returns the smallest size class that holds n bytes, 1 through 3, or 0 if n is too
// large.
func roomClass(n int) int {
	for class := 1; class <= roomClasses; class++ {
		if n <= RoomBytes(class) {
			return class
		}
	}
	return 0
}

// RoomBytes returns the size of a size class in bytes: 16, 32, or 64 KiB plus RoomHead. It returns
// 0 for class 0.
func RoomBytes(class int) int {
	if class < 1 || class > roomClasses {
		return 0
	}
	return 8<<10<<class + RoomHead
}

// MaxBody is the maximum length of a body, in bytes: 4 MiB plus the size of a header.
const MaxBody = slab.Least << 6

// bodyBytes returns the amount of room that a body of n bytes occupies: the smallest sufficient
// size of 65, 97.5, 130, 195 KiB, and so on up to MaxBody. It returns 0 if n is larger than
// MaxBody.
func bodyBytes(n int) int {
	if n > MaxBody {
		return 0
	}
	return slab.Size(n)
}

// ClaimRoom claims room at a peer for one unexpected message of n bytes, where n is larger than
// MaxUnexpected, or for one body. It returns the peer's address, bound to the session that has the
// room. It returns false if there is no session or not enough room. It does not block. The claim is
// released by the operation that sends a message or body of that length to that address, whatever
// its result, or by ReturnRoom.
func (c upper) ClaimRoom(to Addr, n int) (bound Addr, ok bool) {
	if c.Closing() || n <= c.limits.MaxUnexpected || n > MaxBody {
		return Addr{}, false
	}
	return c.ep.claimRoom(to, n)
}

// ReturnRoom releases a claim that no operation has used.
func (c upper) ReturnRoom(bound Addr, n int) { c.ep.returnRoom(bound, n) }

// GrantRoom grants the peer room for messages or bodies of n bytes, which do not fit in an
// envelope, to the extent that Config.Budget allows. Each call grants more, up to a limit per peer.
// Before the first call, a peer uses no memory beyond its envelopes.
func (c upper) GrantRoom(peer Addr, n int) {
	if !c.Closing() {
		c.ep.grantRoom(peer, n)
	}
}
