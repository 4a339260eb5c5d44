package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// peerRoom accounts for the room for messages longer than an envelope, bodies, and streams. It is a
// cumulative credit in bytes, by size class, in addition to the envelope credit. A message uses one
// envelope regardless of its size, so the envelope guarantee stays exact. If there is no room, the
// source does not wait but sends the message another way.
//
//	source: used ≤ granted                             destination: taken ≤ announced ≤ freed + reserved
//	ClaimRoom ─► SendUnexpected ── UNEXPECTED ──► taken ─► recycled: freed
//	          granted ◄──────────────── CREDIT ◄── announced ◄───────┘
//
// session.room is nil until room is granted.
type peerRoom struct {
	// Source.
	granted uint64 // total bytes granted by the peer
	used    uint64 // bytes claimed or sent
	claimed uint64 // part of used for messages not yet sent

	// Destination.
	reserved  int64  // bytes reserved for this peer out of the budget
	announced uint64 // bytes granted to the peer in CREDITs already sent
	taken     uint64 // bytes taken by messages that have arrived
	freed     uint64
	held      int64 // bytes taken by messages not yet recycled
	updateDue bool  // a CREDIT with freed room must be sent
}

const (
	// maxRoom limits a session's room for messages, in bytes, to 64 messages of the largest class.
	// maxBodies is the corresponding limit for bodies.
	maxRoom   = 64 * MaxRoom
	maxBodies = 4 * MaxBody
	// maxGrant limits the unused room that a peer may grant, in bytes.
	maxGrant = 1 << 30
)

// roomOf returns the room that a message or body of n bytes occupies, or 0 if it fits in an
// envelope.
func (l *session) roomOf(n int) int {
	switch {
	case n <= l.eager:
		return 0
	case n > MaxRoom:
		return bodyBytes(n)
	}
	return RoomBytes(roomClass(n))
}

// ensureRoom returns the room account of l, allocating it if necessary.
func (l *session) ensureRoom() *peerRoom {
	if l.room == nil {
		l.room = &peerRoom{}
	}
	return l.room
}

// reserveRoom reserves up to want bytes of room for a peer that already has have bytes, and returns
// the number of bytes reserved. It reserves nothing if fewer than least bytes are available.
//
// All peers together may have Config.Room bytes. If that is not set, they may have at most a
// quarter of the budget and nothing that the guarantee to Config.Peers needs. Because granted room
// is returned only when the session is closed, no peer gets, after its first reservation, more than
// three quarters of what the other peers leave.
func (d *domain) reserveRoom(want, least, have int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.roomLeftLocked()
	n := min(want, left, max((have+left)/4*3-have, 0))
	if have == 0 {
		n = max(n, min(least, left))
	}
	if n <= 0 || n < least {
		if have == 0 {
			// Only the last refusal is recorded, so that a single request does not reduce the room of
			// other peers forever.
			d.missed.Store(least)
		}
		return 0
	}
	d.room += n
	return n
}

// roomLeftLocked returns the number of bytes that may still be reserved for room, for all peers
// together. d.mu must be held.
func (d *domain) roomLeftLocked() int64 {
	if d.cfg.Room != 0 {
		return d.cfg.Room - d.room
	}
	share := d.cfg.Budget / 4
	if promised := GuaranteedBytes(d.cfg.Peers, d.cfg.guaranteedEnvelopes(d.cfg.Envelopes), d.cfg.Eager); d.cfg.Peers > 0 {
		share = min(share, d.cfg.Budget-promised)
	}
	return min(share, d.cfg.Budget-d.reserved) - d.room
}

// reclaimRoom returns n bytes of room that a peer has freed to the budget if another peer has been
// refused room. It reports whether it did so. have is the peer's room, of which at least 4*n bytes
// are required, so that the peer keeps room for several such messages.
func (d *domain) reclaimRoom(n, have int64) bool {
	missed := d.missed.Load()
	if missed <= 0 || have < 4*n {
		return false
	}
	d.unreserveRoom(n)
	d.missed.Add(-n)
	return true
}

func (d *domain) unreserveRoom(n int64) {
	d.mu.Lock()
	d.room -= n
	d.mu.Unlock()
}

// claimRoom claims room for a body or for one unexpected message of n bytes that is longer than an
// envelope. bound is to, bound to the session that has the claim. Sending the message releases the
// claim, whatever the result. If the message is not sent, the caller must call returnRoom.
func (e *endpoint) claimRoom(to Addr, n int) (bound Addr, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSessionLocked(to)
	if l == nil || l.state != stateUp || l.room == nil {
		return Addr{}, false
	}
	r, need := l.room, uint64(l.roomOf(n))
	if need == 0 || r.granted-r.used < need {
		return Addr{}, false
	}
	r.used += need
	r.claimed += need
	return l.addr(), true
}

// returnRoom releases a claim made by claimRoom that no message has used.
func (e *endpoint) returnRoom(bound Addr, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.findSessionLocked(bound); l != nil {
		l.returnRoom(l.useClaim(n))
	}
}

// useClaim releases the claim for a message of n bytes and returns its room, or 0 if there is no
// claim.
func (l *session) useClaim(n int) int {
	need := l.roomOf(n)
	if l.room == nil || l.room.claimed < uint64(need) {
		return 0
	}
	l.room.claimed -= uint64(need)
	return need
}

// returnRoom returns n bytes of claimed room that were not used and offers them to streams.
func (l *session) returnRoom(n int) {
	if n > 0 {
		l.room.used -= uint64(n)
		l.feedStreams()
	}
}

// roomGranted handles the total room that the peer has granted. A smaller total is older and is
// ignored.
func (l *session) roomGranted(total uint64) error {
	if total == 0 || l.room != nil && int64(total-l.room.granted) <= 0 {
		return nil
	}
	r := l.ensureRoom()
	if total-r.used > maxGrant {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame grants %d bytes of room, previously %d, used %d", frame.Credit, total, r.granted, r.used))
	}
	r.granted = total
	return nil
}

// firstGrant is the number of messages for which the first grantRoom in a session reserves room.
// With four, one message is a quarter of the room, and scheduleRoomUpdate sends a CREDIT frame once
// half of it is free. Sequential calls therefore return their room along with their responses and
// need no separate frames.
const firstGrant = 4

// grantRoom reserves and announces room for messages of n bytes from peer. The first call in a
// session reserves room for firstGrant messages. Each later call doubles the room, up to maxRoom.
func (e *endpoint) grantRoom(peer Addr, n int) {
	e.mu.Lock()
	defer e.Unlock()
	l := e.findSessionLocked(peer)
	if l == nil || l.state != stateUp || e.shut {
		return
	}
	need := int64(l.roomOf(n))
	if need == 0 {
		return
	}
	r := l.ensureRoom()
	most := int64(maxRoom)
	if n > MaxRoom {
		most = min(max(most, 16*need), maxBodies)
	}
	if more := min(max(firstGrant*need, 2*r.reserved), most) - r.reserved; more > 0 {
		r.reserved += e.dom.reserveRoom(more, min(need, more), r.reserved)
	}
	l.scheduleRoomUpdate()
}

// checkRoom returns an error if an unexpected message of n bytes is too long or no room has been
// announced for it.
func (l *session) checkRoom(n int) error {
	need := l.roomOf(n)
	switch {
	case n <= l.eager:
	case n > MaxRoom:
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message of %d bytes, limit %d", n, MaxRoom))
	case l.room == nil || l.room.announced-l.room.taken < uint64(need):
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message of %d bytes, limit %d without room granted", n, l.eager))
	}
	return nil
}

// takeRoom charges env, a message from the peer, to the room.
func (l *session) takeRoom(env *Envelope) {
	if n := l.roomOf(len(env.Data)); n > 0 {
		l.room.claim(n)
		env.taken += n
	}
}

// claim charges n bytes from the peer to the room.
func (r *peerRoom) claim(n int) {
	r.taken += uint64(n)
	r.held += int64(n)
}

// freeRoom frees the room of env.
func (l *session) freeRoom(env *Envelope) {
	l.freeBytes(env.taken, 0)
	env.taken = 0
}

// freeBytes frees n bytes of room taken by the peer's messages. If another peer has been refused
// room, they return to the budget, provided that at least keep bytes remain. Without that
// condition, the small amounts freed by streams would gradually take away all room.
func (l *session) freeBytes(n int, keep int64) {
	if n == 0 {
		return
	}
	r := l.room
	r.held -= int64(n)
	r.freed += uint64(n)
	if l.Up() && r.reserved-int64(n) >= keep && l.e.dom.reclaimRoom(int64(n), r.reserved) {
		r.reserved -= int64(n) // so that it is not granted to this peer again
	}
	if l.state == stateDown {
		l.returnReserve()
		return
	}
	l.scheduleRoomUpdate()
}

// unannouncedBytes returns the amount of free room not yet announced to the peer.
func (r *peerRoom) unannouncedBytes() uint64 { return r.freed + uint64(r.reserved) - r.announced }

// scheduleRoomUpdate queues a CREDIT frame if at least half of the room is free. Smaller amounts
// are announced with the next message.
func (l *session) scheduleRoomUpdate() {
	r := l.room
	due := 2*r.unannouncedBytes() >= uint64(r.reserved)
	// Streams whose readers have stopped may hold more than half of the room. In that case the second
	// condition causes the announcement.
	if l.activeState != nil && len(l.streams) > 0 {
		due = due || r.unannouncedBytes() >= r.announced-r.taken
	}
	if !r.updateDue && r.unannouncedBytes() > 0 && due {
		r.updateDue = true
		l.markPending()
	}
}

func (l *session) roomUpdateDue() bool { return l.room != nil && l.room.updateDue }

// announceRoom returns the total room for a CREDIT about to be sent and marks it as announced.
func (l *session) announceRoom() uint64 {
	if l.room == nil {
		return 0
	}
	l.room.announced += l.room.unannouncedBytes()
	l.room.updateDue = false
	return l.room.announced
}

// roomGauges fills in the room fields of s.
func (l *session) roomGauges(s *PeerStats) {
	if r := l.room; r != nil {
		s.Room, s.RoomHeld, s.RoomFree = r.reserved, r.held, int64(r.granted-r.used)
	}
}
