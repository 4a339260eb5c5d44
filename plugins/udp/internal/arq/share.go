package arq

import (
	"math/bits"
	"time"
)

// The receive buffer of the socket is divided among the peers that may send on lane 0 (Modern). A number that a peer is promised, and
// has not used, stands for unit bytes of it:
//
//	┌──────────────────── Config.Receive ────────────────────┐
//	│ peers that have sent of late          │ all others     │
//	│ an equal share each, at least restart │ restart each   │
//	└────────────────────────────────────────────────────────┘
//
// A promise is not taken back. So a share that has become smaller holds as its owner sends, and a larger one is given only of what
// nobody is promised. A peer that has sent nothing for idleAfter gives its promise back by itself, down to restart numbers, which the
// receiver has told it in its greeting; the receiver counts on that much later. Half of the buffer is restart numbers for each of planned
// peers: with no more peers than that, what all may use at once fits the buffer, also when all others begin beside one that had it alone.
// Restart is never less than leastOpen, though, which is more than that in a small buffer.
const (
	page      = 4 << 10
	spare     = 384        // bytes of a page that are not the datagram's
	unit      = page + 256 // bytes that a datagram takes in the buffer which fits a page, with its description
	planned   = 128        // peers that may begin to send at once beside those that do
	leastOpen = 4          // numbers that each may use, however small the buffer is

	idleAfter  = time.Second
	shareEpoch = 4 * time.Second // a peer shares until one of them has passed in which it has sent nothing
)

// numbersFor is how many numbers a datagram of n bytes uses up. The system's memory for it is a power of two.
func numbersFor(n int) int { return 1 << bits.Len(uint((n+spare-1)/page)) }

// maxDatagramFor is the largest datagram that uses up no more than k numbers.
func maxDatagramFor(k int) int { return page<<(bits.Len(uint(k))-1) - spare }

// A laneSharing is the peers among which the buffer is divided for one lane: those that have sent in this epoch, or in the last.
type laneSharing struct {
	epoch    uint32
	since    time.Duration
	now, old bufferSharers
}

type bufferSharers struct{ peers, promised int }

func (s *laneSharing) peers() int    { return s.now.peers + s.old.peers }
func (s *laneSharing) promised() int { return s.now.promised + s.old.promised }

// of returns where l is counted, or nil.
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

// joinSharing notes that the peer sends on lane i. The epochs are those in which this side reads: what a process that was stopped finds in its
// buffer is still as it was promised.
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

// leaveSharing takes lane i out of those that share.
func (a *Assoc) leaveSharing(i int) {
	l := &a.lane[i]
	if r := a.m.sharing[i].of(l); r != nil {
		r.peers--
		r.promised -= l.unusedNumbers()
	}
	l.epoch = 0
}

// unusedNumbers is how many numbers the peer may use yet.
func (l *lane) unusedNumbers() int { return max(0, int(int32(l.promised-l.rcv))) }

// A bufferDivision is how the receive buffer is divided for lane 0, in numbers. It holds while receive, peers and sharers are what they were.
type bufferDivision struct {
	receive, peers, sharers int
	units                   int // all of the buffer
	restart                 int // for a peer that has sent nothing for a while
	room                    int // for all that share
	share                   int // for each of them
}

// divideBuffer returns how the receive buffer is divided now.
func (m *Machine) divideBuffer() *bufferDivision {
	d := &m.division
	receive, sharers := m.cfg.Receive(), m.sharing[0].peers()
	if receive != d.receive || m.stats.Peers != d.peers || sharers != d.sharers {
		units := receive / unit
		restart := min(max(units/(2*planned), leastOpen), firstCredit)
		room := units - min(restart*(m.stats.Peers-sharers), units/2)
		share := room / max(1, sharers)
		*d = bufferDivision{receive, m.stats.Peers, sharers, units, restart, room, max(restart, min(share, maxAhead))}
	}
	return d
}

// promiseLimit returns the first number of lane 0 that the peer may not use, after it has promised as many as there are for this peer.
func (a *Assoc) promiseLimit() uint32 {
	m, l := a.m, &a.lane[0]
	s, d := &m.sharing[0], m.divideBuffer()
	r := s.of(l)
	if r == nil {
		l.promised = l.rcv + uint32(d.restart)
		return l.promised
	}
	unused := l.unusedNumbers()
	free := d.room - (s.promised() - unused) // of what nobody else is promised
	if more := max(d.restart, min(d.share, free)) - unused; more > 0 {
		l.promised = l.rcv + uint32(unused+more)
		r.promised += more
	}
	return l.promised
}

// noteUsed notes that the next number of lane 0 has come.
func (a *Assoc) noteUsed() {
	l := &a.lane[0]
	if r := a.m.sharing[0].of(l); r != nil && l.unusedNumbers() > 0 {
		r.promised--
	}
	l.rcv++
}

// allowance is how many numbers of lane 0 this side may use beyond those under way.
func (a *Assoc) allowance() int {
	l := &a.lane[0]
	return int(int32(l.edge-l.una)) - a.flight.send[0].cost
}

// giveBack forgets what the peer has promised, but what it promises those that begin, if nothing was sent for a while.
func (a *Assoc) giveBack(now time.Duration) {
	l := &a.lane[0]
	if a.m.cfg.Profile == Modern && l.una == l.nxt && now-a.sentAt > idleAfter && before(l.una+uint32(a.restart), l.edge) {
		l.edge = l.una + uint32(a.restart)
	}
}

// largest0 is the largest datagram of lane 0: a quarter of all that may be under way, so that the repetition of one finds room, too.
func (a *Assoc) largest0() int {
	if a.m.cfg.Profile == Seed {
		return a.maxDatagram()
	}
	l := &a.lane[0]
	return min(a.maxDatagram(), maxDatagramFor(max(1, int(int32(l.edge-l.una))/4)))
}
