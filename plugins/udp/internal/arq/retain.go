package arq

import (
	"math/bits"
	"time"
)

// A packet holds the state of a numbered packet from the call to push until the packet is
// acknowledged.
type packet struct {
	sent     time.Duration // time of the last transmission
	body     []byte        // lane 0: body; nil once acknowledged
	piece    *piece        // lane 1: piece that it belongs to
	at, n    int32         // lane 1: offset and length of the payload in the piece
	size     int32         // bytes counted in flight.flying; 0 if not in flight
	order    uint32        // order of the last transmission among those of the lane
	messages uint16        // number of messages that end in the packet
	flags    uint8
	// units is used on lane 0. It is the quantity of packet numbers that the packet uses from its
	// transmission until it is lost or una is greater than its number; see share.go.
	units uint8
}

const (
	pktAcked  uint8 = 1 // acknowledged selectively
	pktLost   uint8 = 2
	pktResent uint8 = 4
	pktFin    uint8 = 8
	pktSent   uint8 = 16
)

// A sender holds the state of the sending side of one lane.
type sender struct {
	ring    []packet      // packets from una to nxt, by number; the length is a power of two
	snd     uint32        // next packet to transmit
	high    uint32        // first packet that has never been transmitted
	recover uint32        // packets before it have been retransmitted since the last loss
	order   uint32        // order of the latest transmission
	newest  uint32        // selective: order of the latest transmission known to have arrived
	asked   uint32        // selective: order of the last probe
	probed  time.Duration // time at which the last probe was sent
	due     time.Duration // time at which the lane's timer expires; 0 if not set
	late    time.Duration // selective: time at which the next overtaken packet counts as lost; 0 if there is none
	since   time.Duration // selective: time of the last probe or loss; the probe timeout starts no earlier
	moved   time.Duration // selective: time of the last acknowledgment of something new
	cost    int           // lane 0: numbers that its packets use; see share.go
	lost    int           // selective: lost packets not retransmitted yet
	sacked  int           // selective: acknowledged packets beyond una
	tries   int           // consecutive timeouts
	probe   bool          // whether packet una must be sent as a probe
	tail    bool          // whether the last packet must be sent as a second probe
	probing bool          // whether a probe was sent and is unanswered
	early   bool          // whether due is the time at which missing packets count as lost, rather than a timeout
}

func (s *sender) at(seq uint32) *packet { return &s.ring[seq&uint32(len(s.ring)-1)] }

// push assigns the next packet number of l to a new packet and returns the packet.
func (s *sender) push(l *lane) *packet {
	if n := int(l.nxt - l.una); n >= len(s.ring) {
		ring := make([]packet, max(16, 2*len(s.ring)))
		for seq := l.una; seq != l.nxt; seq++ {
			ring[seq&uint32(len(ring)-1)] = *s.at(seq)
		}
		s.ring = ring
	}
	l.nxt++
	return s.at(l.nxt - 1)
}

// bufClasses are the buffer sizes for packets of lane 0, in bytes.
var bufClasses = [...]int{512, 2 << 10, 4 << 10, 9 << 10, 17 << 10, 33 << 10, 64 << 10}

// alloc0 returns an empty buffer with capacity for at least n bytes, and adds the capacity to
// Stats.Retained.
func (m *Machine) alloc0(n int) []byte {
	for c, size := range bufClasses {
		if n <= size {
			m.stats.Retained += int64(size)
			if k := len(m.bufs[c]); k > 0 {
				b := m.bufs[c][k-1]
				m.bufs[c] = m.bufs[c][:k-1]
				return b
			}
			return make([]byte, 0, size)
		}
	}
	panic("arq: packet exceeds the size of a datagram")
}

// keepBufs limits the size of the free list of each class, in bytes.
const keepBufs = 1 << 20

// free0 releases a buffer allocated by alloc0 and subtracts its capacity from Stats.Retained.
func (m *Machine) free0(b []byte) {
	if b == nil {
		return
	}
	m.stats.Retained -= int64(cap(b))
	for c, size := range bufClasses {
		if cap(b) == size {
			if len(m.bufs[c])*size < keepBufs {
				m.bufs[c] = append(m.bufs[c], b[:0])
			}
			return
		}
	}
}

// A bitmap is the set of packets of a lane that were received out of order. Bit i stands for packet
// rcv+i.
type bitmap [maxAhead / 64]uint64

func (b *bitmap) has(i uint32) bool { return b[i/64]&(1<<(i%64)) != 0 }
func (b *bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }

// shift removes the first n bits.
func (b *bitmap) shift(n uint32) {
	words, rest := int(n/64), n%64
	for i := range b {
		v := uint64(0)
		if i+words < len(b) {
			v = b[i+words] >> rest
			if i+words+1 < len(b) {
				v |= b[i+words+1] << (64 - rest)
			}
		}
		b[i] = v
	}
}

// ones returns the number of consecutive set bits, starting at bit 0.
func (b *bitmap) ones() (n uint32) {
	for _, w := range b {
		if w != ^uint64(0) {
			return n + uint32(bits.TrailingZeros64(^w))
		}
		n += 64
	}
	return n
}

// last returns the index of the last set bit plus one, or 0 if none is set.
func (b *bitmap) last() uint32 {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0 {
			return uint32(64*i + bits.Len64(b[i]))
		}
	}
	return 0
}

// poolRing is the maximum length of a ring kept by a pooled flight.
const poolRing = 256

// takeFlight returns the flight of a, allocating one if necessary. goIdle releases the flight.
func (a *Assoc) takeFlight() *flight {
	if a.flight == nil {
		m := a.m
		if n := len(m.flights); n > 0 {
			a.flight, m.flights = m.flights[n-1], m.flights[:n-1]
		} else {
			a.flight = &flight{}
		}
		m.active++
		for i := range a.flight.send {
			s := &a.flight.send[i]
			s.snd, s.high, s.recover = a.lane[i].nxt, a.lane[i].nxt, a.lane[i].nxt
		}
	}
	return a.flight
}

// returnFlight returns the flight of a to the pool.
func (a *Assoc) returnFlight() {
	f, m := a.flight, a.m
	if f == nil {
		return
	}
	a.flight = nil
	m.active--
	rings := [2][]packet{f.send[0].ring, f.send[1].ring}
	for i := range f.recv {
		if b := f.recv[i].bits; b != nil {
			*b = bitmap{}
			m.bitmaps = append(m.bitmaps, b)
		}
	}
	a.dropHeld(&f.recv[0])
	*f = flight{}
	if len(m.flights) >= 256 {
		return
	}
	for i := range rings {
		if len(rings[i]) <= poolRing {
			f.send[i].ring = rings[i]
		}
	}
	m.flights = append(m.flights, f)
}
