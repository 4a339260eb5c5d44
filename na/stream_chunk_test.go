package na

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChunkGrowsWhileWritten: a short piece has a short chunk. When that grows for other bytes while a carrier still writes the piece, what
// had come is there, and the piece is when it has come.
func TestChunkGrowsWhileWritten(t *testing.T) {
	r := newReceiver()
	r.limit = maxBulkWindow
	c, at := r.chunks.place(10, 3)
	require.Len(t, c.buf, chunkSizes[0], "memory for a piece of 3 bytes")
	require.True(t, r.write(0, []byte("0123456789")))
	r.write(13, make([]byte, 5000))
	d, dat := r.chunks.place(streamChunk/2, minPiece) // on another lane
	require.Len(t, d.buf, streamChunk)
	copy(c.buf[at:], "abc")
	require.True(t, r.notePlaced(c, 10, 3))
	c.drop()
	require.Equal(t, append([]byte("0123456789abc"), make([]byte, 5000)...), r.peek())
	r.write(5013, make([]byte, streamChunk/2-5013))
	for i := range minPiece {
		d.buf[dat+i] = 7
	}
	require.True(t, r.notePlaced(d, streamChunk/2, minPiece))
	d.drop()
	b := r.peek()
	require.Len(t, b, streamChunk/2+minPiece)
	require.EqualValues(t, 7, b[streamChunk/2])
	r.consume(int64(len(b)))
	require.Nil(t, r.chunks.list.all()[0])
	require.Empty(t, r.chunks.filled)
}

// TestReceiverAnyOrder: pieces and frames of a stream come in any order, on several lanes, of which each writes one piece at a time where it belongs.
// What is read is what was sent. It failed for a frame before another one at the end of a chunk, while a piece was written at the beginning of the
// next chunk: the memory of the second frame reached beyond its own chunk.
func TestReceiverAnyOrder(t *testing.T) {
	const length, lanes = 3 * bulkChunk, 3
	for _, bulk := range []bool{true, false} {
		for seed := range uint64(40) {
			rng := rand.New(rand.NewPCG(seed, 1))
			sent := make([]byte, length)
			for i := range sent {
				sent[i] = byte(rng.Uint32())
			}
			r := newReceiver()
			r.chunks.bulk = bulk
			r.limit, r.granted = length, length
			type run struct {
				byteRange
				c  *chunk
				at int
			}
			var runs, writing []run
			for at := int64(0); at < length; {
				most := []int64{1 << 10, 6 << 10, maxStreamFrame, bulkChunk}[rng.IntN(4)]
				n := min(1+rng.Int64N(most), length-at, r.chunks.span()-at%r.chunks.span())
				runs = append(runs, run{byteRange: byteRange{at, at + n}})
				at += n
			}
			shuffleNear := 1 + rng.IntN(40) // how far from its place a run comes
			for i := range runs {
				j := min(i+rng.IntN(shuffleNear), len(runs)-1)
				runs[i], runs[j] = runs[j], runs[i]
			}
			var got []byte
			placed := func(i int) {
				f := writing[i]
				copy(f.c.buf[f.at:], sent[f.from:f.to])
				r.notePlaced(f.c, f.from, f.to-f.from)
				f.c.drop()
				writing = slices.Delete(writing, i, i+1)
			}
			for _, f := range runs {
				n := f.to - f.from
				require.NoError(t, r.check(f.from, n, false, false, 1), "seed %d", seed)
				r.charge(f.from, n, false, false)
				if n >= minPiece || n > maxStreamFrame || rng.IntN(2) == 0 {
					f.c, f.at = r.chunks.place(f.from, n)
					writing = append(writing, f)
				} else {
					r.write(f.from, sent[f.from:f.to])
				}
				for len(writing) > 0 && (len(writing) == lanes || rng.IntN(4) == 0) {
					placed(rng.IntN(len(writing)))
				}
				for b := r.peek(); b != nil && rng.IntN(2) == 0; b = r.peek() {
					b = b[:1+rng.IntN(len(b))]
					got = append(got, b...)
					r.consume(int64(len(b)))
				}
			}
			for len(writing) > 0 {
				placed(0)
			}
			for b := r.peek(); b != nil; b = r.peek() {
				got = append(got, b...)
				r.consume(int64(len(b)))
			}
			require.True(t, bytes.Equal(sent, got), "seed %d, bulk %v", seed, bulk)
			require.Empty(t, r.chunks.filled)
		}
	}
}
