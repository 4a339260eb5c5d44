package bulk_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestShutdownWaitsForTransfers checks that a transfer in flight may end, whichever side shuts
// down.
func TestShutdownWaitsForTransfers(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"owner", "mover"} {
		for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
			t.Run(who+"/"+dir.String(), func(t *testing.T) {
				transports.Each(t, func(t *testing.T, n *transports.Net) {
					size := 16 << 20
					if raceflag.Enabled {
						size /= 4
					}
					s := newTransferTest(t, newPair(t, n), dir, size)
					s.spec.Peer, s.spec.Chunk = s.peer, int64(size)
					done := make(chan error, 1)
					_, err := bulk.Transfer(s.mctx, s.spec, func(_ *bulk.Op, err error) { done <- err })
					require.NoError(t, err)
					n.Until(func() bool { return s.octx.NA().Upper().Underway().Reached > 0 })
					cls, other := s.owner, s.mctx
					if who == "mover" {
						cls, other = s.mover, s.octx
					}
					n.Serve(other, 1)
					err = cls.Shutdown(context.Background())
					require.NoError(t, <-done)
					if who == "owner" {
						require.ErrorContains(t, err, "shutdown: 1 region left", "nothing else")
					} else {
						require.NoError(t, err)
					}
					require.Empty(t, describeDiff(s.ownerMem.bytes(), s.moverMem.bytes()))
				})
			})
		}
	}
}

// TestShutdownCancelsTransfers checks that a transfer that is cut off ends with ErrClosed, and is
// counted. It moves the same memory again and again: no machine moves all of it in the time that a
// Shutdown may take.
func TestShutdownCancelsTransfers(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		if p.mover.NA().Closed() { // by the other direction
			p = newPair(t, p.Net)
		}
		const segment, segments = 8 << 20, 16 << 10
		again := func() [][]byte { return slices.Repeat([][]byte{make([]byte, segment)}, segments) }
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite, Eager: -1}, again()...)
		var e outcome
		_, err := bulk.Transfer(p.mctx, bulk.Spec{
			Dir: dir, Peer: p.peer, Remote: decodeRemote(t, there), Local: newLocalHandle(t, p.mctx, again()...), Size: segment * segments, Chunk: segment, Window: 64,
		}, e.done)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err = p.mover.Shutdown(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Regexp(t, `: \d+ transfers? left`, err.Error())
		require.Equal(t, 1, e.calls)
		require.ErrorIs(t, e.err, hg.ErrClosed)
	})
}
