package arq

import (
	"math/bits"
	"time"
)

// This file divides the socket's receive buffer among the peers that may send on lane 0 (Modern). A
// number that has been promised to a peer and that the peer has not used represents unit bytes of
// the buffer. A large packet uses several numbers.
//
//	┌──────────────────── Config.Receive ────────────────────┐
//	│ peers that have sent lately           │ all others     │
//	│ an equal share each, at least restart │ restart each   │
//	└────────────────────────────────────────────────────────┘
//
// A promise is never revoked. A share that has shrunk therefore takes effect only as its peer
// sends, and a share grows only into numbers that are not promised to any peer. A peer that has
// sent nothing for idleAfter relinquishes its promise, except for restart numbers, which the
// receiver's greeting contains. The receiver relies on that only much later.
//
// Half of the buffer is reserved for restart numbers for each of planned peers. If there are no
// more peers than that, everything that all peers may send at once fits in the buffer, even if all
// others start to send while one peer has the entire share. However, restart is never less than
// minShare, which exceeds that reservation if the buffer is small.
const (
	page  = 4 << 10
	spare = 384 // bytes of a page that the datagram cannot use
	// unit is the number of bytes of the buffer used by a datagram that fits in a page, including
	// the system's struct for it.
	unit     = page + 256
	planned  = 128 // peers that may start to send at once, in addition to those already sending
	minShare = 4   // numbers that each peer may use, however small the buffer is

	idleAfter  = time.Second
	shareEpoch = 4 * time.Second // a peer keeps its share until it has sent nothing for a whole epoch
)

// numbersFor returns the quantity of numbers used by a datagram of n bytes. The system's memory for
// a datagram is a power of two.
func numbersFor(n int) int { return 1 << bits.Len(uint((n+spare-1)/page)) }

// maxDatagramFor returns the size of the largest datagram that uses at most k numbers.
func maxDatagramFor(k int) int { return page<<(bits.Len(uint(k))-1) - spare }

// A laneSharing counts the peers among which the buffer is divided for one lane. Those are the
// peers that have sent in the current or in the previous epoch.
type laneSharing struct {
	epoch    uint32
	since    time.Duration // time at which the epoch began
	now, old bufferSharers // peers that have sent in this epoch, and those that have sent only in the previous one
}

// bufferSharers counts peers and the numbers promised to them.
type bufferSharers struct{ peers, promised int }

func (s *laneSharing) peers() int    { return s.now.peers + s.old.peers }
func (s *laneSharing) promised() int { return s.now.promised + s.old.promised }

// of returns the bufferSharers in which l is counted, or nil.
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

// joinSharing records that the peer sends on lane i. Epochs advance only while this side reads, so
// that promises remain valid for the packets that a stopped process finds in its buffer when it
// continues.
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

// leaveSharing removes lane i from those that have a share.
func (a *Assoc) leaveSharing(i int) {
	l := &a.lane[i]
	if r := a.m.sharing[i].of(l); r != nil {
		r.peers--
		r.promised -= l.unusedNumbers()
	}
	l.epoch = 0
}

// unusedNumbers returns the quantity of promised numbers that the peer has not used.
func (l *lane) unusedNumbers() int { return max(0, int(int32(l.promised-l.rcv))) }

// A bufferDivision is the division of the receive buffer for lane 0, in numbers. It is valid while
// receive, peers and sharers do not change.
type bufferDivision struct {
	receive, peers, sharers int
	units                   int // entire buffer
	restart                 int // part of a peer that has sent nothing for a while
	room                    int // part of all peers that have a share
	share                   int // part of each of them
}

// divideBuffer returns the current division of the receive buffer.
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

// promiseLimit raises the promise to the peer as far as its share and the free numbers permit. It
// returns the first number of lane 0 that the peer may not use.
func (a *Assoc) promiseLimit() uint32 {
	m, l := a.m, &a.lane[0]
	s, d := &m.sharing[0], m.divideBuffer()
	r := s.of(l)
	if r == nil {
		l.promised = l.rcv + uint32(d.restart)
		return l.promised
	}
	unused := l.unusedNumbers()
	free := d.room - (s.promised() - unused) // numbers not promised to another peer
	if more := max(d.restart, min(d.share, free)) - unused; more > 0 {
		l.promised = l.rcv + uint32(unused+more)
		r.promised += more
	}
	return l.promised
}

// noteUsed records that the next number of lane 0 has arrived.
func (a *Assoc) noteUsed() {
	l := &a.lane[0]
	if r := a.m.sharing[0].of(l); r != nil && l.unusedNumbers() > 0 {
		r.promised--
	}
	l.rcv++
}

// allowance returns the quantity of lane 0 numbers that this side may use beyond those in flight.
func (a *Assoc) allowance() int {
	l := &a.lane[0]
	return int(int32(l.edge-l.una)) - a.flight.send[0].cost
}

// giveBack reduces the peer's promise to restart numbers, if nothing was sent for idleAfter.
func (a *Assoc) giveBack(now time.Duration) {
	l := &a.lane[0]
	if a.m.cfg.Profile == Modern && l.una == l.nxt && now-a.sentAt > idleAfter && before(l.una+uint32(a.restart), l.edge) {
		l.edge = l.una + uint32(a.restart)
	}
}

// largest0 returns the size of the largest datagram of lane 0. It uses at most a quarter of the
// numbers that may be in flight, so that there is also space for its retransmission.
func (a *Assoc) largest0() int {
	if a.m.cfg.Profile == Seed {
		return a.maxDatagram()
	}
	l := &a.lane[0]
	return min(a.maxDatagram(), maxDatagramFor(max(1, int(int32(l.edge-l.una))/4)))
}
