package debug

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// TestLate checks that a row is marked when it is older than is usual for its method: a report may
// take its minutes, and a lookup not even a second.
func TestLate(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	c.countSlots(p, 1, 30, map[string]time.Duration{"report": 30 * time.Second, "get": time.Millisecond, "scan": 80 * time.Millisecond})
	d := contextData{}
	id := uint64(0)
	late := func(method string, age, stuck time.Duration) bool {
		id++
		call := inspect.Call{Kind: inspect.EventTarget, RPC: method, Peer: newPeer(1, "a"), ID: id, Age: age}
		if stuck > 0 {
			call.Flow = &inspect.Flow{Stuck: stuck}
		}
		d.calls = []inspect.Call{call}
		p.sources = []source{&fakeSource{data: []contextData{d}}}
		s := p.Snapshot(Query{})
		return append(s.Calls.Rows, s.Streams.Rows...)[0].Late
	}
	require.False(t, late("report", 50*time.Second, 0))
	require.True(t, late("report", 70*time.Second, 0))
	require.False(t, late("get", 90*time.Millisecond, 0))
	require.True(t, late("get", 110*time.Millisecond, 0))
	require.False(t, late("scan", 150*time.Millisecond, 0))
	require.True(t, late("scan", 200*time.Millisecond, 0))
	require.False(t, late("new", 900*time.Millisecond, 0))
	require.True(t, late("new", time.Second, 0))
	require.False(t, late("feed", time.Hour, 900*time.Millisecond))
	require.True(t, late("feed", time.Hour, time.Second))
	require.Contains(t, bodyOf(t, p, "/"), `class="old"`)
}

// TestCausesAreCounted checks that the number of causes is on the page.
func TestCausesAreCounted(t *testing.T) {
	t.Parallel()
	p := &Page{}
	require.Contains(t, bodyOf(t, p, "/"), "<h2>What is wrong</h2>")
	for _, method := range []string{"a", "b", "c"} {
		for range minFailures {
			p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: method, Code: 5, Took: 1})
		}
	}
	require.Contains(t, bodyOf(t, p, "/"), "<h2>What is wrong: 3</h2>")
}
