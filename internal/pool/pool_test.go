package pool

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// newToken makes a token of a number that is not 0.
func newToken(n uint64) *[16]byte {
	var t [16]byte
	binary.LittleEndian.PutUint64(t[8:], n)
	return &t
}

// drainPool gives back what is kept for later.
func drainPool(t *testing.T) {
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, blocks)
		for _, c := range loadChunks() {
			require.Zero(t, c.blockCount)
			require.Equal(t, []span{{tableSize, len(c.mem) - tableSize}}, c.freeSpans, "everything is one piece again")
			c.close()
		}
		chunks.Store(nil)
	})
}

// TestBlocks checks that blocks do not overlap, keep their contents, and leave nothing behind.
func TestBlocks(t *testing.T) {
	drainPool(t)
	rng := rand.New(rand.NewPCG(1, 2))
	type held struct {
		b    []byte
		mark byte
	}
	var all []held
	free := func(i int) {
		h := all[i]
		for _, at := range []int{0, len(h.b) / 2, len(h.b) - 1} {
			require.Equal(t, h.mark, h.b[at])
		}
		Free(h.b)
		all = slices.Delete(all, i, i+1)
	}
	for i := range 3000 {
		if len(all) > 100 || len(all) > 0 && rng.IntN(3) == 0 {
			free(rng.IntN(len(all)))
			continue
		}
		n := 1 + rng.IntN(1<<rng.IntN(19))
		b, err := Alloc(n)
		require.NoError(t, err)
		require.Len(t, b, n)
		require.Equal(t, n, cap(b), "an append cannot reach the next block")
		h := held{b, byte(i)}
		b[0], b[n/2], b[n-1] = h.mark, h.mark, h.mark
		all = append(all, h)
	}
	for len(all) > 0 {
		free(0)
	}
}

func TestFreeOfForeignMemory(t *testing.T) {
	drainPool(t)
	b, err := Alloc(10_000)
	require.NoError(t, err)
	require.Panics(t, func() { Free(make([]byte, 1)) })
	require.Panics(t, func() { Free(b[1:]) })
	Free(b)
	require.Panics(t, func() { Free(b) })
	none, err := Alloc(0)
	require.NoError(t, err)
	require.NotNil(t, none)
	Free(none)
	Free(nil)
	Free(alloc(t, 1))
}

func alloc(t *testing.T, n int) []byte {
	b, err := Alloc(n)
	require.NoError(t, err)
	return b
}

// TestChunkIsReleased checks that one idle chunk of the common size is kept, and no other.
func TestChunkIsReleased(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("chunks are on Linux only")
	}
	drainPool(t)
	small, large := alloc(t, 1), alloc(t, chunkSize+1)
	more := alloc(t, chunkSize)
	require.Len(t, loadChunks(), 3)
	Free(large)
	require.Len(t, loadChunks(), 2)
	Free(small)
	require.Len(t, loadChunks(), 2)
	Free(more)
	require.Len(t, loadChunks(), 1)
	require.NotNil(t, alloc(t, chunkSize))
	require.Len(t, loadChunks(), 1, "it is used again")
	Free(loadChunks()[0].mem[tableSize:])
}

// TestClaims checks that a claim finds its memory for any caller with its token, until it ends; the
// ends of memory that is not a block's have no claim.
func TestClaims(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("chunks are on Linux only")
	}
	drainPool(t)
	b := alloc(t, 3*pageSize)
	defer Free(b)
	require.Zero(t, Share(make([]byte, 9), newToken(1)))
	require.Zero(t, Share(nil, newToken(1)))
	require.Zero(t, Share(b[:0], newToken(1)))
	c := loadChunks()[0]
	var places []Place
	for i := range Claims {
		p := Share(b[i:i+10], newToken(uint64(i+1)))
		require.Equal(t, c.id, p.Chunk)
		places = append(places, p)
	}
	require.Zero(t, Share(b, newToken(9)), "the table is full")
	require.Panics(t, func() { Free(b) }, "peers may read it")
	for i, p := range places {
		own := newToken(uint64(i + 1))
		at, n, ok := FindClaim(c.mem, p.Claim, own)
		require.True(t, ok)
		require.Equal(t, 10, n)
		require.Same(t, &b[i], &c.mem[at])
		require.True(t, IsClaimValid(c.mem, p.Claim, own))
		_, _, ok = FindClaim(c.mem, p.Claim, newToken(uint64(i+2)))
		require.False(t, ok)
		Unshare(p)
		_, _, ok = FindClaim(c.mem, p.Claim, own)
		require.False(t, ok)
		require.False(t, IsClaimValid(c.mem, p.Claim, own))
	}
	again := Share(b, newToken(7))
	require.NotZero(t, again)
	Unshare(again)
	Unshare(Place{})
}

// TestLookRefuses checks that a peer's writes to its table are used only as far as they match the
// mapping.
func TestLookRefuses(t *testing.T) {
	chunk := make([]byte, tableSize+4*pageSize)
	write := func(check, off, n uint64) {
		for i, v := range []uint64{check, off, n} {
			binary.NativeEndian.PutUint64(chunk[7*claimSize+8*i:], v)
		}
	}
	size := uint64(len(chunk))
	for _, c := range []struct {
		name          string
		check, off, n uint64
		ok            bool
	}{
		{"all", 5, tableSize, size - tableSize, true},
		{"nothing, at the end", 5, size, 0, true},
		{"one byte more", 5, tableSize, size - tableSize + 1, false},
		{"behind the end", 5, size + 1, 0, false},
		{"in the table", 5, tableSize - 1, 1, false},
		{"around the world", 5, tableSize, ^uint64(0), false},
		{"far away", 5, ^uint64(0), 1, false},
		{"another's", 6, tableSize, 1, false},
	} {
		write(c.check, c.off, c.n)
		at, n, ok := FindClaim(chunk, 7, newToken(5))
		require.Equal(t, c.ok, ok, c.name)
		if ok {
			require.Equal(t, []int{int(c.off), int(c.n)}, []int{at, n}, c.name)
		}
	}
	write(0, tableSize, 1)
	_, _, ok := FindClaim(chunk, 7, newToken(0))
	require.False(t, ok, "no claim is no claim, whatever the token")
	write(5, tableSize, 1)
	for _, claim := range []uint16{0, 6, Claims + 1, 0xffff} {
		_, _, ok = FindClaim(chunk, claim, newToken(5))
		require.False(t, ok, "claim %d", claim)
	}
	_, _, ok = FindClaim(chunk[:claimSize], 7, newToken(5))
	require.False(t, ok, "a chunk that is shorter than its table")
}
