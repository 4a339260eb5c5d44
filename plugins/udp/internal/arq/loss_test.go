package arq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// delayPackets has the packets of a whose numbers count from the first that follows arrive later, each by so much.
func delayPackets(n *network, a *node, late map[uint32]time.Duration) {
	first := a.assoc.lane[0].nxt
	n.drop = func(from *node, p *Packet) bool {
		if from != a || p.kind != kindData || p.lane() != 0 {
			return false
		}
		by, ok := late[p.seq-first]
		if delete(late, p.seq-first); ok {
			n.inject(n.now+n.f.delay+by, a.addr, n.order[1].addr, reencode(append(p.append(nil), p.body...)))
		}
		return ok
	}
}

// burst sends count messages, each in a packet of its own and apart from the one before.
func (n *network) burst(a *node, count int, apart time.Duration) {
	for range count {
		a.send(a.assoc, []byte("12345678"))
		a.flush()
		n.idle(apart)
	}
}

// TestPacketThreshold checks that a packet that two others have overtaken is not sent again, and
// one that three have overtaken is, once.
func TestPacketThreshold(t *testing.T) {
	for _, overtaken := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprint(overtaken), func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: 5 * ms})
			a, b := n.pair(Config{}, Config{})
			n.stream(a, b, 8, 8, time.Second) // the initial window is small
			n.idle(20 * ms)
			b.got = nil
			delayPackets(n, a, map[uint32]time.Duration{0: time.Duration(overtaken)*10*time.Microsecond + 5*time.Microsecond})
			n.burst(a, 5, 10*time.Microsecond)
			n.run(time.Second, func() bool { return len(b.got) == 5 })
			n.idle(100 * ms)
			require.EqualValues(t, overtaken/3, a.m.Stats().Resent, "packets sent again that %d others have overtaken", overtaken)
		})
	}
}

// TestTimeThreshold checks that a packet that one other has overtaken is lost when it is late by an
// eighth of the round trip.
func TestTimeThreshold(t *testing.T) {
	for _, c := range []struct {
		late   time.Duration
		resent int64
	}{{2 * ms, 0}, {time.Second, 1}} {
		n := newNetwork(t, 1, faults{delay: 10 * ms})
		a, b := n.pair(Config{}, Config{})
		n.stream(a, b, 8, 8, time.Second)
		n.idle(ms)
		start, again := n.now, time.Duration(0)
		n.watch = func(from *node, p *Packet) {
			if from == a && p.kind == kindData && a.m.Stats().Resent > 0 && again == 0 {
				again = n.now - start
			}
		}
		delayPackets(n, a, map[uint32]time.Duration{0: c.late})
		n.burst(a, 2, 0)
		n.idle(200 * ms)
		require.Equal(t, c.resent, a.m.Stats().Resent, "packets sent again, late by %v", c.late)
		if c.resent > 0 {
			require.Zero(t, a.m.Stats().Timeouts, "no probe is waited for")
			require.InDelta(t, 20*ms*9/8, again, float64(ms), "when it was sent again")
		}
	}
}

// TestSelectivelyAcknowledged checks that under loss and reordering no packet is sent again that is
// known to have arrived, and no packet that arrived out of order is dropped.
func TestSelectivelyAcknowledged(t *testing.T) {
	for seed := range uint64(20) {
		n := newNetwork(t, seed, faults{loss: 0.1, reorder: 0.1, dup: 0.05, delay: 5 * ms})
		a, b := n.pair(Config{}, Config{})
		sacked := 0
		n.watch = func(from *node, p *Packet) {
			if from != a || p.kind != kindData {
				return
			}
			s := &a.assoc.flight.send[p.lane()]
			sacked = max(sacked, s.sacked)
			if before(p.seq, a.assoc.lane[p.lane()].una) {
				return // asks
			}
			require.Zero(t, s.at(p.seq).flags&pktAcked, "sent again after it was acknowledged: %v", p)
		}
		n.stream(a, b, 500, 1100, time.Minute)
		n.sendBulk(a, b, 200_000, time.Minute)
		n.idle(10 * time.Second)
		require.Greater(t, sacked, 3)
		require.Zero(t, b.m.Stats().OutOfOrder)
		require.Zero(t, a.m.Stats().Retained+b.m.Stats().Retained)
	}
}

// TestLateOriginal checks a packet that counts as lost, is sent again, and arrives late. The
// acknowledgment is of the late one, by its timestamp: the packets sent between the two do not
// count as lost.
func TestLateOriginal(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: 10 * ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 8, 8, time.Second)
	n.idle(ms)
	// Packet 0 is sent again after 22.5 ms, and arrives at 31 ms by its first transmission. Packets 3 to 5 leave just before its second and
	// arrive after its first.
	delayPackets(n, a, map[uint32]time.Duration{0: 21 * ms})
	n.burst(a, 3, 0)
	n.idle(22 * ms)
	n.burst(a, 3, 100*time.Microsecond)
	n.idle(200 * ms)
	require.EqualValues(t, 1, a.m.Stats().Resent, "packets sent again")
	require.Len(t, b.got, 8+6)
}

// TestProbeTimer checks that a peer that repeats known acknowledgments does not delay the probe of
// packets that it has not acknowledged, also not where others are acknowledged selectively.
func TestProbeTimer(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 8, 8, time.Second)
	n.idle(100 * ms)
	first, times := a.assoc.lane[0].nxt, []time.Duration(nil)
	n.drop = func(from *node, p *Packet) bool {
		lost := from == a && p.kind == kindData && p.seq == first
		if lost {
			times = append(times, n.now)
		}
		return lost
	}
	n.burst(a, 2, 0)
	for range 100 {
		b.send(b.assoc, []byte("and again"))
		n.idle(ms)
	}
	require.Greater(t, len(times), 4, "transmissions of what is lost each time")
	require.Less(t, times[3]-times[0], 60*ms)
}

// TestPersistentCongestion checks that when three probes in a row are not answered, the congestion
// window is the least, and grows again.
func TestPersistentCongestion(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: 10 * ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 100, 1000, time.Minute)
	require.Greater(t, int(a.assoc.cwnd), minWindow)
	n.drop = func(from *node, p *Packet) bool { return from == a }
	a.send(a.assoc, make([]byte, 1000))
	timeouts := a.m.Stats().Timeouts
	n.run(10*time.Second, func() bool { return a.m.Stats().Timeouts == timeouts+2 })
	require.Greater(t, int(a.assoc.cwnd), minWindow)
	n.run(10*time.Second, func() bool { return a.m.Stats().Timeouts == timeouts+3 })
	require.EqualValues(t, minWindow, a.assoc.cwnd)
	n.drop = nil
	n.run(10*time.Second, func() bool { return len(b.got) == 101 })
	n.stream(a, b, 1000, 1000, time.Minute)
	require.Greater(t, int(a.assoc.cwnd), 2*minWindow)
}

// hostileAcks gives a, which has packets under way on both lanes, acknowledgments that script makes up, and checks what always holds.
func hostileAcks(t *testing.T, seed uint64, script []byte) {
	n := &network{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), nodes: map[netip.AddrPort]*node{}, now: time.Second}
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 8, 8, time.Second)
	n.drop = func(*node, *Packet) bool { return true }
	under := func() {
		as := a.assoc
		if frame, piece := as.Room(n.now); frame >= 0 && piece > 0 {
			n.burst(a, 40, 0)
			a.bulk(as, 0, make([]byte, min(piece, 40_000)))
		}
		n.settle()
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	for under(); len(script) > 4 && a.assoc.state == open; {
		lane := int(script[0] & 1)
		size := 8 * int(script[1]%17)
		as := a.assoc
		p := Packet{form: formOf(Version), kind: kindAck, flags: uint8(lane) | script[0]&(flagGap|flagDup|flagEcho), id: as.id, token: as.token, seq: rnd.Uint32(),
			ack: as.lane[lane].una + uint32(int8(script[2])), edge: as.lane[lane].edge + uint32(int8(script[3])), echo: clock(n.now) - uint32(script[3])<<6}
		script = script[4:]
		body := make([]byte, size)
		copy(body, script)
		script = script[min(size, len(script)):]
		q, err := Parse(reencode(append(p.append(nil), body...)))
		require.NoError(t, err)
		was := as.lane[lane].una
		a.m.Receive(n.now, b.addr, &q)
		a.check()
		require.False(t, before(as.lane[lane].una, was), "the left edge goes back")
		n.idle(time.Duration(script0(script)) * 50 * time.Microsecond)
		under()
		a.check()
	}
	a.assoc.Cut(nil)
	require.Zero(t, a.m.Stats().Retained)
}

func script0(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// FuzzAcks checks that invalid acknowledgments of a peer are dropped, and the counts stay correct.
func FuzzAcks(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(seed, acksOf(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		if len(script) <= 2000 {
			hostileAcks(t, seed, script)
		}
	})
}

// acksOf returns a script of acknowledgments, some of them of packets that were sent.
func acksOf(seed uint64) (script []byte) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	for range 40 {
		words := 1 + rnd.IntN(2)
		script = append(script, byte(rnd.Uint32()), byte(words), byte(rnd.IntN(4)), byte(rnd.IntN(40)))
		for range words {
			script = binary.LittleEndian.AppendUint64(script, rnd.Uint64()&(1<<(1+rnd.IntN(63))-1)&^1)
		}
	}
	return script
}

// TestHostileAcks is FuzzAcks with seeds, and acknowledgments with a gap at every second number of the longest body.
func TestHostileAcks(t *testing.T) {
	for seed := range uint64(100) {
		hostileAcks(t, seed, acksOf(seed))
	}
	// Packet 1 has arrived, and then it is the next expected one.
	one, two := []byte{0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, []byte{0, 0, 1, 0}
	for lane := range byte(2) {
		one[0], two[0] = lane, lane
		hostileAcks(t, 1, bytes.Repeat(append(bytes.Clone(one), two...), 10))
	}
	gaps := append([]byte{0, 16, 0, 0}, bytes.Repeat([]byte{0xaa}, sackSize)...)
	hostileAcks(t, 1, bytes.Repeat(gaps, 10))
}
