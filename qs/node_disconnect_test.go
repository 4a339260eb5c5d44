package qs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestDisconnect checks that Disconnect ends the calls in flight to one address with ErrPeerLost
// and their fate, dials included, and nothing else.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	register := func(_ *sim.World, name string, n *qs.Node) {
		once.Handle(n, func(ctx context.Context, _ string) (string, error) { return name, n.Sleep(ctx, time.Second) })
	}
	runRetry(t, 1, qs.RetryPolicy{Attempts: 1}, register, func(ctx context.Context, w *sim.World, n *qs.Node, _ qs.Peer) {
		why := errors.New("its power is off")
		for _, dials := range []bool{true, false} {
			one, err := n.Peer(ctx, "sim://one")
			require.NoError(t, err)
			two, err := n.Peer(ctx, "sim://two")
			require.NoError(t, err)
			if dials {
				w.Partition("client", "one", true)
			}
			lost, other, begun := once.Go(ctx, one, ""), once.Go(ctx, two, ""), w.Now()
			w.Sleep(100 * time.Millisecond)
			n.HG().NA().Disconnect(one.Addr(), why)
			_, err = lost.Wait(ctx)
			require.ErrorIs(t, err, qs.ErrPeerLost)
			require.ErrorContains(t, err, why.Error())
			require.Equal(t, dials, qs.FateOf(err) == qs.NotRun)
			require.LessOrEqual(t, w.Now()-begun, 101*time.Millisecond)
			_, err = other.Wait(ctx)
			require.NoError(t, err)
			w.Heal()
			w.Sleep(time.Second)
			_, err = once.Call(ctx, one, "")
			require.NoError(t, err, "it is connected anew")
			n.HG().NA().Disconnect(one.Addr(), nil) // for the next
			n.HG().NA().Disconnect(hg.Addr{}, nil)
		}
	})
}
