package bulk_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestDo checks that Do moves bytes and returns when they have arrived; a context that has ended
// ends it, with its error.
func TestDo(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Target(hg.Config{})
		from, to := bytes.Repeat([]byte("x"), 100_000), make([]byte, 100_000)
		source, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadOnly}, from)
		require.NoError(t, err)
		local, err := bulk.Create(hctx, bulk.Options{Access: bulk.LocalOnly}, to)
		require.NoError(t, err)
		key, err := source.MarshalBinary()
		require.NoError(t, err)
		remote := new(bulk.Handle)
		require.NoError(t, remote.UnmarshalBinary(key))
		spec := bulk.Spec{Dir: bulk.Pull, Peer: hctx.Self(), Remote: remote, Local: local, Size: local.Len(), Chunk: 4 << 10, Window: 1}
		require.NoError(t, bulk.Do(t.Context(), hctx, spec))
		require.Equal(t, from, to)

		late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		defer cancel()
		err = bulk.Do(late, hctx, spec)
		require.ErrorIs(t, err, hg.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
		over, stop := context.WithCancel(t.Context())
		stop()
		err = bulk.Do(over, hctx, spec)
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "pull from")
		spec.Size = -1
		require.ErrorIs(t, bulk.Do(t.Context(), hctx, spec), hg.ErrInvalid)
		require.NoError(t, source.CloseWait(t.Context()))
		require.NoError(t, local.CloseWait(t.Context()))
	})
}
