package na

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTokenMint checks that a class recognizes the tokens that it has made, also those that it has
// discarded, and no others.
func TestTokenMint(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(b []byte) {
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
	}
	var ours, theirs tokenSource
	require.False(t, ours.isOwn([16]byte{}), "before the first")
	seen := map[[16]byte]bool{}
	for range 10_000 {
		var a, b [16]byte
		ours.next(&a, random)
		theirs.next(&b, random)
		require.False(t, seen[a] || seen[b], "a token is repeated")
		seen[a], seen[b] = true, true
		require.True(t, ours.isOwn(a))
		require.False(t, ours.isOwn(b), "another class's")
		a[r.IntN(16)] ^= 1 << r.IntN(8)
		require.False(t, ours.isOwn(a), "one that differs in a bit")
	}
	for range 200_000 {
		var guess [16]byte
		binary.LittleEndian.PutUint64(guess[:], r.Uint64())
		binary.LittleEndian.PutUint64(guess[8:], r.Uint64())
		if ours.isOwn(guess) {
			t.Fatalf("%x, which is random, is known", guess)
		}
	}
	require.False(t, ours.isOwn([16]byte{}))
	ours.made.Add(1)
	var later [16]byte
	ours.next(&later, nil)
	ours.made.Add(^uint64(0))
	require.False(t, ours.isOwn(later), "one that has not been made yet")
}
