package arq

import (
	"math/bits"
	"time"
)

// A packet is what is kept of a packet that has a number, until it is acknowledged.
type packet struct {
	sent     time.Duration // last time
	body     []byte        // lane 0; nil when the peer has it
	piece    *piece        // lane 1
	at, n    int32         // lane 1: payload, within the piece
	size     int32         // bytes under way: 0 unless flying
	order    uint32        // of its last transmission among those of the lane
	messages uint16        // that end in it
	flags    uint8
	units    uint8 // lane 0: numbers that it uses up, from its transmission until it is lost or una has passed it
}

const (
	pktAcked  uint8 = 1 // selectively
	pktLost   uint8 = 2
	pktResent uint8 = 4
	pktFin    uint8 = 8
	pktSent   uint8 = 16
)

// A sender is one lane of what is sent.
type sender struct {
	ring    []packet      // una to nxt, by number; a power of two
	snd     uint32        // the next to transmit
	high    uint32        // the next that has never been transmitted
	recover uint32        // packets before it have been sent again since the last loss
	order   uint32        // of the latest transmission
	newest  uint32        // selective: order of the latest transmission that is known to have arrived
	asked   uint32        // selective: order of the last probe
	probed  time.Duration // when the last probe was sent
	due     time.Duration // the timer of the left edge
	late    time.Duration // selective: when the next packet is lost that a later one has overtaken; 0: there is none
	since   time.Duration // selective: the probe timeout does not count what was before: the last probe, or loss
	moved   time.Duration // selective: when something was acknowledged last
	cost    int           // lane 0: numbers that its packets use up
	lost    int           // selective: packets that wait to be sent again
	sacked  int           // selective: packets acknowledged beyond the left edge
	tries   int           // timeouts in a row
	probe   bool          // send the left edge again
	tail    bool          // send the last packet again, too
	probing bool          // and that was done
	early   bool          // due is not a timeout: packets are missing, and may only be late
}

func (s *sender) at(seq uint32) *packet { return &s.ring[seq&uint32(len(s.ring)-1)] }

// push makes room for packet nxt.
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

// The classes of buffers for packets of lane 0, in bytes.
var bufClasses = [...]int{512, 2 << 10, 4 << 10, 9 << 10, 17 << 10, 33 << 10, 64 << 10}

// alloc0 returns an empty buffer with room for n bytes, which counts as retained.
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
	panic("arq: a packet larger than any datagram")
}

// keepBufs bounds the free buffers of each class in bytes.
const keepBufs = 1 << 20

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

// A bitmap is the packets of a lane that have come out of order: bit i of it is packet rcv + i.
type bitmap [maxAhead / 64]uint64

func (b *bitmap) has(i uint32) bool { return b[i/64]&(1<<(i%64)) != 0 }
func (b *bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }

// shift forgets the first n.
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

// ones returns how many bits at the front are set without a gap.
func (b *bitmap) ones() (n uint32) {
	for _, w := range b {
		if w != ^uint64(0) {
			return n + uint32(bits.TrailingZeros64(^w))
		}
		n += 64
	}
	return n
}

// last returns the number of the last set bit and one more.
func (b *bitmap) last() uint32 {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0 {
			return uint32(64*i + bits.Len64(b[i]))
		}
	}
	return 0
}

// poolRing bounds the rings that stay with pooled flights, in packets.
const poolRing = 256

// takeFlight returns the flight of a, which has one from then on until it rests.
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

// returnFlight gives the flight back.
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
