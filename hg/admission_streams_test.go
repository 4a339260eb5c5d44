package hg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestMaxStreams checks that requests with streams have limits of their own: one beyond them is
// refused at once, other requests are not affected, and an end makes room.
func TestMaxStreams(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1, MaxActivePerPeer: 1, MaxStreams: 3, MaxStreamsPerPeer: 2})
		var kept []hg.Request
		id := p.rpc("stream", func(r hg.Request) error { kept = append(kept, detach(r)); return nil })
		plain := p.handle(p.rpc("echo", echo))
		other, octx := n.Origin(hg.Config{})
		for _, name := range []string{"stream", "echo"} {
			_, err := other.Register(name, nil)
			require.NoError(t, err)
		}
		begin := func(octx *hg.Context, o *outcome) *hg.Handle {
			h, err := octx.Create(p.target.Addr(), id)
			require.NoError(t, err)
			require.NoError(t, h.SetStreams(up, down))
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			before := len(kept)
			n.Until(func() bool { return len(kept) > before || o.calls > 0 })
			return h
		}
		refused := func(octx *hg.Context, text string) {
			t.Helper()
			var o outcome
			h := begin(octx, &o)
			requireCode(t, o.err, hg.ErrExhausted)
			require.ErrorContains(t, o.err, text)
			require.Equal(t, na.NotRun, hg.FateOf(o.err))
			require.Zero(t, h.Stream(0).Moved())
			require.NoError(t, h.Close())
		}
		var outcomes [4]outcome
		var all []*hg.Handle
		for i := range 2 {
			all = append(all, begin(p.octx, &outcomes[i]))
		}
		refused(p.octx, "limit of 2 open streams per peer reached (hg.Config.MaxStreamsPerPeer)")
		require.NoError(t, p.call(plain, "beside them"))
		all = append(all, begin(octx, &outcomes[2]))
		refused(octx, "limit of 3 open streams reached (hg.Config.MaxStreams)")
		require.EqualValues(t, 3, p.tctx.Stats().Streams)
		require.Zero(t, p.tctx.Stats().Active)
		g := p.target.Gauges()[0]
		require.Equal(t, [3]int{3, 3, 2}, [3]int{int(g.Streams), g.MaxStreams, g.MaxStreamsPerPeer})
		ofPeers := []int64{}
		for _, peer := range g.Peers {
			ofPeers = append(ofPeers, peer.Streams)
		}
		require.ElementsMatch(t, []int64{1, 2}, ofPeers)
		require.NoError(t, kept[0].RespondRaw(nil, nil))
		n.Until(func() bool { return outcomes[0].calls == 1 && p.tctx.Stats().Streams == 2 })
		all = append(all, begin(p.octx, &outcomes[3]))
		require.Zero(t, outcomes[3].calls)
		for _, r := range kept[1:] {
			require.NoError(t, r.RespondRaw(nil, nil))
		}
		n.Until(func() bool { return outcomes[1].calls+outcomes[2].calls+outcomes[3].calls == 3 })
		for _, h := range append(all, plain) {
			require.NoError(t, h.Close())
		}
		p.requireNoStreams()
		p.requireClean(0)
		require.Zero(t, p.tctx.Stats().Streams)
	})
}

// TestStreamsOfLimitedRPC checks that the limit of an RPC holds for its streams, too: they wait
// for each other, and for nothing else.
func TestStreamsOfLimitedRPC(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var kept []hg.Request
		keep := func(r hg.Request) error { kept = append(kept, detach(r)); return nil }
		_, err := p.target.RegisterRPC(hg.RPC{Name: "bounded", Handler: keep, MaxActive: 1, Queue: 1})
		require.NoError(t, err)
		id, err := p.origin.Register("bounded", nil)
		require.NoError(t, err)
		busy := p.handle(p.rpc("busy", keep))
		var o outcome
		require.NoError(t, busy.ForwardRaw(nil, o.cb)) // all places are taken
		n.Until(func() bool { return len(kept) == 1 })
		var outcomes [3]outcome
		var all []*hg.Handle
		for i := range outcomes {
			h := p.handle(id)
			all = append(all, h)
			require.NoError(t, h.SetStreams(down))
			require.NoError(t, h.ForwardRaw(nil, outcomes[i].cb))
		}
		n.Until(func() bool { return outcomes[2].calls == 1 })
		requireCode(t, outcomes[2].err, hg.ErrExhausted)
		require.Len(t, kept, 2)
		require.NoError(t, kept[1].RespondRaw(nil, nil))
		n.Until(func() bool { return len(kept) == 3 })
		require.NoError(t, kept[2].RespondRaw(nil, nil))
		require.NoError(t, kept[0].RespondRaw(nil, nil))
		n.Until(func() bool { return outcomes[0].calls+outcomes[1].calls+o.calls == 3 })
		for _, h := range append(all, busy) {
			require.NoError(t, h.Close())
		}
		p.requireNoStreams()
		p.requireClean(0)
	})
}
