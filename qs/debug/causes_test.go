package debug

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A request that waits for its peer's limit is of that peer, though one of the others has ended at the moment of the look; of the limits that it may
// wait for it is the one that is used the most.
func TestLimitAtAMoment(t *testing.T) {
	t.Parallel()
	busy, other := newPeer(1, "busy"), newPeer(2, "other")
	for _, c := range []struct {
		running, elsewhere, limit int
		want                      string
	}{
		{15, 0, 0, "3 requests of busy (10.0.0.1:4000) wait for others of this peer to end: 15 run at this moment, and 16 is the limit for one peer"},
		{16, 0, 0, "3 requests of busy (10.0.0.1:4000) wait for others of this peer to end: 16 run, which is the limit for one peer"},
		{15, 112, 0, "3 requests wait for a handler to end: 127 run at this moment, and 128 is the limit (HG.MaxActive)"},
		{15, 0, 16, "3 requests of kv/get wait for a handler to end: 15 run at this moment, and 16 is the limit of this method"},
	} {
		d := contextData{open: true}
		d.MaxActive, d.MaxActivePerPeer, d.Active, d.Waiting = 128, 16, int64(c.running+c.elsewhere), 3
		for i, peer := range []struct {
			hg.Addr
			running int
		}{{busy, c.running}, {other, c.elsewhere}} {
			d.Peers = append(d.Peers, inspect.PeerGauges{Address: peer.Name(), Label: peer.Label()})
			d.Peers[i].Addr = peer.Addr
			for j := range peer.running {
				d.calls = append(d.calls, inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: peer.Addr, State: "running", ID: uint64(j + 1)})
			}
		}
		for j := range 3 {
			d.calls = append(d.calls, inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: busy, State: "waiting", ID: uint64(1000 + j)})
		}
		p := &Page{sources: []source{&fakeSource{data: []contextData{d}, most: c.limit}}}
		all := causesOf(p, "limit")
		require.Len(t, all, 1, "%+v", all)
		require.Contains(t, all[0].Text, c.want)
		require.Equal(t, 3, all[0].Count)
	}
}
