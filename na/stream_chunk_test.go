package na

import (
	"bytes"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// TestChunkGrowsWhileWritten checks a chunk that grows: a short piece has a short chunk. When that
// grows for other bytes while a carrier still writes the piece, the bytes that had arrived are
// there, and the piece is when it has arrived.
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

// TestChunkGrowsOverOlderPiece checks a chunk with a piece that is being written that grew and was
// released, where the memory after it ends within that piece. When it grows, there are no bytes
// behind the piece to copy.
func TestChunkGrowsOverOlderPiece(t *testing.T) {
	const k = 1 << 10
	r := newReceiver()
	r.chunks.bulk = true
	write := func(from, n int64) { r.write(from, bytes.Repeat([]byte{byte(from / k)}, int(n))) }
	c, at := r.chunks.place(13*k, 2*k)
	write(0, 10*k)
	r.consume(10 * k)
	require.Nil(t, r.chunks.list.all()[0], "all bytes that have arrived were read")
	write(10*k, 2*k)
	require.Len(t, r.chunks.list.all()[0].buf, 4*k, "the memory ends within the piece")
	write(15*k, k)
	copy(c.buf[at:], bytes.Repeat([]byte{13}, 2*k))
	r.notePlaced(c, 13*k, 2*k)
	c.drop()
	write(12*k, k)
	b := r.peek()
	require.Len(t, b, 6*k)
	for i, want := range []byte{10, 10, 12, 13, 13, 15} {
		require.Equal(t, bytes.Repeat([]byte{want}, k), b[i*k:][:k])
	}
	r.consume(6 * k)
}

// TestReceiverAnyOrder checks that pieces and frames of a stream may arrive in any order, on
// several lanes, of which each writes one piece at a time where it belongs. The bytes read are
// those sent. It failed for a frame before another one at the end of a chunk, while a piece was
// written at the beginning of the next chunk: the memory of the second frame reached beyond its own
// chunk.
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
			shuffleNear := 1 + rng.IntN(40) // distance of a run from its place
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

// TestReceiverAnySizes is TestReceiverAnyOrder with pieces as small as frames, more of them in
// flight, a reader that has bytes lent while more arrive, and streams that are reset. Some begin
// near the end of a chunk, and most readers are fast: memory is often released while a piece is
// still being written to it.
func TestReceiverAnySizes(t *testing.T) {
	for seed := range long.Or[uint64](5000, 300_000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		anyReceiver{t: t, rng: rng, seed: seed}.run()
		if t.Failed() {
			return
		}
	}
}

type anyReceiver struct {
	t    *testing.T
	rng  *rand.Rand
	seed uint64
}

func (a anyReceiver) run() {
	rng := a.rng
	defer func() {
		if v := recover(); v != nil {
			a.t.Errorf("seed %d: %v\n%s", a.seed, v, debug.Stack())
		}
	}()
	r := newReceiver()
	r.chunks.bulk = rng.IntN(2) == 0
	span := r.chunks.span()
	start := span*rng.Int64N(3) + []int64{0, 0, span - 5000, rng.Int64N(span)}[rng.IntN(4)]
	length := 1 + rng.Int64N(3<<(10+rng.IntN(7)))
	r.read, r.next, r.most = start, start, start
	r.chunks.first = start / span
	end := start + length
	r.limit, r.granted = end, uint64(length)
	sent := make([]byte, length)
	for i := range sent {
		sent[i] = byte(rng.Uint32()) | 1
	}
	type run struct {
		byteRange
		c  *chunk
		at int
	}
	var runs, writing []run
	near := []int64{1, 100, 1 << 10, 4 << 10, minPiece, 64 << 10}[rng.IntN(6)]
	for at := start; at < end; {
		n := min(1+rng.Int64N([]int64{1, near, 4 << 10, maxStreamFrame, bulkChunk}[rng.IntN(5)]), end-at, span-at%span)
		if rng.IntN(3) == 0 {
			n = min(max(1, near-at%near), end-at, span-at%span)
		}
		runs = append(runs, run{byteRange: byteRange{at, at + n}})
		at += n
		if len(runs) > 3000 {
			near = 64 << 10
		}
	}
	far, lanes, places, eager := 1+rng.IntN(min(len(runs), 1+rng.IntN(30))), 1+rng.IntN(8), rng.IntN(5), 2+rng.IntN(20)
	for i := range runs {
		j := min(i+rng.IntN(far), len(runs)-1)
		runs[i], runs[j] = runs[j], runs[i]
	}
	stop := -1
	if rng.IntN(8) == 0 {
		stop = rng.IntN(len(runs))
	}
	got, dropped := start, false
	placed := func(i int) {
		f := writing[i]
		copy(f.c.buf[f.at:], sent[f.from-start:f.to-start])
		if !dropped {
			r.notePlaced(f.c, f.from, f.to-f.from)
		}
		f.c.drop()
		writing = slices.Delete(writing, i, i+1)
	}
	var lent []byte
	look := func() bool {
		if lent == nil {
			if lent = r.peek(); lent != nil {
				r.chunks.lent = true
			}
			return lent != nil
		}
		require.True(a.t, bytes.Equal(lent, sent[got-start:got-start+int64(len(lent))]), "seed %d: at %d", a.seed, got)
		r.chunks.lent = false
		n := int64(len(lent))
		if rng.IntN(3) == 0 {
			n = 1 + rng.Int64N(n)
		}
		got += n
		r.consume(n)
		lent = nil
		return true
	}
	for i, f := range runs {
		if i == stop {
			r.drop()
			dropped = true
			break
		}
		n := f.to - f.from
		require.NoError(a.t, r.check(f.from, n, false, false, 1), "seed %d", a.seed)
		r.charge(f.from, n, false, false)
		if r.chunks.bulk && (n > maxStreamFrame || rng.IntN(5) < places) {
			f.c, f.at = r.chunks.place(f.from, n)
			require.LessOrEqual(a.t, f.at+int(n), len(f.c.buf))
			writing = append(writing, f)
		} else {
			r.write(f.from, sent[f.from-start:f.to-start])
		}
		for len(writing) > 0 && (len(writing) >= lanes || rng.IntN(6) == 0) {
			placed(rng.IntN(len(writing)))
		}
		for rng.IntN(eager) != 0 && look() {
		}
	}
	for len(writing) > 0 {
		placed(rng.IntN(len(writing)))
	}
	if dropped {
		require.Zero(a.t, r.chunks.list.len())
		return
	}
	for lent != nil || look() {
		look()
	}
	require.Equal(a.t, end, got, "seed %d", a.seed)
	require.Empty(a.t, r.chunks.filled)
	require.Zero(a.t, r.unreadBytes())
	for _, c := range r.chunks.list.all() {
		require.Nil(a.t, c)
	}
}
