package bulk_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestH16OneOfManyChunksFails has the k-th piece of a transfer fail, and those behind it, while
// earlier ones are in flight (hazard H16): the owner's memory is shorter than the descriptor
// claims. The transfer ends once, when no piece uses the memory any more.
func TestH16OneOfManyChunksFails(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const chunk, pieces = 1 << 20, 8 // so much that a refusal is faster than the pieces in front of it
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			for _, k := range []int{1, 4, 7} {
				t.Run(fmt.Sprintf("%v/%d", dir, k), func(t *testing.T) {
					p := newPair(t, n)
					theirs, mine := newMemory(k*chunk+1), newMemory(pieces*chunk)
					theirs.fill(1)
					b, err := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, theirs.segs...).MarshalBinary()
					require.NoError(t, err)
					binary.LittleEndian.PutUint64(b[19:], pieces*chunk)
					forged := new(bulk.Handle)
					require.NoError(t, forged.UnmarshalBinary(b))
					here := newLocalHandle(t, p.mctx, mine.segs...)
					e := p.transfer(bulk.Spec{Dir: dir, Remote: forged, Local: here, Size: pieces * chunk, Chunk: chunk, Window: pieces})
					require.ErrorIs(t, e.err, hg.ErrInvalid)
					mine.fillByte(0xee) // it is ours again
					p.requireWorks()
					p.requireWorks()
					require.True(t, mine.isFilledWith(0xee), "the local memory was written after done")
					require.True(t, mine.hasIntactCanaries() && theirs.hasIntactCanaries())
					require.Zero(t, p.mctx.Stats().NA.Outstanding)
					require.NoError(t, here.CloseWait(t.Context()))
				})
			}
		}
	})
}
