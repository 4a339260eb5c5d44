package na

import "github.com/quicksilver-rpc/quicksilver/internal/slab"

// A message longer than an envelope, or a body, needs room: memory at the peer, in size classes.
// The peer grants room after the first such message. The room is free again once its message has
// been freed. No operation waits for room. If none is free, the body is lent instead.
//
// The source calls ClaimRoom. If the peer has granted enough room and it is free, the source then
// calls SendUnexpected. Otherwise it lends the body, and the destination calls GrantRoom, so that
// there is room for later messages. When the destination frees the message's Envelope, it returns
// the room to the source as credit.

// roomClasses is the number of size classes.
const roomClasses = 3

// RoomHead is the number of bytes that each size class holds for a header, in addition to 16, 32,
// or 64 KiB of data.
const RoomHead = MaxRoom - 64<<10

// MaxRoom is the maximum length of a message, in bytes.
const MaxRoom = slab.Least

// roomClass returns the number, 1 through 3, of the smallest size class that holds n bytes. It
// returns 0 if n is larger than MaxRoom.
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

// bodyBytes returns the number of bytes of room that a body of n bytes occupies. This is n rounded
// up to one of the sizes 65, 97.5, 130, 195 KiB, and so on up to MaxBody. bodyBytes returns 0 if n
// is larger than MaxBody.
func bodyBytes(n int) int {
	if n > MaxBody {
		return 0
	}
	return slab.Size(n)
}

// ClaimRoom claims room at the peer for one body, or for one unexpected message, of n bytes. n must
// be larger than MaxUnexpected. On success, ClaimRoom returns the peer's address, bound to the
// session in which the room was claimed. If there is no session or not enough room, ok is false.
// The caller must send a message or body of n bytes to bound, which releases the claim even if the
// send fails, or call ReturnRoom. ClaimRoom does not block.
func (c upper) ClaimRoom(to Addr, n int) (bound Addr, ok bool) {
	if c.Closing() || n <= c.limits.MaxUnexpected || n > MaxBody {
		return Addr{}, false
	}
	return c.ep.claimRoom(to, n)
}

// ReturnRoom releases a claim of n bytes that ClaimRoom has returned and no operation has used.
func (c upper) ReturnRoom(bound Addr, n int) { c.ep.returnRoom(bound, n) }

// GrantRoom allows the peer to send messages or bodies of n bytes, which do not fit in an envelope,
// by reserving memory for some of them out of Config.Budget. Each call reserves more, up to a limit
// per peer. Before the first call, no memory beyond its envelopes is reserved for the peer. If the
// budget is exhausted, GrantRoom does nothing.
func (c upper) GrantRoom(peer Addr, n int) {
	if !c.Closing() {
		c.ep.grantRoom(peer, n)
	}
}
