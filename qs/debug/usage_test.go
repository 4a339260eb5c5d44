package debug

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestUsage checks that the resources that the process uses are on the page, in the JSON and in the
// text.
func TestUsage(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	p.Snapshot(Query{})
	before := cpuTime()
	for cpuTime() == before { // of a coarse clock
	}
	c.now += 2 * time.Second
	u := p.Snapshot(Query{}).Process.Usage
	require.Equal(t, 2*time.Second, u.CPUCovers)
	require.Positive(t, u.CPU)
	require.Positive(t, u.Processors)
	require.Positive(t, u.Goroutines)
	require.Greater(t, u.Memory, u.Heap)
	require.Positive(t, u.Heap)
	c.now += time.Hour
	require.Equal(t, time.Hour+2*time.Second, p.Snapshot(Query{}).Process.Usage.CPUCovers)
	require.Contains(t, bodyOf(t, p, "/"), "The process uses ")
	require.Contains(t, bodyOf(t, p, "/?format=text"), "uses ")
}

// leakPeer is the peer that handles are for.
var leakPeer = newPeer(1, "kv")

// leakingPage returns a page about a class with handles and regions that are not in use. It begins
// to count at the time of the clock.
func leakingPage(c *clock, regions int64) (*Page, *fakeSource) {
	p, f := c.newPage(), &fakeSource{handles: map[hg.Addr]int{leakPeer: int(regions)}, regions: regions}
	p.sources = []source{f}
	p.takeSample(c.now)
	return p, f
}

// TestLeakWithoutViewer checks that a leak is found without an earlier snapshot: the ends of calls
// trigger the count. It is reported with its rate, also a low one; values that rise and fall are
// not.
func TestLeakWithoutViewer(t *testing.T) {
	t.Parallel()
	for _, l := range []struct {
		name string
		each int64 // slot of ten seconds
		had  int64
		want string
	}{
		{"fast", 300, 0, "12000 registered regions of memory are unused but not closed, and their number has grown by 30 per second in the last 6m40s."},
		{"slow, beside many", 4, 5000, "and their number has grown by 0.4 per second in the last 6m40s."},
		{"none", 0, 5000, ""},
	} {
		var c clock
		p, f := leakingPage(&c, l.had)
		for c.now < 400*time.Second {
			c.now += slotTime
			f.regions += l.each
			f.handles[leakPeer] = int(f.regions)
			p.Observe(&inspect.Event{RPC: "x", Took: 1})
		}
		all := causesOf(p, "leak")
		if l.want == "" {
			require.Empty(t, all, l.name)
			continue
		}
		require.Len(t, all, 2, l.name)
		require.Contains(t, all[1].Text, l.want)
		require.Contains(t, all[0].Text, "of them were created for kv/get to kv (10.0.0.1:4000)")
	}
	var c clock
	p, f := leakingPage(&c, 0)
	for i := range int64(60) {
		f.regions = 1000 * (i % 5)
		p.Observe(&inspect.Event{RPC: "x", Took: 1})
		c.now += slotTime
	}
	require.Empty(t, causesOf(p, "leak"), "it rises and falls")
}

// TestLeakAtFirstSnapshot checks that the first snapshot with thousands of objects reports them:
// with the rate since the page has begun to count, or without one at the beginning.
func TestLeakAtFirstSnapshot(t *testing.T) {
	t.Parallel()
	var c clock
	p, f := leakingPage(&c, 0)
	f.regions = 12_000
	require.Contains(t, causesOf(p, "leak")[0].Text, "12000 registered regions of memory are unused but not closed, and there are no earlier samples")
	for range 4 {
		c.now += slotTime
		p.Snapshot(Query{})
	}
	require.Empty(t, causesOf(p, "leak"), "they do not become more")
	p, f = leakingPage(&c, 0)
	c.now += 40 * time.Minute
	f.regions = 12_000
	require.Contains(t, causesOf(p, "leak")[0].Text, "and their number has grown by 5 per second in the last 40m0s.")
}

// TestLeakNamesUserOfMemory checks that leaking memory is reported with the peer that has used most
// of it last, by session, and with its size.
func TestLeakNamesUserOfMemory(t *testing.T) {
	t.Parallel()
	user, gone := newPeer(1, "kv"), uint64(99)
	export := func(by uint64) memoryUse { return memoryUse{64 << 10, "read", by} }
	room := memoryUse{100, "write", 0}
	for _, c := range []struct {
		mems []memoryUse
		want string
		peer string
	}{
		{[]memoryUse{room, export(user.Session()), export(user.Session()), export(gone)}, ". Their total size is about 562.8 MiB; 2 of the 4 examined are alike: 64.0 KiB each, for peers to read, and kv (10.0.0.1:4000) used them last. Close each handle", user.Name()},
		{[]memoryUse{room, export(gone), export(gone), export(user.Session())}, "are alike: 64.0 KiB each, for peers to read, and the session of the peer that used them has ended.", ""},
		{[]memoryUse{room, room, export(user.Session())}, "; 2 of the 3 examined are alike: 100 B each, for peers to write, and no peer has used them.", ""},
		{nil, "there are no earlier samples: this entry disappears within a minute unless their number grows. Close each handle", ""},
	} {
		var k clock
		p, f := leakingPage(&k, 0)
		d := contextData{open: true}
		d.Peers = []inspect.PeerGauges{{Address: user.Name(), Label: user.Label()}}
		d.Peers[0].Addr = user
		f.data, f.regions, f.mems = []contextData{d}, 12_000, c.mems
		all := causesOf(p, "leak")
		require.Len(t, all, 1)
		require.Contains(t, all[0].Text, c.want)
		require.Equal(t, c.peer, all[0].Peer)
	}
}
