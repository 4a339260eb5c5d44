package na

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// Room for messages longer than an envelope: a second cumulative credit beside that of envelopes,
// in bytes by size class. A message uses one envelope whatever its size, so that the guarantee
// stays exact; a source that finds no room does not wait.
//
//	source: used ≤ granted                             destination: taken ≤ announced ≤ freed + reserved
//	ClaimRoom ─► SendUnexpected ── UNEXPECTED ──► taken ─► recycled: freed
//	          granted ◄──────────────── CREDIT ◄── announced ◄───────┘
//
// It is nil in a session until there is some.
type peerRoom struct {
	// Source.
	granted uint64 // bytes that the peer has ever granted
	used    uint64 // claimed or sent
	claimed uint64 // of these, for messages that have not begun

	// Destination.
	reserved  int64  // of the budget, for this peer
	announced uint64 // granted to it as far as it may know
	taken     uint64 // by messages that have arrived
	freed     uint64
	held      int64 // taken by messages that are not recycled
	updateDue bool  // the peer should hear of freed room
}

const (
	// maxRoom bounds the room of one session in bytes, for messages: 64 of the largest class; 16
	// bodies, and maxBodies bytes.
	maxRoom   = 64 * MaxRoom
	maxBodies = 4 * MaxBody
	// maxGrant is how much unused room a peer may grant in bytes.
	maxGrant = 1 << 30
)

// roomOf is what a message of n bytes takes beside its envelope, or a body.
func (l *session) roomOf(n int) int {
	switch {
	case n <= l.eager:
		return 0
	case n > MaxRoom:
		return bodyBytes(n)
	}
	return RoomBytes(roomClass(n))
}

// ensureRoom returns the account of l.
func (l *session) ensureRoom() *peerRoom {
	if l.room == nil {
		l.room = &peerRoom{}
	}
	return l.room
}

// reserveRoom takes want bytes out of the budget for messages of a peer that has some already, or
// fewer, but none below least. All peers get Config.Room, else a quarter of the budget at the most,
// and nothing of what Config.Peers need for their envelopes. What is granted does not come back
// before the session ends, so a peer gets no more than three quarters of what the others have left,
// but for its first.
func (d *domain) reserveRoom(want, least, have int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.roomLeft()
	n := min(want, left, max((have+left)/4*3-have, 0))
	if have == 0 {
		n = max(n, min(least, left))
	}
	if n <= 0 || n < least {
		if have == 0 {
			d.missed.Store(least) // of the last one: who asks once, and never again, does not keep others short
		}
		return 0
	}
	d.room += n
	return n
}

// roomLeft is what may still be reserved for room, of all peers. Locked, by d.mu.
func (d *domain) roomLeft() int64 {
	if d.cfg.Room != 0 {
		return d.cfg.Room - d.room
	}
	share := d.cfg.Budget / 4
	if promised := GuaranteedBytes(d.cfg.Peers, d.cfg.guaranteedEnvelopes(d.cfg.Envelopes), d.cfg.Eager); d.cfg.Peers > 0 {
		share = min(share, d.cfg.Budget-promised)
	}
	return min(share, d.cfg.Budget-d.reserved) - d.room
}

// reclaimRoom takes back n bytes that a peer has freed, if another peer was refused room, and
// reports whether it did. A peer that has less than four such messages' worth keeps what it has.
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

// claimRoom claims room for one unexpected message of n bytes, longer than an envelope, or for a
// body of n bytes, longer than that, too, and returns to bound to the session that has it. The
// claim ends with what sends it, in whatever way, or with ReturnRoom.
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

func (e *endpoint) returnRoom(bound Addr, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.findSessionLocked(bound); l != nil {
		l.returnRoom(l.useClaim(n))
	}
}

// useClaim takes the claim for a message of n bytes, and returns its room; 0 when there is none.
func (l *session) useClaim(n int) int {
	need := l.roomOf(n)
	if l.room == nil || l.room.claimed < uint64(need) {
		return 0
	}
	l.room.claimed -= uint64(need)
	return need
}

// returnRoom gives room back that was not used after all.
func (l *session) returnRoom(n int) {
	if n > 0 {
		l.room.used -= uint64(n)
		l.feedStreams()
	}
}

// roomGranted takes in how much room the peer has ever granted. An older word is ignored.
func (l *session) roomGranted(total uint64) error {
	if total == 0 || l.room != nil && int64(total-l.room.granted) <= 0 {
		return nil
	}
	r := l.ensureRoom()
	if total-r.used > maxGrant {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame that grants %d bytes of room after %d, %d used", frame.Credit, total, r.granted, r.used))
	}
	r.granted = total
	return nil
}

// firstGrant is for how many messages the first GrantRoom of a session reserves room. A quarter of
// it is less than the half that is announced by a frame of its own, so that what one call after the
// other frees is announced behind its response.
const firstGrant = 4

// grantRoom lets a peer send such messages: room for a few such messages at first, then twice as
// much each time.
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

// checkRoom reports why a message of n bytes must not have come.
func (l *session) checkRoom(n int) error {
	need := l.roomOf(n)
	switch {
	case n <= l.eager:
	case n > MaxRoom:
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message of %d bytes, the limit is %d", n, MaxRoom))
	case l.room == nil || l.room.announced-l.room.taken < uint64(need):
		return WithText(ErrProtocol, fmt.Sprintf("unexpected message of %d bytes, %d were offered and no room for more", n, l.eager))
	}
	return nil
}

// takeRoom has env, a message of the peer, take its room.
func (l *session) takeRoom(env *Envelope) {
	if n := l.roomOf(len(env.Data)); n > 0 {
		l.room.claim(n)
		env.taken += n
	}
}

func (r *peerRoom) claim(n int) {
	r.taken += uint64(n)
	r.held += int64(n)
}

// freeRoom returns what a message took: its bytes are not used any more.
func (l *session) freeRoom(env *Envelope) {
	l.freeBytes(env.taken, 0)
	env.taken = 0
}

// freeBytes returns n bytes of room. If another peer was refused room, that has it, but the session
// keeps at least so much: what is freed byte by byte would all be gone else.
func (l *session) freeBytes(n int, keep int64) {
	if n == 0 {
		return
	}
	r := l.room
	r.held -= int64(n)
	r.freed += uint64(n)
	if l.Up() && r.reserved-int64(n) >= keep && l.e.dom.reclaimRoom(int64(n), r.reserved) {
		r.reserved -= int64(n) // it is not granted again
	}
	if l.state == stateDown {
		l.returnReserve()
		return
	}
	l.scheduleRoomUpdate()
}

// unannouncedBytes is how much room the peer has and does not know of.
func (r *peerRoom) unannouncedBytes() uint64 { return r.freed + uint64(r.reserved) - r.announced }

// scheduleRoomUpdate has the peer told of free room by a frame of its own, when half of all is
// free. What is less goes behind a message.
func (l *session) scheduleRoomUpdate() {
	r := l.room
	due := 2*r.unannouncedBytes() >= uint64(r.reserved)
	// what streams hold whose readers have stopped may be more than half
	if l.activeState != nil && len(l.streams) > 0 {
		due = due || r.unannouncedBytes() >= r.announced-r.taken
	}
	if !r.updateDue && r.unannouncedBytes() > 0 && due {
		r.updateDue = true
		l.markPending()
	}
}

func (l *session) roomUpdateDue() bool { return l.room != nil && l.room.updateDue }

// announceRoom is the cumulative room granted to the peer, to be put into a CREDIT that is being
// sent.
func (l *session) announceRoom() uint64 {
	if l.room == nil {
		return 0
	}
	l.room.announced += l.room.unannouncedBytes()
	l.room.updateDue = false
	return l.room.announced
}

// roomGauges adds to what PeerStats says.
func (l *session) roomGauges(s *PeerStats) {
	if r := l.room; r != nil {
		s.Room, s.RoomHeld, s.RoomFree = r.reserved, r.held, int64(r.granted-r.used)
	}
}
