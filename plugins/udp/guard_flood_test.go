package udp

import (
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A countingSocket socket sends nothing, and counts it.
type countingSocket struct {
	socket
	sent, bytes int
	last        outboundDatagram
}

func (s *countingSocket) send(o *outbox) {
	for i := range o.list {
		s.sent++
		s.bytes += len(o.list[i].b)
		s.last = o.list[i]
	}
}

// newGuardedSocket is a shared socket with TLS and no contexts, and a clock.
func newGuardedSocket(t testing.TB) (d *sharedSocket, s *countingSocket, now *time.Duration) {
	t.Helper()
	g, err := newTLSAcceptor(&tls.Config{Certificates: []tls.Certificate{testcert.New()}}, nil)
	require.NoError(t, err)
	now = new(time.Duration)
	*now = time.Hour
	s = &countingSocket{}
	return &sharedSocket{at: netip.MustParseAddrPort("127.0.0.1:9"), guard: g, now: func() time.Duration { return *now }, sock: s}, s, now
}

func newInitial(to, from uint64, size int) []byte {
	h := longHeader{kind: initial, to: to, from: from}
	return append(h.appendTo(nil), make([]byte, size)...)[:size]
}

// TestFlood sends 100,000 first packets from as many addresses: the answer to each is shorter, and
// no state is kept for it.
func TestFlood(t *testing.T) {
	d, s, _ := newGuardedSocket(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	came, b := 0, newInitial(0, 0, tokenRequestSize)
	for i := range uint32(100_000) {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a000000+i))), 1000)
		binary.BigEndian.PutUint64(b[13:], uint64(i))
		came += len(b)
		d.routeDatagrams([]inboundDatagram{{b: b, from: from}})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Equal(t, 100_000, s.sent)
	require.LessOrEqual(t, s.bytes, came)
	require.Empty(t, d.byID)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(1<<20))
}

// TestNoAmplification checks that no packet of an unknown peer, of any kind, has an answer that is
// longer.
func TestNoAmplification(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, plain := range []bool{false, true} {
		d, s, _ := newGuardedSocket(t)
		if plain {
			d.guard = nil
		}
		for range 20_000 {
			b := newInitial(r.Uint64(), r.Uint64(), longSize+r.IntN(2*tokenRequestSize))
			b[0] = byte(r.Uint32())
			if r.IntN(2) == 0 {
				b[0] = 0xc0
			}
			b[longSize-1] = byte(r.IntN(50))
			before, n := s.bytes, len(b)
			d.routeDatagrams([]inboundDatagram{{b: b, from: netip.MustParseAddrPort("10.0.0.1:1")}})
			require.LessOrEqual(t, s.bytes-before, n)
		}
		require.Positive(t, s.sent)
	}
}

// TestToken checks that a token is valid for its address and its connection id, for a while, and
// for nothing else.
func TestToken(t *testing.T) {
	d, s, now := newGuardedSocket(t)
	at := netip.MustParseAddrPort("10.0.0.1:1000")
	d.routeDatagrams([]inboundDatagram{{b: newInitial(3<<56, 7, tokenRequestSize), from: at}})
	h, ok := parseLong(s.last.b)
	require.True(t, ok)
	require.Equal(t, retry, h.kind)
	require.Equal(t, uint64(7), h.to)
	require.Equal(t, uint64(3), h.from>>56, "the requested context")
	shows := func(token []byte, at string, id uint64) bool {
		return d.guard.checkToken(token, netip.MustParseAddrPort(at), d.now(), id)
	}
	require.True(t, shows(h.token, "10.0.0.1:1000", h.from))
	require.False(t, shows(h.token, "10.0.0.2:1000", h.from))
	require.False(t, shows(h.token, "10.0.0.1:1001", h.from))
	require.False(t, shows(h.token, "10.0.0.1:1000", h.from+1))
	for i := range h.token {
		forged := append([]byte(nil), h.token...)
		forged[i] ^= 1
		require.False(t, shows(forged, "10.0.0.1:1000", h.from), i)
	}
	other, _, _ := newGuardedSocket(t)
	require.False(t, other.guard.checkToken(h.token, at, *now, h.from))
	*now += tokenLife + 1
	require.False(t, shows(h.token, "10.0.0.1:1000", h.from))
}

// FuzzLong checks that no datagram that arrives makes a shared socket panic, keep anything or send more than
// it received.
func FuzzLong(f *testing.F) {
	d, s, _ := newGuardedSocket(f)
	beginnings.Seed(f, newInitial(0, 1, tokenRequestSize))
	beginnings.Seed(f, append([]byte{0x40}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > arq.MaxSize {
			return
		}
		before := s.bytes
		d.routeDatagrams([]inboundDatagram{{b: b, from: netip.MustParseAddrPort("10.0.0.1:1")}})
		require.LessOrEqual(t, s.bytes-before, len(b))
		require.Empty(t, d.byID)
	})
}
