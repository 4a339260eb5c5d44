package na

import (
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
