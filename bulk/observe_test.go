package bulk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestTransfersAreObserved checks that every transfer is observed once, by the process that makes
// it.
func TestTransfersAreObserved(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var seen []inspect.Event
		p := newPairWith(t, n, hg.Config{Observe: func(e *inspect.Event) {
			if e.Kind == inspect.EventTransfer {
				seen = append(seen, *e)
			}
		}})
		const size = 300_000
		theirs, mine := newMemory(size), newMemory(size)
		spec := bulk.Spec{
			Remote: decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs.segs...)),
			Local:  newLocalHandle(t, p.mctx, mine.segs...), Size: size,
		}
		look := func(want inspect.Event) {
			t.Helper()
			require.Len(t, seen, 1)
			require.Positive(t, seen[0].Took)
			require.Equal(t, p.peer, seen[0].Peer.Named())
			seen[0].Took, seen[0].Peer = 0, hg.Addr{}
			require.Equal(t, want, seen[0])
			seen = nil
		}
		require.NoError(t, p.transfer(spec).err)
		look(inspect.Event{Kind: inspect.EventTransfer, RPC: "pull", Fate: hg.Ran, Received: size})
		spec.Dir = bulk.Push
		require.NoError(t, p.transfer(spec).err)
		look(inspect.Event{Kind: inspect.EventTransfer, RPC: "push", Fate: hg.Ran, Sent: size})

		spec.Peer = p.peer
		var e outcome
		op, err := bulk.Transfer(p.mctx, spec, e.done)
		require.NoError(t, err)
		op.Cancel()
		p.Until(func() bool { return e.calls > 0 })
		require.ErrorIs(t, e.err, hg.ErrCanceled)
		require.Contains(t, seen[0].Text, hg.ErrCanceled.Error())
		look(inspect.Event{Kind: inspect.EventTransfer, RPC: "push", Code: hg.ErrCanceled, Text: seen[0].Text, Fate: hg.MaybeRan, Sent: e.moved})
	})
}
