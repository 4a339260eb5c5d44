package arq

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

const ms = time.Millisecond

// A sides is the two sides of an association.
type sides struct {
	name string
	a, b Config
}

// selective reports whether either side of p reports which packets have arrived.
func (p *sides) selective() bool { return p.a.Profile == Modern && p.b.Profile == Modern }

// requireOneRecovery fails unless a packet that was lost was recovered from once: by itself, or by going back once.
func (p *sides) requireOneRecovery(t *testing.T, st Stats) {
	t.Helper()
	if p.selective() {
		require.Equal(t, int64(1), st.Resent, "packets sent again after one loss")
		require.Zero(t, st.GoneBack)
		return
	}
	require.Equal(t, int64(1), st.GoneBack, "after reports of one loss")
	require.LessOrEqual(t, st.Resent, int64(64))
}

var pairs = []sides{
	{"modern", Config{}, Config{}},
	{"seed", Config{Profile: Seed, Ack: Lazy}, Config{Profile: Seed, Ack: Lazy}},
	{"seed eager", Config{Profile: Seed, Ack: Eager}, Config{Profile: Seed, Ack: Eager}},
	{"modern to seed", Config{}, Config{Profile: Seed, Ack: Lazy}},
	{"seed to modern", Config{Profile: Seed, Ack: Lazy}, Config{}},
}

// TestUT1ExactlyOnceInOrder (U1, U4, U-T1, U-T14, U-T27) checks that under loss, duplicates,
// reordering and damage every message and every byte arrives once, messages in order, for any two
// sides, and over the wrap of the numbers.
func TestUT1ExactlyOnceInOrder(t *testing.T) {
	count := long.Or(4000, 100_000)
	for _, p := range pairs {
		for _, loss := range []float64{0, 0.01, 0.05, 0.3} {
			t.Run(fmt.Sprintf("%s/%v", p.name, loss), func(t *testing.T) {
				n := newNetwork(t, 7, faults{loss: loss, dup: 0.1, reorder: 0.2, corrupt: 0.02, delay: ms})
				a, b := n.pair(p.a, p.b)
				n.stream(a, b, count, 64, time.Hour)
				n.stream(b, a, 10, 30000, time.Hour)
				n.sendBulk(a, b, 300_000, time.Hour)
				n.idle(10 * time.Second)
				require.Zero(t, a.m.Stats().Retained+b.m.Stats().Retained, "bytes retained")
			})
		}
	}
}

// TestEveryPair (U9, U-T27) checks that with any profile and mode of either side, under loss and
// reordering, everything arrives.
func TestEveryPair(t *testing.T) {
	var all []Config
	for _, profile := range []Profile{Modern, Seed} {
		for _, ack := range []AckMode{Adaptive, Lazy, Eager} {
			all = append(all, Config{Profile: profile, Ack: ack})
		}
	}
	for i, near := range all {
		for j, far := range all {
			t.Run(fmt.Sprintf("%v %v to %v %v", near.Profile, near.Ack, far.Profile, far.Ack), func(t *testing.T) {
				n := newNetwork(t, uint64(6*i+j), faults{loss: 0.05, reorder: 0.1, delay: ms})
				a, b := n.pair(near, far)
				n.stream(a, b, 300, 64, time.Hour)
				n.stream(b, a, 10, 30000, time.Hour)
				n.sendBulk(a, b, 100_000, time.Hour)
				n.idle(10 * time.Second)
				require.Zero(t, a.m.Stats().Retained+b.m.Stats().Retained, "bytes retained")
			})
		}
	}
}

// TestUT14Wrap (U4, U-T14) checks that numbers wrap.
func TestUT14Wrap(t *testing.T) {
	near := Config{Rand: func(b []byte) {
		for i := range b {
			b[i] = 0xff
		}
		b[0] = 0xf0
	}}
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms, loss: 0.1})
			p.a.Rand, p.b.Rand = near.Rand, near.Rand
			a, b := n.add(1, p.a), n.add(2, p.b)
			n.join(a, b)
			require.Equal(t, uint32(0xfffffff0), a.assoc.lane[0].una)
			n.stream(a, b, 100, 1000, time.Hour)
			n.sendBulk(a, b, 100_000, time.Hour)
			require.Less(t, a.assoc.lane[0].una, uint32(1000), "wrapped")
			require.Less(t, a.assoc.lane[1].una, uint32(1000), "wrapped")
		})
	}
}

// TestUT4UT5OneWay (U5, U10, U-T4, U-T5) checks that one way, lazily acknowledged, is a window per
// timeout; eagerly it is ten times as fast, and nothing is sent again.
func TestUT4UT5OneWay(t *testing.T) {
	took := map[AckMode]time.Duration{}
	for _, mode := range []AckMode{Lazy, Eager, Adaptive} {
		n := newNetwork(t, 1, faults{delay: ms / 10})
		a, b := n.pair(Config{Profile: Seed, Ack: mode, Window: 64}, Config{Profile: Seed, Ack: mode, Window: 64})
		start := n.now
		n.stream(a, b, 2000, 1100, time.Hour)
		took[mode] = n.now - start
		st := a.m.Stats()
		if mode == Lazy {
			require.Positive(t, st.Resent, "probes")
			require.Equal(t, st.Resent, st.Probes, "nothing but probes")
		} else {
			require.Zero(t, st.Resent, "%v", mode)
		}
	}
	require.Greater(t, took[Lazy], 10*took[Eager], "%v", took)
	require.Greater(t, took[Lazy], 10*took[Adaptive], "%v", took)
}

// TestUT10NotStarved (U12, U14, U-T10) checks that the loss of the left edge does not starve the
// timer while the peer continues to send with old acknowledgments.
func TestUT10NotStarved(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{Profile: Seed, Ack: Lazy}, Config{Profile: Seed, Ack: Lazy})
	lost := false
	n.drop = func(from *node, p *Packet) bool {
		if from == a && p.kind == kindData && !lost {
			lost = true
			return true
		}
		return false
	}
	a.send(a.assoc, []byte("edge"))
	for i := 0; len(b.got) == 0; i++ {
		require.Less(t, i, 25, "the timer never expires")
		b.send(b.assoc, []byte("data"))
		n.idle(ms)
	}
}

// TestUT12OneRecovery (U13, U15, U-T12) checks that one loss in a window of 64 is recovered from
// once.
func TestUT12OneRecovery(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms})
			a, b := n.pair(p.a, p.b)
			first, lost := a.assoc.lane[0].una, false
			n.drop = func(from *node, p *Packet) bool {
				if from == a && p.kind == kindData && p.seq == first+5 && !lost {
					lost = true
					return true
				}
				return false
			}
			n.stream(a, b, 64, 1100, time.Minute)
			n.idle(time.Second)
			st := a.m.Stats()
			require.True(t, lost)
			p.requireOneRecovery(t, st)
		})
	}
}

// TestUT12OneRecoverySpaced (U15, U-T12) checks the same when the packets behind a lost one arrive
// one by one, and each of them causes a report.
func TestUT12OneRecoverySpaced(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms})
			a, b := n.pair(p.a, p.b)
			n.stream(a, b, 1, 8, time.Second) // the initial window is small
			n.idle(10 * ms)
			b.got = nil
			first, lost, reports := a.assoc.lane[0].una, false, 0
			n.drop = func(from *node, p *Packet) bool {
				if from == b && p.flags&flagGap != 0 {
					reports++
				}
				if from == a && p.kind == kindData && p.seq == first+5 && !lost {
					lost = true
					return true
				}
				return false
			}
			size := a.assoc.maxDatagram() - headSize - 8 // a packet each
			for range 64 {
				a.send(a.assoc, make([]byte, size))
				n.idle(50 * time.Microsecond)
			}
			n.run(time.Minute, func() bool { return len(b.got) == 64 })
			n.idle(time.Second)
			require.Greater(t, reports, 10, "reports of the loss")
			p.requireOneRecovery(t, a.m.Stats())
		})
	}
}

// TestUT13NoDoubling (U11, U15, U-T13) checks a network that repeats every packet: the traffic does
// not grow.
func TestUT13NoDoubling(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms, dup: 1})
			p.a.Ack, p.b.Ack = Eager, Eager
			a, b := n.pair(p.a, p.b)
			n.stream(a, b, 200, 1100, time.Minute)
			n.sendBulk(a, b, 100_000, time.Minute)
			n.idle(time.Second)
			require.LessOrEqual(t, a.m.Stats().Resent, int64(4))
			require.LessOrEqual(t, n.packets, 1500)
		})
	}
}

// TestBarrierPassesTheWindow checks that bulk data that arrived before the frame which opens it is
// not acknowledged, and so stays in flight; when the window has become small meanwhile, it must not
// block that frame.
func TestBarrierPassesTheWindow(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.add(1, Config{}), n.add(2, Config{})
	a.path, b.path = Path{Size: BaseSize}, Path{Size: BaseSize}
	b.mem = make([]byte, 30_000)
	n.join(a, b)
	n.drop = func(from *node, p *Packet) bool { return from == a && p.kind == kindData && p.lane() == 0 }
	for range 3 { // two are under way, and lost; the third waits
		a.send(a.assoc, make([]byte, 1100))
	}
	a.assoc.Barrier()
	a.bulk(a.assoc, 0, make([]byte, len(b.mem)))
	n.idle(400 * ms)
	require.Greater(t, a.assoc.flight.flying, int(a.assoc.cwnd), "there is more under way than the window has")
	n.drop = nil
	n.run(10*time.Second, func() bool { return len(b.got) == 3 && b.placed == len(b.mem) })
}

// TestUT16UT30RoundTrip (U16, U-T16, U-T30) checks that a packet that was sent twice, and an
// acknowledgment that waited, do not distort the round trip.
func TestUT16UT30RoundTrip(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{Ack: Lazy})
	count := 0
	n.drop = func(from *node, p *Packet) bool {
		if from == a && p.kind == kindData {
			count++
			return count <= 3
		}
		return false
	}
	a.send(a.assoc, []byte("lost three times"))
	n.run(time.Minute, func() bool { return len(b.got) == 1 })
	n.idle(100 * ms)
	require.InDelta(t, 2*ms, a.assoc.rtt(), float64(ms/2))

	a.send(a.assoc, []byte("acknowledged late"))
	n.idle(9 * ms) // before the timer
	b.send(b.assoc, []byte("with this"))
	n.idle(20 * ms)
	require.Len(t, a.got, 1)
	require.InDelta(t, 2*ms, a.assoc.rtt(), float64(ms/2))
}

// TestUT18Native (U17, U-T18) checks that the peer acknowledges from its reader: nothing is sent
// again while its program computes.
func TestUT18Native(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 100, 64, time.Minute)
	n.idle(3 * time.Second) // b's program sends nothing
	require.Zero(t, a.m.Stats().Resent)
	require.Nil(t, a.assoc.flight, "nothing is under way, and no timer runs")
	require.Nil(t, b.assoc.flight)
	_, any := a.m.Deadline()
	require.False(t, any)
}

// TestUT19PeerVanishes (U18, U24, U-T19, U-T24) checks that a peer that exits is given up after
// MaxRetries, with the number of frames it has not acknowledged.
func TestUT19PeerVanishes(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			n := newNetwork(t, 1, faults{delay: ms})
			a, b := n.pair(p.a, p.b)
			n.idle(time.Second)
			delete(n.nodes, b.addr)
			for range 5 {
				a.send(a.assoc, []byte("hello?"))
			}
			a.bulk(a.assoc, 0, make([]byte, 5000))
			n.run(30*time.Second, func() bool { return len(a.ends) > 0 })
			require.Equal(t, []End{{Outcome: PeerGone, Messages: 5}}, a.ends)
			require.Empty(t, a.sent, "the views of an ended association are not reported")
			require.Zero(t, a.m.Stats().Retained)
			require.Zero(t, a.m.Stats().Peers)
		})
	}
}

// TestUT26Window (U2, U-T26) checks a window of one, and a full queue: Room returns false, nothing
// is lost, and Room is called again.
func TestUT26Window(t *testing.T) {
	for _, window := range []int{1, 2, 256} {
		n := newNetwork(t, 1, faults{delay: ms, loss: 0.05})
		a, b := n.pair(Config{Profile: Seed, Window: window, Ack: Eager}, Config{Profile: Seed, Window: window, Ack: Eager})
		most := uint32(0)
		n.watch = func(from *node, p *Packet) {
			if from == a {
				most = max(most, a.assoc.lane[0].nxt-a.assoc.lane[0].una)
			}
		}
		n.stream(a, b, 600, 1100, time.Hour)
		require.LessOrEqual(t, int(most), window)
	}
}

// TestU3Immediately (U3) checks that a packet leaves when it is given, if the window is open.
func TestU3Immediately(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, _ := n.pair(Config{}, Config{})
	sent := -time.Second
	n.watch = func(from *node, p *Packet) {
		if p.kind == kindData {
			sent = n.now
		}
	}
	a.send(a.assoc, []byte("now"))
	a.flush()
	require.Equal(t, n.now, sent)
}

// TestUT28Selective (U-T28) checks a loss of 1 % of the packets, with a round trip of 100 of them
// and a window of 256: selective acknowledgments are at least 1.7 times as fast as go-back-n.
func TestUT28Selective(t *testing.T) {
	took := map[Profile]time.Duration{}
	for _, profile := range []Profile{Modern, Seed} {
		n := newNetwork(t, 3, faults{delay: 5 * ms, loss: 0.01, rate: 100 * 1200 * 100, queue: 1 << 20})
		c := Config{Profile: profile, Ack: Eager, Window: 256}
		a, b := n.add(1, c), n.add(2, c)
		a.path, b.path = Path{Size: BaseSize, Local: true}, Path{Size: BaseSize, Local: true} // no congestion window in either
		n.join(a, b)
		took[profile] = n.sendBulk(a, b, 4<<20, time.Hour)
		t.Logf("%v: %v %+v", profile, took[profile], a.m.Stats())
	}
	require.Greater(t, float64(took[Seed]), 1.7*float64(took[Modern]))
}

// TestUT29DelaySpike (U-T29) checks a single delay of all packets without loss: at most two
// timeouts, of two probes each, and the window does not collapse.
func TestUT29DelaySpike(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 200, 1100, time.Minute)
	n.idle(50 * ms)
	window, st := a.assoc.cwnd, a.m.Stats()
	b.busy = n.now + 30*ms
	n.stream(a, b, 20, 1100, time.Minute)
	n.idle(50 * ms)
	require.LessOrEqual(t, a.m.Stats().Timeouts-st.Timeouts, int64(2))
	require.LessOrEqual(t, a.m.Stats().Resent-st.Resent, int64(4))
	require.GreaterOrEqual(t, a.assoc.cwnd, window/2)
}

// TestGoodput checks bulk data in bursts of 256 KiB over a short path that loses one packet in a
// hundred, or one train in a hundred as a whole: at least 60 % of the throughput without loss.
func TestGoodput(t *testing.T) {
	const burst = 44 // packets of a train
	took := map[string]time.Duration{}
	for _, lost := range []string{"nothing", "packets", "trains"} {
		f := faults{delay: 50 * time.Microsecond, rate: 700 << 20, queue: 2 << 20}
		if lost == "packets" {
			f.loss = 0.01
		}
		n := newNetwork(t, 1, f)
		a, b := n.add(1, Config{}), n.add(2, Config{})
		a.path, b.path = Path{Size: 1472}, Path{Size: 1472}
		n.join(a, b)
		left, gone := 0, false
		n.drop = func(_ *node, p *Packet) bool {
			if left--; left <= 0 || p.kind != kindData || p.lane() == 0 || p.flags&flagAckNow != 0 { // what is sent again goes alone
				left, gone = burst, n.rnd.IntN(100) == 0
			}
			return gone && lost == "trains"
		}
		for range 100 {
			took[lost] += n.sendBulk(a, b, 256<<10, time.Minute)
		}
		t.Logf("%v lost: %v %+v", lost, took[lost], a.m.Stats())
	}
	for _, lost := range []string{"packets", "trains"} {
		require.Less(t, 0.6*float64(took[lost]), float64(took["nothing"]), "%s are lost", lost)
	}
}

// TestBottleneck checks congestion, "Must show": through a bottleneck of 20 Mbit/s at least 60 % of
// the link, one flow and eight together, and the slowest of eight has at least a quarter of the
// fastest.
func TestBottleneck(t *testing.T) {
	for _, loss := range []float64{0, 0.01, 0.05} {
		for _, flows := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d flows/%v", flows, loss), func(t *testing.T) {
				const rate = 20e6 / 8
				n := newNetwork(t, 5, faults{delay: 5 * ms, loss: loss, rate: rate, queue: 100_000})
				src := n.add(1, Config{})
				as, moved := []*Assoc{}, map[*Assoc]int{}
				refs := map[any]*Assoc{}
				data := make([]byte, 64<<10)
				fill := func(a *Assoc) {
					for {
						_, piece := a.Room(n.now)
						if piece == 0 {
							return
						}
						refs[src.bulk(a, 0, data[:min(piece, len(data))])] = a
					}
				}
				src.room = fill
				for i := range flows {
					dst := n.add(2+i, Config{})
					dst.mem = make([]byte, len(data))
					n.join(src, dst)
					as = append(as, src.assoc)
				}
				src.sent = nil
				start := n.now
				for _, a := range as {
					fill(a)
				}
				n.idle(3 * time.Second)
				total, most, least := 0, 0, math.MaxInt
				for _, nd := range n.order[1:] {
					moved[nd.assoc] = nd.placed
					total, most, least = total+nd.placed, max(most, nd.placed), min(least, nd.placed)
				}
				goodput := float64(total) / (n.now - start).Seconds() / rate
				st := src.m.Stats()
				t.Logf("goodput %.0f %%, slowest/fastest %.2f, sent %d, again %d", 100*goodput, float64(least)/float64(most), st.Sent, st.Resent)
				require.Greater(t, goodput, 0.6)
				require.Greater(t, 4*least, most)
			})
		}
	}
}

// TestUT34Incast (U-T34) checks 16 senders to one receiver: no collapse, and none has less than
// half of another.
func TestUT34Incast(t *testing.T) {
	const rate = 100e6 / 8
	n := newNetwork(t, 5, faults{delay: ms, rate: rate, queue: 200_000})
	dst := n.add(0, Config{})
	for i := range 16 {
		n.join(n.add(1+i, Config{}), dst)
	}
	got := map[netip.AddrPort]int{}
	data := make([]byte, 64<<10)
	dst.mem = data
	for _, nd := range n.order[1:] {
		nd.room = func(a *Assoc) {
			for {
				_, piece := a.Room(n.now)
				if piece == 0 {
					return
				}
				nd.bulk(a, 0, data[:min(piece, len(data))])
			}
		}
		nd.room(nd.assoc)
	}
	n.idle(4 * time.Second)
	most, least := 0, math.MaxInt
	for _, nd := range n.order[1:] {
		v := 0
		for _, ref := range nd.sent {
			v += len(nd.sources[ref])
		}
		got[nd.addr] = v
		most, least = max(most, v), min(least, v)
	}
	t.Logf("most %d, least %d, all %.0f %%", most, least, 100*float64(dst.placed)/4/rate)
	require.Greater(t, 2*least, most)
	require.Greater(t, float64(dst.placed)/4, 0.6*rate)
	packets, again := int64(0), int64(0)
	for _, nd := range n.order[1:] {
		packets, again = packets+nd.m.Stats().Sent, again+nd.m.Stats().Resent
	}
	t.Logf("%d packets, %d of them again", packets, again)
	require.Less(t, 20*again, packets, "collapse begins where what the link carries is repeated")
}

// TestFrames checks messages of all sizes in one stream, several in a packet and one in several.
func TestFrames(t *testing.T) {
	n := newNetwork(t, 2, faults{delay: ms, loss: 0.02, reorder: 0.1})
	a, b := n.pair(Config{}, Config{})
	sizes := []int{8, 100, 1000, 1159, 1160, 1161, 5000, 65536, 8, 64 << 10}
	for i, size := range sizes {
		m := make([]byte, size)
		binary.LittleEndian.PutUint64(m, uint64(i))
		a.send(a.assoc, m)
	}
	n.run(time.Minute, func() bool { return len(b.got) == len(sizes) })
	for i, m := range b.got {
		require.Len(t, m, sizes[i])
		require.Equal(t, uint64(i), binary.LittleEndian.Uint64(m))
	}
}

// TestUT6Names (U9, U-T6) checks that modes and profiles have names, and an invalid name is an
// error that lists the names.
func TestUT6Names(t *testing.T) {
	for name, want := range map[string]AckMode{"": Adaptive, "adaptive": Adaptive, "lazy": Lazy, "eager": Eager} {
		got, err := ParseAckMode(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for name, want := range map[string]Profile{"": Modern, "modern": Modern, "seed": Seed} {
		got, err := ParseProfile(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ParseAckMode("Lazy")
	require.ErrorContains(t, err, "adaptive, lazy or eager")
	_, err = ParseProfile("fast")
	require.ErrorContains(t, err, "want modern or seed")
}

// TestOneKindLost (F21) checks that everything arrives once when only packets that acknowledge are
// lost, or only those that carry data.
func TestOneKindLost(t *testing.T) {
	for _, lost := range []kind{kindAck, kindData} {
		for _, ack := range []AckMode{Adaptive, Lazy, Eager} {
			n := newNetwork(t, 1, faults{delay: ms})
			a, b := n.pair(Config{Ack: ack}, Config{Ack: ack})
			n.idle(100 * ms)
			n.drop = func(_ *node, p *Packet) bool { return p.kind == lost && n.rnd.Float64() < 0.5 }
			n.stream(a, b, 100, 64, time.Minute)
			n.stream(b, a, 100, 64, time.Minute)
		}
	}
}
