package udp

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// fragments returns the packets of a datagram that may be too long.
func fragments(b []byte) (all [][]byte) {
	o := &outbox{list: []outboundDatagram{{b: []byte("before")}, {b: b, fragment: true}, {b: []byte("after")}}}
	o.splitOversized()
	for _, d := range o.list[1 : len(o.list)-1] {
		all = append(all, d.b)
	}
	return all
}

// TestFragments checks that a datagram that the path may not carry arrives whole, in whatever order
// its fragments arrive and however often, and no fragment is longer than the minimum that every
// path carries. Others are sent as they are.
func TestFragments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	from := netip.MustParseAddrPort("10.0.0.1:1")
	for _, size := range []int{1, arq.BaseSize, jumbo + 1} {
		b := make([]byte, size)
		require.Equal(t, [][]byte{b}, fragments(b), size)
	}
	for _, size := range []int{arq.BaseSize + 1, 2 * fragmentSize, 2*fragmentSize + 1, 5000, jumbo} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		all := fragments(b)
		require.Len(t, all, (size+fragmentSize-1)/fragmentSize)
		var x assembler
		whole := 0
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, f := range all {
			require.LessOrEqual(t, len(f), arq.BaseSize)
			for range 2 {
				a := inboundDatagram{b: f, from: from}
				if x.addFragment(&a) {
					whole++
					require.Equal(t, len(all)-1, i)
					require.Equal(t, b, a.b)
					break
				}
				require.Len(t, x.partial, 1)
			}
		}
		require.Equal(t, 1, whole)
		require.Empty(t, x.partial, "nothing is kept")
	}
}

// TestFragmentsApart checks that fragments of two datagrams, and of two peers, are not mixed.
func TestFragmentsApart(t *testing.T) {
	var x assembler
	one, two := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.1:2")
	all := fragments(make([]byte, 2*fragmentSize))
	other := fragments(make([]byte, 2*fragmentSize))
	require.False(t, x.addFragment(&inboundDatagram{b: all[0], from: one}))
	require.False(t, x.addFragment(&inboundDatagram{b: all[1], from: two}))
	require.False(t, x.addFragment(&inboundDatagram{b: other[1], from: one}))
	require.Len(t, x.partial, 3)
	require.True(t, x.addFragment(&inboundDatagram{b: all[1], from: one}))
	require.True(t, x.addFragment(&inboundDatagram{b: all[0], from: two}))
	require.True(t, x.addFragment(&inboundDatagram{b: other[0], from: one}))
}

// TestFragmentsBounded checks that few fragments of strangers are kept, the newest; an invalid one
// is dropped.
func TestFragmentsBounded(t *testing.T) {
	var x assembler
	from := netip.MustParseAddrPort("10.0.0.1:1")
	var last [][]byte
	for range 1000 {
		last = fragments(make([]byte, jumbo))
		require.False(t, x.addFragment(&inboundDatagram{b: last[0], from: from}))
		require.LessOrEqual(t, len(x.partial), maxPartial)
	}
	for _, f := range last[1 : len(last)-1] {
		require.False(t, x.addFragment(&inboundDatagram{b: f, from: from}))
	}
	require.True(t, x.addFragment(&inboundDatagram{b: last[len(last)-1], from: from}))

	x = assembler{}
	for name, change := range map[string]func(b []byte) []byte{
		"a head alone":   func(b []byte) []byte { return b[:fragmentHead] },
		"less":           func(b []byte) []byte { return b[:len(b)-1] },
		"more":           func(b []byte) []byte { return append(b, 0) },
		"too large":      func(b []byte) []byte { b[6] = 0xff; return b },
		"not that large": func(b []byte) []byte { b[6], b[7] = 0, 100; return b },
		"odd place":      func(b []byte) []byte { b[9] = 1; return b },
		"beyond the end": func(b []byte) []byte { b[8] = 0xff; return b },
	} {
		require.False(t, x.addFragment(&inboundDatagram{b: change(append([]byte(nil), last[0]...)), from: from}), name)
		require.Empty(t, x.partial, name)
	}
}

// FuzzFragments checks that with any input little is kept.
func FuzzFragments(f *testing.F) {
	for _, b := range fragments(make([]byte, jumbo)) {
		beginnings.Seed(f, b)
	}
	d, s, _ := newGuardedSocket(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := s.bytes
		d.routeDatagrams([]inboundDatagram{{b: b, from: netip.MustParseAddrPort("10.0.0.1:1")}})
		require.LessOrEqual(t, s.bytes-before, max(len(b), jumbo))
		require.LessOrEqual(t, len(d.fragments.partial), maxPartial)
	})
}
