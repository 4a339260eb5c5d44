package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// TestChecksPayloads checks that a target that answers with other bytes than it should is not
// measured.
func TestChecksPayloads(t *testing.T) {
	b := Pattern(1 << 17)
	require.True(t, isPattern(b))
	for _, at := range []int{0, 255, 256, 1 << 16, 1<<17 - 1} {
		b[at] ^= 1
		require.False(t, isPattern(b), "byte %d", at)
		b[at] ^= 1
	}
	copy(b[1<<16:], b[:1<<16])
	require.False(t, isPattern(b), "a piece at the wrong place")

	r := moveRequest{dir: pull, check: true, count: 3, size: 99}
	got, rest, err := parseMove(append(r.append(nil), "handle"...))
	require.NoError(t, err)
	require.Equal(t, r, got)
	require.Equal(t, "handle", string(rest))
	for _, bad := range []moveRequest{{dir: 2, count: 1}, {count: 0}, {count: maxMoves + 1}, {count: 1, size: MaxMove + 1}} {
		_, _, err := parseMove(bad.append(nil))
		require.Error(t, err, "%+v", bad)
	}
	_, _, err = parseMove(make([]byte, moveRequestSize-1))
	require.Error(t, err)
}

// TestGivesPattern checks that the output of a target has the requested size, also after a longer
// one.
func TestGivesPattern(t *testing.T) {
	g := &giveServer{}
	for _, n := range []int{0, 7, 70_000, 300} {
		b := g.pattern(n)
		require.Len(t, b, n)
		require.True(t, isPattern(b))
	}
}

// TestMemory checks that a target has one memory for transfers, whatever origins request at the
// same time.
func TestMemory(t *testing.T) {
	class, err := hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)
	m := &moveServer{}
	refused := func(size uint64, check bool) {
		t.Helper()
		_, _, err := m.acquireMemory(hctx, size, check)
		require.ErrorIs(t, err, hg.ErrAgain)
	}
	first, buf, err := m.acquireMemory(hctx, 100, false)
	require.NoError(t, err)
	require.True(t, isPattern(buf))
	second, _, err := m.acquireMemory(hctx, 100, false)
	require.NoError(t, err)
	require.Same(t, first, second, "many may move the same")
	for range 2 {
		refused(101, false)
		refused(100, true)
		m.releaseMemory()
	}
	_, buf, err = m.acquireMemory(hctx, 101, true)
	require.NoError(t, err, "it is not used any more")
	require.Equal(t, make([]byte, 101), buf)
	refused(101, false)
	refused(101, true)
	m.releaseMemory()
	require.Len(t, m.buf, 101)
	require.NoError(t, class.Shutdown(t.Context()))
}
