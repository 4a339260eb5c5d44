package xnet_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/golden"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestGolden checks that messages that C sent are parsed and encoded again, byte for byte, except
// for a count of pieces that an earlier message left in a header.
func TestGolden(t *testing.T) {
	for _, name := range golden.Names {
		messages, err := golden.Read(name)
		require.NoError(t, err)
		require.Greater(t, len(messages), 4)
		for i, m := range messages {
			if i < 2 {
				s, err := xnet.ParseSetup(m.Bytes)
				require.NoError(t, err)
				require.EqualValues(t, i, s.Kind)
				require.EqualValues(t, 1, s.Version)
				require.False(t, s.Swapped)
				require.Equal(t, m.Bytes, s.Append(nil))
				continue
			}
			n, err := xnet.HeaderLen(m.Bytes)
			require.NoError(t, err)
			var h xnet.Header
			require.NoError(t, h.Parse(m.Bytes[:n]))
			require.EqualValues(t, len(m.Bytes)+m.Cut, h.Size)
			want := bytes.Clone(m.Bytes[:n])
			if h.N == 0 {
				want[5] = 0
			}
			require.Equal(t, want, h.Append(nil, int(h.Payload())))
		}
	}
}

// TestBadHeaders checks that a header whose lengths do not fit together is refused, whichever field
// is wrong.
func TestBadHeaders(t *testing.T) {
	good := (&xnet.Header{Op: xnet.ReadReq, N: 1, IOV: [4]xnet.IOV{{Len: 8, Key: 1}}}).Append(nil, 0)
	var h xnet.Header
	require.NoError(t, h.Parse(good))
	for at, values := range map[int][]byte{
		0: {0, 2, 4, 255}, 1: {5, 6, 7, 255}, 5: {0, 2, 5, 255}, 6: {0, 15, 16, 24, 41, 255}, 8: {0, 16, 39}, 15: {0x80, 0xff},
	} {
		for _, v := range values {
			bad := bytes.Clone(good)
			bad[at] = v
			require.Error(t, h.Parse(bad), "byte %d = %d", at, v)
		}
	}
	require.Error(t, h.Parse(good[:39]))
	_, err := xnet.HeaderLen(good[:15])
	require.Error(t, err)
}

// TestTotal checks that lengths whose sum wraps around are more than any limit.
func TestTotal(t *testing.T) {
	h := xnet.Header{Op: xnet.Write, N: 2, IOV: [4]xnet.IOV{{Len: 1 << 63}, {Len: 1 << 63}}}
	_, err := h.Total(1 << 40)
	require.Error(t, err)
	h.IOV[0].Len, h.IOV[1].Len = 3, 4
	n, err := h.Total(7)
	require.NoError(t, err)
	require.EqualValues(t, 7, n)
	_, err = h.Total(6)
	require.Error(t, err)
}

func TestBadSetups(t *testing.T) {
	good := (&xnet.Setup{Port: 7, PID: 9}).Append(nil)
	_, err := xnet.ParseSetup(good)
	require.NoError(t, err)
	for at, values := range map[int][]byte{0: {2, 4}, 1: {2, 5, 7}, 2: {1, 255}, 3: {0, 7, 9}, 24: {0, 2}, 35: {0}} {
		for _, v := range values {
			bad := bytes.Clone(good)
			bad[at] = v
			_, err := xnet.ParseSetup(bad)
			require.Error(t, err, "byte %d = %d", at, v)
		}
	}
	swapped := bytes.Clone(good)
	swapped[24], swapped[31] = 0, 1
	s, err := xnet.ParseSetup(swapped)
	require.NoError(t, err)
	require.True(t, s.Swapped)
}

func FuzzSetup(f *testing.F) {
	beginnings.Seed(f, (&xnet.Setup{Kind: xnet.Accept, Version: 1, Port: 7, PID: 9}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := xnet.ParseSetup(b)
		if err != nil || s.Kind == xnet.Refuse || s.Swapped {
			return
		}
		again, err := xnet.ParseSetup(s.Append(nil))
		if err != nil || again != s {
			t.Fatalf("got %+v, %v, want %+v", again, err, s)
		}
	})
}

func FuzzHeader(f *testing.F) {
	for _, h := range []xnet.Header{{Flags: xnet.Immediate, Tag: 1}, {Op: xnet.Tagged, Tag: 2}, {Op: xnet.Write, N: 2}, {Data: xnet.Ack}} {
		beginnings.Seed(f, h.Append(nil, 3))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again xnet.Header
		if h.Parse(b) != nil {
			return
		}
		if h.N > 4 || h.Size < uint64(len(b)) {
			t.Fatalf("%+v", h)
		}
		_, _ = h.Total(1 << 46)
		if h.Payload() > 1<<30 {
			return
		}
		if err := again.Parse(h.Append(nil, int(h.Payload()))); err != nil || again.Size != h.Size || again.Tag != h.Tag {
			t.Fatalf("got %+v, %v, want %+v", again, err, h)
		}
	})
}
