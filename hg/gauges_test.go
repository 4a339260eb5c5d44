package hg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestServeGauges checks that a program that serves its gauges shows what it has guaranteed and
// what it needs.
func TestServeGauges(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 8, Eager: 1024}})
		require.NoError(t, p.target.ServeGauges())
		require.ErrorIs(t, p.target.ServeGauges(), na.ErrExists)
		second := n.Context(p.target)
		id, err := p.origin.Register(inspect.GaugesRPC, nil)
		require.NoError(t, err)
		work := p.rpc("work", echo)
		var o outcome
		for range 5 {
			h := p.handle(work)
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			h.Close()
		}
		p.Until(func() bool { return o.calls == 5 })
		h := p.handle(id)
		defer h.Close()
		require.NoError(t, p.call(h, nil))
		out, err := h.OutputRaw()
		require.NoError(t, err)
		all, err := inspect.DecodeGauges(out)
		require.NoError(t, err)
		require.Len(t, all, 2)
		g := all[0]
		require.Equal(t, p.tctx.Self().String(), g.Address)
		require.Equal(t, 1, all[1].Context)
		require.Equal(t, second.Self().String(), all[1].Address)
		require.Equal(t, []int{1024, 8}, []int{g.Eager, g.Envelopes})
		require.EqualValues(t, 64<<20, g.Budget)
		require.Equal(t, na.GuaranteedBytes(1, 8, 1024), g.Reserved)
		require.EqualValues(t, 1, g.Active, "the peer that reads the gauges")
		require.Equal(t, []int{1024, 128}, []int{g.MaxActive, g.MaxActivePerPeer})
		require.Len(t, g.Peers, 1)
		require.Equal(t, []int{8, 0, 8}, []int{g.Peers[0].Offered, g.Peers[0].Held, g.Peers[0].Promised}, "%+v", g.Peers[0])
		require.GreaterOrEqual(t, g.Peers[0].HeldMax, 1)
		require.Equal(t, 5, p.octx.Stats().NA.HighWater)
		_, err = inspect.DecodeGauges([]byte("nonsense"))
		require.Error(t, err)
	})
}
