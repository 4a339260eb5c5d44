package debug

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestFlowsCountForMethods checks that streams in flight count for their method: the items and the
// bytes since they began, and since the last snapshot.
func TestFlowsCountForMethods(t *testing.T) {
	t.Parallel()
	c := clock{now: time.Minute}
	p := c.newPage()
	flow, taken := &inspect.Flow{}, &inspect.Flow{}
	d := contextData{calls: []inspect.Call{
		{Kind: inspect.EventTarget, RPC: "kv/feed", Peer: newPeer(1, "a"), ID: 1, Flow: flow},
		{Kind: inspect.EventOrigin, RPC: "kv/watch", Peer: newPeer(2, "b"), ID: 1, Flow: taken},
	}}
	age := func(d contextData, age time.Duration) contextData {
		d.calls[0].Age, d.calls[1].Age = age, age
		return d
	}
	f := &fakeSource{}
	p.sources = []source{f}
	p.elapsedTime()
	*flow = inspect.Flow{Items: 2000, Bytes: 200_000}
	*taken = inspect.Flow{Items: 1000, Bytes: 100_000}
	f.data = []contextData{age(d, 20*time.Second)}
	m := p.method(t, "kv/feed")
	require.EqualValues(t, []int64{0, 2000, 200_000, 0}, []int64{m.Minute.Count, m.Minute.Items, m.Minute.Sent, m.Minute.Received})
	m = p.method(t, "kv/watch")
	require.EqualValues(t, []int64{1000, 0, 100_000}, []int64{m.Minute.Items, m.Minute.Sent, m.Minute.Received})
	require.InDelta(t, 1000.0/60, m.Minute.ItemsPerSecond(), 1)

	// No snapshot for two minutes: the items are distributed over both, and half of them are in the
	// last one.
	c.now += 2 * time.Minute
	flow.Items, flow.Bytes = 14_000, 1_400_000
	f.data = []contextData{age(d, 140*time.Second)}
	m = p.method(t, "kv/feed")
	require.InDelta(t, 6000, m.Minute.Items, 1)
	require.InDelta(t, 600_000, m.Minute.Sent, 1)
	require.EqualValues(t, 14_000, m.TenMinutes.Items)
	require.EqualValues(t, 1_400_000, m.TenMinutes.Sent)
	require.EqualValues(t, 1_400_000, p.Snapshot(Query{}).Load.Requests.TenMinutes.Sent, "each is counted once")
	require.Contains(t, bodyOf(t, p, "/"), "0 + 100 items</td>")
	f.data = nil
	p.Snapshot(Query{})
	require.Empty(t, p.streamMarks)
}

// TestPeersCountAsMethods checks that the rates of peers are those of the methods: RPCs of the
// library count if Query.All is set.
func TestPeersCountAsMethods(t *testing.T) {
	t.Parallel()
	p := &Page{}
	peer := newPeer(1, "worker")
	d := contextData{}
	d.Peers = []inspect.PeerGauges{{Address: peer.Name(), Label: peer.Label()}}
	d.Peers[0].Addr = peer
	p.sources = []source{&fakeSource{data: []contextData{d}}}
	for _, e := range []inspect.Event{
		{Kind: inspect.EventTarget, RPC: "kv/get", Received: 1}, {RPC: "kv/put", Sent: 2}, {RPC: "hg/ping", Sent: 100, Code: hg.ErrDenied}, {RPC: "hg/health", Sent: 10},
	} {
		e.Peer, e.Took = peer, 1
		p.Observe(&e)
	}
	s := p.Snapshot(Query{})
	w := s.Peers.Rows[0].Minute
	require.EqualValues(t, []int64{2, 0, 2, 1}, []int64{w.Count, w.Errors, w.Sent, w.Received})
	require.EqualValues(t, 2, s.Load.Requests.Minute.Count+s.Load.Calls.Minute.Count)
	w = p.Snapshot(Query{All: true}).Peers.Rows[0].Minute
	require.EqualValues(t, []int64{4, 1, 112, 1}, []int64{w.Count, w.Errors, w.Sent, w.Received})
}

// TestPeersOfMethod checks that the page of a method has the peers that call it, or that it is
// called at: now, or in the last ten minutes.
func TestPeersOfMethod(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	d := contextData{}
	for i, name := range []string{"calls", "called", "calling", "not"} {
		peer := newPeer(i, name)
		d.Peers = append(d.Peers, inspect.PeerGauges{Address: peer.Name(), Label: peer.Label()})
		d.Peers[i].Addr = peer
	}
	d.calls = []inspect.Call{{Kind: inspect.EventTarget, RPC: "kv/get", Peer: d.Peers[2].Addr, ID: 1}}
	p.sources = []source{&fakeSource{data: []contextData{d}}}
	for i := range 3 * maxMethodsPerPeer { // more than are kept of a peer
		c.now += time.Second
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: d.Peers[0].Addr, Took: 1})
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: string(rune('a' + i)), Peer: d.Peers[0].Addr, Took: 1})
	}
	p.Observe(&inspect.Event{Kind: inspect.EventOrigin, RPC: "kv/get", Peer: d.Peers[1].Addr.Named(), Took: 1})
	p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/put", Peer: d.Peers[3].Addr, Took: 1})
	of := func(method string) (all []string) {
		for _, r := range p.Snapshot(Query{Method: method}).Peers.Rows {
			all = append(all, r.Label[:len(r.Label)-len(" (10.0.0.0:4000)")])
		}
		return all
	}
	require.Equal(t, []string{"called", "calling", "calls"}, of("kv/get"))
	require.Equal(t, []string{"not"}, of("kv/put"))
	require.Len(t, of(""), 4)
	c.now += 11 * time.Minute
	require.Equal(t, []string{"calling"}, of("kv/get"))
}

// TestMethodsOfPeer checks that the page of a peer has the number of ended calls in the last minute
// for each of its methods, including those without any.
func TestMethodsOfPeer(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	one, other := newPeer(1, "one"), newPeer(2, "other")
	d := contextData{}
	for _, peer := range []hg.Addr{one, other} {
		d.Peers = append(d.Peers, inspect.PeerGauges{Address: peer.Name(), Label: peer.Label()})
		d.Peers[len(d.Peers)-1].Addr = peer
	}
	p.sources = []source{&fakeSource{data: []contextData{d}}}
	ends := func(kind inspect.EventKind, rpc string, peer hg.Addr) {
		p.Observe(&inspect.Event{Kind: kind, RPC: rpc, Peer: peer, Took: 1})
	}
	ends(inspect.EventTarget, "kv/release", one)
	c.now += 2 * time.Minute
	for range 3 {
		ends(inspect.EventTarget, "kv/export", one)
	}
	ends(inspect.EventOrigin, "kv/export", one)
	ends(inspect.EventTarget, "qs/describe", one)
	ends(inspect.EventTarget, "kv/release", other)
	s := p.Snapshot(Query{Peer: one.Name()})
	require.Equal(t, []PeerMethod{{"call", "kv/export", 1}, {"request", "kv/export", 3}, {"request", "kv/release", 0}}, s.Peers.Rows[0].Methods)
	require.Len(t, p.Snapshot(Query{Peer: one.Name(), All: true}).Peers.Rows[0].Methods, 4)
	require.Nil(t, p.Snapshot(Query{}).Peers.Rows[0].Methods)
	body := bodyOf(t, p, "/?peer="+url.QueryEscape(one.Name()))
	require.Contains(t, body, `Of these ended in the last minute: 1 call of <a href="?method=kv%2Fexport">kv/export</a>, 3 requests of <a`)
	require.Contains(t, body, `, 0 requests of <a href="?method=kv%2Frelease">kv/release</a>.`)
	require.NotContains(t, bodyOf(t, p, "/"), "Of these ended")
}
