package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// peerRoom is the room for messages longer than an envelope, and for bodies and streams: a second
// cumulative credit beside that of envelopes, in bytes by size class. A message uses one envelope
// whatever its size, so that the guarantee stays exact. If there is no room the source does not
// wait, but sends the message another way.
//
//	source: used ≤ granted                             destination: taken ≤ announced ≤ freed + reserved
//	ClaimRoom ─► SendUnexpected ── UNEXPECTED ──► taken ─► recycled: freed
//	          granted ◄──────────────── CREDIT ◄── announced ◄───────┘
//
// session.room is nil until room is granted.
type peerRoom struct {
	// Source.
	granted uint64 // bytes that the peer has ever granted
	used    uint64 // claimed or sent
	claimed uint64 // the part of used for messages that were not sent yet

	// Destination.
	reserved  int64  // reserved for this peer out of the budget
	announced uint64 // granted to the peer by CREDITs that were sent
	taken     uint64 // taken by messages that have arrived
	freed     uint64
	held      int64 // taken by messages that were not recycled yet
	updateDue bool  // a CREDIT with freed room must be sent
}

const (
	// maxRoom limits the room of one session for messages to 64 of the largest class, in bytes.
	// maxBodies is the limit for bodies.
	maxRoom   = 64 * MaxRoom
	maxBodies = 4 * MaxBody
	// maxGrant limits the unused room that a peer may grant, in bytes.
	maxGrant = 1 << 30
)

// roomOf returns the room that a message or a body of n bytes takes; 0 if it fits an envelope.
func (l *session) roomOf(n int) int {
	switch {
	case n <= l.eager:
		return 0
	case n > MaxRoom:
		return bodyBytes(n)
	}
	return RoomBytes(roomClass(n))
}

// ensureRoom returns the room of l. It allocates the account if there is none.
func (l *session) ensureRoom() *peerRoom {
	if l.room == nil {
		l.room = &peerRoom{}
	}
	return l.room
}

// reserveRoom reserves up to want bytes of room for a peer that has have bytes already, and returns
// the number. It reserves nothing if least bytes are not available.
//
// All peers together get Config.Room. Without that they get at most a quarter of the budget, and
// nothing of what the guarantee to Config.Peers needs. Granted room is returned only when the
// session ends, so after the first reservation no peer gets more than three quarters of what the
// others leave.
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
			// only the last refusal is recorded, so that a single request does not reduce the room
			// of others for ever
			d.missed.Store(least)
		}
		return 0
	}
	d.room += n
	return n
}

// roomLeftLocked returns how many bytes may still be reserved for room, of all peers. The caller holds
// d.mu.
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

// reclaimRoom returns n bytes of room that a peer has freed to the budget, if another peer was
// refused room, and reports whether it did. have is the room of the peer, which keeps four such
// messages.
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

// claimRoom claims room for one unexpected message of n bytes that is longer than an envelope, or
// for a body. bound is to, bound to the session with the claim. Sending the message ends the claim,
// whatever the result. If the message is not sent the caller calls returnRoom.
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

// returnRoom ends a claim of claimRoom that no message has used.
func (e *endpoint) returnRoom(bound Addr, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.findSessionLocked(bound); l != nil {
		l.returnRoom(l.useClaim(n))
	}
}

// useClaim ends the claim for a message of n bytes, and returns its room; 0 if there is no claim.
func (l *session) useClaim(n int) int {
	need := l.roomOf(n)
	if l.room == nil || l.room.claimed < uint64(need) {
		return 0
	}
	l.room.claimed -= uint64(need)
	return need
}

// returnRoom returns n bytes of claimed room that were not sent, and offers them to streams.
func (l *session) returnRoom(n int) {
	if n > 0 {
		l.room.used -= uint64(n)
		l.feedStreams()
	}
}

// roomGranted handles the total room that the peer has granted. A smaller total is older, and
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

// firstGrant is the number of messages for which the first grantRoom of a session reserves room. At
// four, one message is a quarter of it, and scheduleRoomUpdate sends a CREDIT frame for half of it.
// So sequential calls return their room with their responses, without separate frames.
const firstGrant = 4

// grantRoom reserves room for messages of n bytes of a peer, and announces it: for firstGrant of
// them the first time, then twice as much each time, up to maxRoom.
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

// checkRoom returns an error if an unexpected message of n bytes is too long or has no announced
// room.
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

// takeRoom charges env, a message of the peer, to the room.
func (l *session) takeRoom(env *Envelope) {
	if n := l.roomOf(len(env.Data)); n > 0 {
		l.room.claim(n)
		env.taken += n
	}
}

// claim charges n bytes of the peer to the room.
func (r *peerRoom) claim(n int) {
	r.taken += uint64(n)
	r.held += int64(n)
}

// freeRoom returns the room of env.
func (l *session) freeRoom(env *Envelope) {
	l.freeBytes(env.taken, 0)
	env.taken = 0
}

// freeBytes returns n bytes of room that the peer's messages had taken. If another peer was refused
// room they return to the budget, as long as keep bytes remain. Otherwise the small parts that
// streams free would take away all room.
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

// unannouncedBytes returns how much free room was not announced to the peer yet.
func (r *peerRoom) unannouncedBytes() uint64 { return r.freed + uint64(r.reserved) - r.announced }

// scheduleRoomUpdate queues a CREDIT frame if at least half of the room is free. Less room is
// announced with the next message.
func (l *session) scheduleRoomUpdate() {
	r := l.room
	due := 2*r.unannouncedBytes() >= uint64(r.reserved)
	// Streams whose readers have stopped may hold more than half. The other condition announces
	// room then.
	if l.activeState != nil && len(l.streams) > 0 {
		due = due || r.unannouncedBytes() >= r.announced-r.taken
	}
	if !r.updateDue && r.unannouncedBytes() > 0 && due {
		r.updateDue = true
		l.markPending()
	}
}

func (l *session) roomUpdateDue() bool { return l.room != nil && l.room.updateDue }

// announceRoom returns the total of room for a CREDIT that is being sent, and marks it announced.
func (l *session) announceRoom() uint64 {
	if l.room == nil {
		return 0
	}
	l.room.announced += l.room.unannouncedBytes()
	l.room.updateDue = false
	return l.room.announced
}

// roomGauges fills in the room of PeerStats.
func (l *session) roomGauges(s *PeerStats) {
	if r := l.room; r != nil {
		s.Room, s.RoomHeld, s.RoomFree = r.reserved, r.held, int64(r.granted-r.used)
	}
}
