package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A peerRoom accounts for a session's room, in both directions. Room is memory at the receiver for
// messages longer than an envelope, bodies, and streams. It is a cumulative credit in bytes, by
// size class, in addition to the envelope credit. A message uses one envelope regardless of its
// size, so the envelope guarantee stays exact. If there is no room, the source does not wait but
// sends the message another way.
//
// At the source, used never exceeds granted. At the destination, taken never exceeds announced, and
// announced never exceeds freed plus reserved. A message takes room when it arrives and frees the
// room when its memory is recycled. CREDIT frames announce free room to the source.
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
	// maxRoom is the maximum room of a session for messages, in bytes. It holds 64 messages of the
	// largest class. maxBodies is the corresponding limit for bodies.
	maxRoom   = 64 * MaxRoom
	maxBodies = 4 * MaxBody
	// maxGrant is the maximum unused room that a peer may grant, in bytes.
	maxGrant = 1 << 30
)

// roomOf returns the number of bytes of room that a message or body of n bytes occupies. It returns
// 0 if the message fits in an envelope.
func (l *session) roomOf(n int) int {
	switch {
	case n <= l.eager:
		return 0
	case n > MaxRoom:
		return bodyBytes(n)
	}
	return RoomBytes(roomClass(n))
}

// ensureRoom returns l.room, allocating it if necessary.
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

// roomLeftLocked returns the number of bytes of room that may still be reserved for all peers
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

// reclaimRoom returns n bytes of room, which a peer has freed, to the budget if another peer has
// been refused room, and reports whether it did so. have is the number of bytes of room reserved
// for the peer. If have is less than 4*n, reclaimRoom does nothing, so that the peer keeps room for
// several messages.
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

// claimRoom claims room at the peer for one body, or for one unexpected message longer than an
// envelope, of n bytes. bound is the address to, bound to the session in which the room was
// claimed. If there is not enough room, ok is false. A send to bound releases the claim, whatever
// its result. If nothing is sent, the caller must call returnRoom.
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

// returnRoom releases a claim of n bytes that claimRoom has returned and no send has used.
func (e *endpoint) returnRoom(bound Addr, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.findSessionLocked(bound); l != nil {
		l.returnRoom(l.useClaim(n))
	}
}

// useClaim removes the claim for a message of n bytes and returns the number of bytes of room that
// it covered. It returns 0 if there is no such claim.
func (l *session) useClaim(n int) int {
	need := l.roomOf(n)
	if l.room == nil || l.room.claimed < uint64(need) {
		return 0
	}
	l.room.claimed -= uint64(need)
	return need
}

// returnRoom marks n bytes of room that were claimed but not used as free and lets waiting streams
// use them.
func (l *session) returnRoom(n int) {
	if n > 0 {
		l.room.used -= uint64(n)
		l.feedStreams()
	}
}

// roomGranted handles a CREDIT frame in which the peer has granted total bytes of room since the
// session began. A total smaller than the last one is outdated and is ignored.
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
// With four, one message uses only a quarter of the room, whereas scheduleRoomUpdate sends a CREDIT
// frame once half of it is free. The room used by sequential calls is therefore announced in their
// responses, without separate frames.
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

// checkRoom returns an error if an unexpected message of n bytes exceeds the maximum length or the
// room announced to the peer.
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

// takeRoom charges the room that env, a message from the peer, occupies to the peer.
func (l *session) takeRoom(env *Envelope) {
	if n := l.roomOf(len(env.Data)); n > 0 {
		l.room.claim(n)
		env.taken += n
	}
}

// claim records that n bytes of room are occupied by data that has arrived from the peer.
func (r *peerRoom) claim(n int) {
	r.taken += uint64(n)
	r.held += int64(n)
}

// freeRoom frees the room that env occupies.
func (l *session) freeRoom(env *Envelope) {
	l.freeBytes(env.taken, 0)
	env.taken = 0
}

// freeBytes frees n bytes of room that the peer's data occupied. If another peer has been refused
// room, freeBytes returns them to the budget, provided that this peer keeps at least keep bytes.
// Without that limit, a peer would gradually lose all of its room through the small amounts that
// streams free.
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

// unannouncedBytes returns the number of bytes of free room that have not been announced to the
// peer.
func (r *peerRoom) unannouncedBytes() uint64 { return r.freed + uint64(r.reserved) - r.announced }

// scheduleRoomUpdate queues a CREDIT frame if at least half of the room is free and unannounced.
// Smaller amounts are announced along with the next message.
func (l *session) scheduleRoomUpdate() {
	r := l.room
	due := 2*r.unannouncedBytes() >= uint64(r.reserved)
	// Streams whose readers have stopped may hold more than half of the room, so less than half would
	// ever be free. In a session with streams, room is therefore also announced if it is at least as
	// much as the peer has left.
	if l.activeState != nil && len(l.streams) > 0 {
		due = due || r.unannouncedBytes() >= r.announced-r.taken
	}
	if !r.updateDue && r.unannouncedBytes() > 0 && due {
		r.updateDue = true
		l.markPending()
	}
}

func (l *session) roomUpdateDue() bool { return l.room != nil && l.room.updateDue }

// announceRoom returns the total room to put into a CREDIT frame that is about to be sent, and
// marks it as announced.
func (l *session) announceRoom() uint64 {
	if l.room == nil {
		return 0
	}
	l.room.announced += l.room.unannouncedBytes()
	l.room.updateDue = false
	return l.room.announced
}

// roomGauges sets the fields of s that describe the session's room.
func (l *session) roomGauges(s *PeerStats) {
	if r := l.room; r != nil {
		s.Room, s.RoomHeld, s.RoomFree = r.reserved, r.held, int64(r.granted-r.used)
	}
}
