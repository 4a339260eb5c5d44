package debug

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestLimitMomentary checks that a request that waits for the limit of its peer is attributed to
// that limit, even if another request of the peer has ended at the moment of the snapshot; of
// several possible limits the one with the highest use is named.
func TestLimitMomentary(t *testing.T) {
	t.Parallel()
	busy, other := newPeer(1, "busy"), newPeer(2, "other")
	for _, c := range []struct {
		running, elsewhere, limit int
		want                      string
	}{
		{15, 0, 0, "3 requests of busy (10.0.0.1:4000) wait for earlier ones of this peer to finish: the limit for one peer (HG.MaxActivePerPeer) is 16, of which 15 are running at this moment; 15 of them are for kv/get."},
		{16, 0, 0, "3 requests of busy (10.0.0.1:4000) wait for earlier ones of this peer to finish: 16 requests are running, the limit for one peer (HG.MaxActivePerPeer); 16 of them are for kv/get."},
		{15, 112, 0, "3 requests wait for a handler to finish: the limit (HG.MaxActive) is 128, of which 127 are running at this moment;"},
		{15, 0, 16, "3 requests of kv/get wait for a handler to finish: the limit of this method (qs.MaxConcurrent) is 16, of which 15 are running at this moment."},
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

// contextWith returns the data of a context with these calls in flight, and their peers.
func contextWith(calls ...inspect.Call) contextData {
	d := contextData{open: true, calls: calls}
	for i := range calls {
		calls[i].ID = uint64(i + 1)
	}
	return d
}

// TestStalledNamesPeers checks that a stalled method is reported with its only peer, or the number
// of peers, and with the calls of the method that have ended since: that tells a method that hangs
// from one that hangs for one caller.
func TestStalledNamesPeers(t *testing.T) {
	t.Parallel()
	one, other := newPeer(1, "one"), newPeer(2, "other")
	request := func(peer hg.Addr, age time.Duration) inspect.Call {
		return inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: peer, State: "running", Age: age}
	}
	const profile = " Take a goroutine profile of this process to see where the handler is blocked."
	for _, c := range []struct {
		ended, elsewhere int // with one, with a third
		calls            []inspect.Call
		want             string
	}{
		{0, 0, []inspect.Call{request(one, 9*time.Second)}, "1 request of kv/get from one (10.0.0.1:4000) has been in flight for more than 5s, the oldest for 9s: its handler has not answered. No request of kv/get has completed in the last minute." + profile},
		{1, 0, []inspect.Call{request(one, 7*time.Second), request(one, 9*time.Second)}, "2 requests of kv/get from one (10.0.0.1:4000) have been in flight for more than 5s, the oldest for 9s: its handler has not answered. In the last minute, 1 request of kv/get completed: 1 from one (10.0.0.1:4000), none from others. They may all wait for the same resource, such as a lock." + profile},
		{0, 583, []inspect.Call{request(one, 9*time.Second)}, "In the last minute, 583 requests of kv/get completed: none from one (10.0.0.1:4000), 583 from others. So only the requests from one (10.0.0.1:4000) are affected, not the whole method. Normally"},
		{2, 3, []inspect.Call{request(one, 7*time.Second), request(other, 9*time.Second)}, "2 requests of kv/get from 2 peers have been in flight for more than 5s, the oldest, with other (10.0.0.2:4000), for 9s: its handler has not answered. In the last minute, 5 requests of kv/get completed: 2 from these peers, 3 from others."},
	} {
		p := &Page{sources: []source{&fakeSource{data: []contextData{contextWith(c.calls...)}}}}
		ends := func(peer hg.Addr, rpc string, kind inspect.EventKind, n int) {
			for range n {
				p.Observe(&inspect.Event{Kind: kind, RPC: rpc, Peer: peer, Took: time.Millisecond})
			}
		}
		ends(one, "kv/put", inspect.EventTarget, 7)
		ends(one, "kv/get", inspect.EventOrigin, 7)
		ends(one, "kv/get", inspect.EventTarget, c.ended)
		ends(newPeer(3, "third"), "kv/get", inspect.EventTarget, c.elsewhere)
		all := causesOf(p, "stalled")
		require.Len(t, all, 1)
		require.Contains(t, all[0].Text, c.want)
	}
	p := &Page{sources: []source{&fakeSource{data: []contextData{contextWith(request(one, 9*time.Second))}}}}
	require.NotContains(t, causesOf(p, "stalled")[0].Text, "completed", "nothing counts what ends")
}

// TestStuckNamesCallers checks that stuck streams are reported with the number of those of the same
// method that make progress, and are the first rows.
func TestStuckNamesCallers(t *testing.T) {
	t.Parallel()
	one, other := newPeer(1, "one"), newPeer(2, "other")
	stream := func(peer hg.Addr, age, stuck time.Duration) inspect.Call {
		return inspect.Call{Kind: inspect.EventTarget, RPC: "kv/feed", Peer: peer, State: "running", Age: age, Flow: &inspect.Flow{Stuck: stuck, Waiting: 1024}}
	}
	goesOn := stream(other, time.Hour, 0)
	for _, c := range []struct {
		calls []inspect.Call
		want  string
	}{
		{[]inspect.Call{stream(one, 20*time.Second, 9*time.Second)}, "1 stream of kv/feed is stalled: the caller, one (10.0.0.1:4000), has read nothing for 9s, although 1.0 KiB are buffered."},
		{[]inspect.Call{goesOn, stream(one, 20*time.Second, 9*time.Second)}, "1 other stream of kv/feed makes progress."},
		{[]inspect.Call{goesOn, goesOn, stream(one, 30*time.Second, 7*time.Second), stream(other, 20*time.Second, 9*time.Second)}, "2 streams of kv/feed are stalled: the callers are 2 peers, the first of which, other (10.0.0.2:4000), has read nothing for 9s, although 1.0 KiB are buffered."},
	} {
		p := &Page{sources: []source{&fakeSource{data: []contextData{contextWith(c.calls...)}}}}
		all := causesOf(p, "stuck stream")
		require.Len(t, all, 1)
		require.Contains(t, all[0].Text, c.want)
		require.Equal(t, len(c.calls) == 1, !containsAll(all[0].Text, []string{" other stream"}))
		rows := p.Snapshot(Query{}).Streams.Rows
		require.True(t, rows[0].Late)
		require.Equal(t, len(c.calls) > 1, !rows[len(rows)-1].Late, "the one that continues is the oldest")
	}
}

// TestCausesCertainFirst checks that causes that are derived from times are less certain: they
// follow the certain ones, in a lighter style.
func TestCausesCertainFirst(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	c.countSlots(p, 12, 100, map[string]time.Duration{"kv/get": time.Millisecond})
	c.countSlots(p, 7, 100, map[string]time.Duration{"kv/get": 100 * time.Millisecond})
	for range minFailures {
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/put", Code: hg.ErrNotFound, Took: 1})
	}
	p.sources = []source{&fakeSource{data: []contextData{contextWith(inspect.Call{Kind: inspect.EventTarget, RPC: "kv/scan", Peer: newPeer(1, "one"), State: "running", Age: 9 * time.Second})}}}
	var kinds []string
	for _, c := range p.Snapshot(Query{}).Causes {
		kinds = append(kinds, c.Kind)
	}
	require.Equal(t, []string{"stalled", "errors", "slow"}, kinds)
	body := bodyOf(t, p, "/")
	require.Contains(t, body, `<li data-key="slow kv/get " class="quiet"><b>slow</b> (less certain) `)
	require.Contains(t, body, `<li data-key="errors kv/put "><b>errors</b> 10`)
}

// TestCausesStayListed checks that a limit that is reached again and again is reported continuously, for
// ten seconds, and in its place; a cause that has ended is removed at once.
func TestCausesStayListed(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	wait := func(n int) *fakeSource {
		d := contextWith(inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: newPeer(1, "one"), State: "running", Age: 9 * time.Second})
		d.MaxActive, d.Active = 1, 1
		for i := range n {
			d.calls = append(d.calls, inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: newPeer(1, "one"), State: "waiting", ID: uint64(i + 10)})
		}
		return &fakeSource{data: []contextData{d}}
	}
	texts := func() (all []string) {
		for _, c := range p.Snapshot(Query{}).Causes {
			all = append(all, c.Kind+": "+c.Text)
		}
		return all
	}
	p.sources = []source{wait(3)}
	first := texts()
	require.Len(t, first, 2)
	require.Contains(t, first[0], "limit: 3 requests wait")
	for range 3 {
		p.sources = []source{wait(0)}
		c.now += 4 * time.Second
		require.Equal(t, []string{first[0] + " Last seen 4s ago.", first[1]}, texts())
		p.sources = []source{wait(3)}
		c.now += 4 * time.Second
		require.Equal(t, first, texts())
	}
	p.sources = []source{&fakeSource{}}
	c.now += causeHoldTime - 1
	require.Equal(t, []string{first[0] + " Last seen 10s ago."}, texts())
	c.now++
	require.Empty(t, texts())
	require.Empty(t, p.recentCauses)
}

// TestEndedWithPeer checks that ended calls of a method with a peer are counted for a minute. They
// are not counted for a peer with more methods than are counted.
func TestEndedWithPeer(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	one := newPeer(1, "one")
	ends := func(rpc string) { p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: rpc, Peer: one, Took: 1}) }
	known := func(rpc string) int {
		n, is := p.collector.countEnded(one.Name(), "request", rpc, c.now)
		require.True(t, is)
		return n
	}
	require.Equal(t, 0, known("x"))
	for i := range 20 {
		ends("x")
		require.Equal(t, min(i+1, minuteSlots), known("x"))
		c.now += slotTime
	}
	c.now += slotTime
	require.Equal(t, minuteSlots-2, known("x"))
	require.Equal(t, 0, known("y"))
	c.now += time.Hour
	require.Equal(t, 0, known("x"))
	for i := range maxMethodsPerPeer {
		ends(fmt.Sprint("m", i))
	}
	require.Equal(t, 1, known("m3"))
	_, is := p.collector.countEnded(one.Name(), "request", "x", c.now)
	require.False(t, is)
}

// TestLimitAdvice checks that for a peer that calls far more often than before the advice is fewer
// calls, and not a higher limit, for as long as it does.
func TestLimitAdvice(t *testing.T) {
	t.Parallel()
	busy := newPeer(1, "busy")
	for _, c := range []struct {
		before, now int // in each slot
		slots       int // before
		since       int // slots of now
		want, not   string
	}{
		{100, 1000, 12, 6, "It calls far more often than before: 100 times per second in the last minute, and 10 in the 2m0s before. Find the reason at the peer, and reduce its rate: ", "Raise the limit"},
		{100, 1000, 12, 60, "100 times per second in the last minute, and 10 in the 2m0s before. Find the reason", "Raise the limit"},
		// for more than an hour: it is usual
		{100, 1000, 12, 400, "Reduce the number of concurrent calls of the peer. Raise the limit only if", "far more"},
		{100, 200, 12, 60, "Reduce the number of concurrent calls of the peer. Raise the limit only if the peer needs them and the resources that the handlers use have spare capacity.", "far more"},
		{0, 1000, 0, 6, "Reduce the number of concurrent calls of the peer. Raise the limit only if", "far more"},
	} {
		var k clock
		p := k.newPage()
		ends := func(slots, n int) {
			for range slots {
				for range n {
					p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: busy, Took: 1})
				}
				p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "qs/describe", Peer: busy, Took: 1})
				p.Observe(&inspect.Event{Kind: inspect.EventOrigin, RPC: "kv/get", Peer: busy, Took: 1})
				k.now += slotTime
			}
		}
		ends(c.slots, c.before)
		ends(c.since, c.now)
		d := contextWith(inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: busy, State: "running"}, inspect.Call{Kind: inspect.EventTarget, RPC: "kv/get", Peer: busy, State: "waiting"})
		d.MaxActive, d.MaxActivePerPeer, d.Active = 128, 1, 1
		d.Peers = []inspect.PeerGauges{{Address: busy.Name(), Label: busy.Label()}}
		d.Peers[0].Addr = busy
		p.sources = []source{&fakeSource{data: []contextData{d}}}
		all := causesOf(p, "limit")
		require.Len(t, all, 1)
		require.Contains(t, all[0].Text, c.want)
		require.NotContains(t, all[0].Text, c.not)
	}
}

// TestPageOfPeerNamesCounts checks that the page of a peer states that its tables of methods and of
// errors count all peers.
func TestPageOfPeerNamesCounts(t *testing.T) {
	t.Parallel()
	p := &Page{}
	for _, peer := range []hg.Addr{newPeer(1, "one"), newPeer(2, "other")} {
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: peer, Code: hg.ErrNotFound, Took: 1})
	}
	texts := []string{"What is counted in this table is of all peers, and not of this one alone.", "The last of each was of this peer; how many there were is of all peers."}
	for _, text := range texts {
		require.Contains(t, bodyOf(t, p, "/?peer="+url.QueryEscape(newPeer(1, "one").Name())), text)
		require.NotContains(t, bodyOf(t, p, "/"), text)
	}
}
