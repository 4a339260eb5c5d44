package udp

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// socketPair returns sockets on loopback: one that sends, and two that receive.
func socketPair(t *testing.T) (from *pollSocket, to [2]*pollSocket) {
	t.Helper()
	one := func() *pollSocket {
		s, err := openPolled(netip.MustParseAddrPort("127.0.0.1:0"), &sharedSocket{})
		require.NoError(t, err)
		p := s.(*pollSocket)
		t.Cleanup(p.close)
		return p
	}
	return one(), [2]*pollSocket{one(), one()}
}

// A datagramSet is a set of datagrams in flight, and those that each receiver must get.
type datagramSet struct {
	o    outbox
	want [2][][]byte
}

func (m *datagramSet) add(to int, s *pollSocket, b []byte, again bool) {
	m.o.slab = append(m.o.slab, b...)
	m.o.list = append(m.o.list, outboundDatagram{b: m.o.slab[len(m.o.slab)-len(b):], to: s.localAddr(), again: again})
	m.want[to] = append(m.want[to], b)
}

// readAll reads the packets that have arrived, and returns in how many messages of the system.
func readAll(s *pollSocket) (got [][]byte, messages int) {
	r := getReader()
	defer r.put()
	for {
		n := s.read(r, s.fd, batch)
		if n == 0 {
			return got, messages
		}
		messages += n
		for _, a := range r.in {
			got = append(got, append([]byte(nil), a.b...))
		}
	}
}

// TestTrainsArrive checks that with any sizes and receivers of datagrams each arrives whole and in
// order, those of one size to one peer in few messages of the system; where the system refuses
// trains, too.
func TestTrainsArrive(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		from, to := socketPair(t)
		if refuse { // the system does not divide packets without checksum offload
			require.NoError(t, unix.SetsockoptInt(from.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
		}
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 1))
		count := uint32(0)
		for round := range 200 {
			m := datagramSet{o: outbox{slab: make([]byte, 0, 1<<20)}}
			for len(m.o.list) < turnPackets && len(m.o.slab) < turnBytes {
				peer, size, run := r.IntN(2), 4+r.IntN(3000), 1+r.IntN(20)
				for i := range run {
					if i == run-1 {
						size = 4 + r.IntN(size-3)
					}
					count++
					b := make([]byte, size)
					binary.LittleEndian.PutUint32(b, count)
					m.add(peer, to[peer], b, r.IntN(20) == 0)
				}
			}
			from.send(&m.o)
			require.Empty(t, m.o.large)
			for i, s := range to {
				got, messages := readAll(s)
				require.Equal(t, m.want[i], got, "round %d, seed %d", round, seed)
				if !refuse && round == 0 {
					t.Logf("%d datagrams in %d messages", len(got), messages)
				}
			}
		}
		require.Equal(t, refuse, from.trains.pause.Load() > 0)
	}
}

// TestTrainsSaveSystemCalls checks that a train is one message for the system where both ends support
// it, and a datagram that is sent again is sent separately.
func TestTrainsSaveSystemCalls(t *testing.T) {
	from, to := socketPair(t)
	m := datagramSet{o: outbox{slab: make([]byte, 0, 1<<20)}}
	for i := range 40 {
		m.add(0, to[0], make([]byte, 1400), i == 20)
	}
	from.send(&m.o)
	got, messages := readAll(to[0])
	require.Len(t, got, 40)
	require.Equal(t, 3, messages, "20 datagrams, one, and 19")
}

// TestTrainsLost checks that where half of the datagrams in trains have to be sent again no more
// trains are made for a while; with less loss they are, and with any loss of small datagrams that
// were sent separately.
func TestTrainsLost(t *testing.T) {
	list := make([]outboundDatagram, 32)
	for i := range list {
		list[i].b = make([]byte, 1000)
	}
	for _, tt := range []struct {
		lost, size int // of those that are sent again
		want       bool
	}{{0, 0, false}, {6, 1000, false}, {12, 1000, false}, {32, 100, false}, {20, 1000, true}, {32, 1000, true}} {
		var tr offload
		for range 2 * trainPeriod / (len(list) * 1000) {
			for at := 0; at < len(list); {
				at += tr.trainLen(list[at:])
			}
			for range tt.lost {
				require.Equal(t, 1, tr.trainLen([]outboundDatagram{{b: make([]byte, tt.size), again: true}}))
			}
		}
		require.Equal(t, tt.want, tr.pause.Load() > 0, "%d of %d bytes each are sent again, of 32", tt.lost, tt.size)
		for range trainPause {
			tr.trainLen(list[:1])
		}
		require.Greater(t, tr.trainLen(list), 1, "they are tried again")
	}
}

// TestTrainsJudgedAtOnce checks that contexts of a class share the decision about trains. Nothing
// is sent again here, so they continue, whichever context decides.
func TestTrainsJudgedAtOnce(t *testing.T) {
	var s offload
	var all sync.WaitGroup
	times := long.Or(1_000_000, 100_000_000)
	for range 4 {
		all.Go(func() {
			out := make([]outboundDatagram, 2)
			for i := range out {
				out[i].b = make([]byte, 30<<10)
			}
			for i := range times {
				if s.trainLen(out) == 1 {
					t.Errorf("no train %d", i)
					return
				}
			}
		})
	}
	all.Wait()
}
