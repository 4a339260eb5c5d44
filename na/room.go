package na

import "github.com/quicksilver-rpc/quicksilver/internal/slab"

// A message longer than an envelope needs room beside it: memory of the peer's, by size class, which the peer grants once
// such messages come and which comes back when the message is freed. So does a body, which goes beside its message, in pieces.
// Nothing waits for room: what finds none is lent.
//
//	source                                                destination
//	ClaimRoom ─ granted and free? ─ no ─► lend the body ─► GrantRoom
//	                │ yes                                     │
//	                ▼                        ◄──── credit ────┘
//	            SendUnexpected ─────────────────────────────► Envelope ─► Free ─► credit

// roomClasses is how many size classes there are.
const roomClasses = 3

// RoomHead is what each class has beyond its round size, in bytes: for what goes in front of a body.
const RoomHead = MaxRoom - 64<<10

// MaxRoom is the length of the longest message, in bytes.
const MaxRoom = slab.Least

// roomClass returns the number of the smallest size class that holds n bytes: 1, 2 or 3. It is 0 when none does.
func roomClass(n int) int {
	for class := 1; class <= roomClasses; class++ {
		if n <= RoomBytes(class) {
			return class
		}
	}
	return 0
}

// RoomBytes returns how many bytes a size class has: 16, 32 or 64 KiB and RoomHead. Class 0 has none.
func RoomBytes(class int) int {
	if class < 1 || class > roomClasses {
		return 0
	}
	return 8<<10<<class + RoomHead
}

// MaxBody is the length of the longest body, in bytes: 4 MiB and what may be in front.
const MaxBody = slab.Least << 6

// bodyBytes returns how much room a body of n bytes takes: that of the smallest size class which holds it. The classes are 65 and
// 97.5 KiB, 130 and 195 KiB, and so on up to MaxBody. It is 0 when none does.
func bodyBytes(n int) int {
	if n > MaxBody {
		return 0
	}
	return slab.Size(n)
}

// ClaimRoom claims room at a peer for one unexpected message of n bytes, more than MaxUnexpected, or for one body, and
// returns the peer's address bound to the session that has the room. It reports false when there is no session, or not
// that much room. It does not wait. The claim ends with the operation that sends a message or a body of that length to that address,
// whatever comes of it, or with ReturnRoom.
func (c upper) ClaimRoom(to Addr, n int) (bound Addr, ok bool) {
	if c.Closing() || n <= c.limits.MaxUnexpected || n > MaxBody {
		return Addr{}, false
	}
	return c.ep.claimRoom(to, n)
}

// ReturnRoom ends a claim that no message has used.
func (c upper) ReturnRoom(bound Addr, n int) { c.ep.returnRoom(bound, n) }

// GrantRoom lets the peer send messages, or bodies, of n bytes beside what fits an envelope, as far as Config.Budget has room for
// them. Each call grants more, up to a limit for each peer. Until the first one a peer costs nothing beyond its envelopes.
func (c upper) GrantRoom(peer Addr, n int) {
	if !c.Closing() {
		c.ep.grantRoom(peer, n)
	}
}
