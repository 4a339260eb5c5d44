package arq

import (
	"math/bits"
	"time"
)

// This file divides the socket's receive buffer among the peers that may send on lane 0 (Modern).
// Each packet number that has been promised to a peer and not yet used represents unit bytes of the
// buffer. A large packet uses several numbers.
//
//	┌──────────────────── Config.Receive ────────────────────┐
//	│ peers that have sent lately           │ all others     │
//	│ an equal share each, at least restart │ restart each   │
//	└────────────────────────────────────────────────────────┘
//
// A promise is never revoked. A share that has shrunk therefore takes effect only as its peer
// sends, and a share grows only into numbers that are not promised to any peer. A peer that has
// sent nothing for idleAfter relinquishes its promise, except for restart numbers, which the
// receiver's greeting contains. The receiver reuses the relinquished part of the buffer only much
// later.
//
// Half of the buffer is reserved for the restart numbers of planned peers. If there are no more
// peers than that, all packets that the peers may send at once fit in the buffer, even if all the
// others start to send while one peer has the entire rest. However, restart is never less than
// minShare, so a small buffer may be exceeded.
const (
	page  = 4 << 10
	spare = 384 // bytes of a page that the datagram cannot use
	// unit is the number of bytes of the buffer used by a datagram that fits in a page, including
	// the system's struct for it.
	unit     = page + 256
	planned  = 128 // number of peers that may start to send at once, in addition to those already sending
	minShare = 4   // minimum quantity of numbers that each peer may use, however small the buffer is

	idleAfter  = time.Second
	shareEpoch = 4 * time.Second // a peer keeps its share until it has sent nothing for a whole epoch
)

// numbersFor returns the quantity of packet numbers that a datagram of n bytes uses. It is a power
// of two, because the system allocates memory for datagrams in powers of two.
func numbersFor(n int) int { return 1 << bits.Len(uint((n+spare-1)/page)) }

// maxDatagramFor returns the size of the largest datagram that uses at most k packet numbers.
func maxDatagramFor(k int) int { return page<<(bits.Len(uint(k))-1) - spare }

// A laneSharing counts the peers among which the receive buffer is divided for one lane. These are
// the peers that have sent in the current or the previous epoch.
type laneSharing struct {
	epoch    uint32
	since    time.Duration // time at which the epoch began
	now, old bufferSharers // peers that have sent in this epoch, and those that have sent only in the previous one
}

// bufferSharers holds the number of peers in a group, and the quantity of unused packet numbers
// promised to them.
type bufferSharers struct{ peers, promised int }

func (s *laneSharing) peers() int    { return s.now.peers + s.old.peers }
func (s *laneSharing) promised() int { return s.now.promised + s.old.promised }

// of returns the group in which l is counted, or nil if l has no share.
func (s *laneSharing) of(l *lane) *bufferSharers {
	switch {
	case l.epoch == 0:
	case l.epoch == s.epoch:
		return &s.now
	case l.epoch == s.epoch-1:
		return &s.old
	}
	return nil
}

// joinSharing records that the peer has sent on lane i, which gives the peer a share of the receive
// buffer. It starts a new epoch if the current one has lasted for shareEpoch. Because epochs
// advance only while this side reads, promises remain valid for packets that are in the buffer when
// a stopped process continues.
func (a *Assoc) joinSharing(now time.Duration, i int) {
	s, l := &a.m.sharing[i], &a.lane[i]
	if s.epoch == 0 || now-s.since >= shareEpoch {
		s.epoch, s.since, s.old, s.now = s.epoch+1, now, s.now, bufferSharers{}
	}
	if l.epoch == s.epoch {
		return
	}
	if s.of(l) == nil {
		l.promised = l.rcv + uint32(a.m.divideBuffer().restart)
	}
	a.leaveSharing(i)
	l.epoch = s.epoch
	s.now.peers++
	s.now.promised += l.unusedNumbers()
}

// leaveSharing ends the peer's share of the receive buffer for lane i.
func (a *Assoc) leaveSharing(i int) {
	l := &a.lane[i]
	if r := a.m.sharing[i].of(l); r != nil {
		r.peers--
		r.promised -= l.unusedNumbers()
	}
	l.epoch = 0
}

// unusedNumbers returns the quantity of packet numbers that are promised to the peer and not yet
// used.
func (l *lane) unusedNumbers() int { return max(0, int(int32(l.promised-l.rcv))) }

// A bufferDivision describes how the receive buffer is divided for lane 0, in packet numbers. It is
// valid while receive, peers and sharers do not change.
type bufferDivision struct {
	receive, peers, sharers int
	units                   int // entire buffer
	restart                 int // part of a peer that has sent nothing for a while
	room                    int // part of all peers that have a share
	share                   int // part of each of them
}

// divideBuffer returns the current division of the receive buffer for lane 0, recomputing it if its
// inputs have changed.
func (m *Machine) divideBuffer() *bufferDivision {
	d := &m.division
	receive, sharers := m.cfg.Receive(), m.sharing[0].peers()
	if receive != d.receive || m.stats.Peers != d.peers || sharers != d.sharers {
		units := receive / unit
		restart := min(max(units/(2*planned), minShare), firstCredit)
		room := units - min(restart*(m.stats.Peers-sharers), units/2)
		share := room / max(1, sharers)
		*d = bufferDivision{receive, m.stats.Peers, sharers, units, restart, room, max(restart, min(share, maxAhead))}
	}
	return d
}

// promiseLimit promises the peer as many further packet numbers as its share and the unpromised
// numbers permit. It returns the first number of lane 0 that is not promised to the peer.
func (a *Assoc) promiseLimit() uint32 {
	m, l := a.m, &a.lane[0]
	s, d := &m.sharing[0], m.divideBuffer()
	r := s.of(l)
	if r == nil {
		l.promised = l.rcv + uint32(d.restart)
		return l.promised
	}
	unused := l.unusedNumbers()
	free := d.room - (s.promised() - unused) // quantity of numbers not promised to other peers
	if more := max(d.restart, min(d.share, free)) - unused; more > 0 {
		l.promised = l.rcv + uint32(unused+more)
		r.promised += more
	}
	return l.promised
}

// noteUsed advances the next expected packet number of lane 0, which has arrived, and subtracts it
// from the unused numbers promised to the peer.
func (a *Assoc) noteUsed() {
	l := &a.lane[0]
	if r := a.m.sharing[0].of(l); r != nil && l.unusedNumbers() > 0 {
		r.promised--
	}
	l.rcv++
}

// allowance returns the quantity of lane 0 packet numbers that this side may still use, in addition
// to those in flight.
func (a *Assoc) allowance() int {
	l := &a.lane[0]
	return int(int32(l.edge-l.una)) - a.flight.send[0].cost
}

// giveBack reduces the quantity of numbers that the peer has promised to this side to restart, if
// this side has sent nothing for idleAfter.
func (a *Assoc) giveBack(now time.Duration) {
	l := &a.lane[0]
	if a.m.cfg.Profile == Modern && l.una == l.nxt && now-a.sentAt > idleAfter && before(l.una+uint32(a.restart), l.edge) {
		l.edge = l.una + uint32(a.restart)
	}
}

// largest0 returns the size in bytes of the largest datagram to send on lane 0. Such a datagram
// uses at most a quarter of the numbers that may be in flight, which leaves space for its
// retransmission.
func (a *Assoc) largest0() int {
	if a.m.cfg.Profile == Seed {
		return a.maxDatagram()
	}
	l := &a.lane[0]
	return min(a.maxDatagram(), maxDatagramFor(max(1, int(int32(l.edge-l.una))/4)))
}
