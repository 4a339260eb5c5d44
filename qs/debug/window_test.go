package debug

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// A clock is the time of a page in a test.
type clock struct{ now time.Duration }

func (c *clock) newPage() *Page {
	return &Page{elapsed: func(time.Time) time.Duration { return c.now }}
}

func (p *Page) method(t *testing.T, name string) Method {
	t.Helper()
	s := p.Snapshot(Query{Method: name})
	require.Len(t, s.Methods.Rows, 1)
	return s.Methods.Rows[0]
}

// TestQuantiles checks that the percentiles of the page are those of the sorted list, to an eighth.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 1000, 50_000} {
		p := &Page{}
		var all []time.Duration
		for range n {
			d := time.Microsecond + time.Duration(rng.Int64N(1<<(rng.IntN(27)+10)))
			all = append(all, d)
			p.Observe(&inspect.Event{RPC: "x", Took: d})
		}
		slices.Sort(all)
		m := p.method(t, "x").TenMinutes
		for _, q := range []struct {
			share float64
			got   time.Duration
		}{{0.5, m.P50}, {0.9, m.P90}, {0.99, m.P99}} {
			want := all[max(int(q.share*float64(n)+0.5)-1, 0)]
			require.GreaterOrEqual(t, q.got, want, "%d of %d", n, len(all))
			require.LessOrEqual(t, q.got, want+want/8+1)
		}
		require.Equal(t, all[n-1], m.Most)
	}
	for i := range len(histogram{}) - 1 {
		require.Equal(t, i, bucketOf(bucketLimit(i)))
		require.Equal(t, i+1, bucketOf(bucketLimit(i)+1))
	}
}

// TestWindows checks that events count in the last minute and in the last ten minutes, and leave
// these windows in time.
func TestWindows(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	observe := func(n int, took time.Duration) {
		for range n {
			p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "x", Took: took, Sent: 3, Received: 5})
		}
	}
	observe(600, time.Second)
	c.now = 10 * time.Second
	m := p.method(t, "x")
	require.EqualValues(t, 600, m.Minute.Count)
	require.InDelta(t, 60, m.Minute.PerSecond, 0.01, "of the ten seconds that there were")
	require.Equal(t, []uint32{600}, m.History)
	c.now = 69 * time.Second
	require.EqualValues(t, 600, p.method(t, "x").Minute.Count)
	c.now = 75 * time.Second
	observe(130, time.Millisecond)
	m = p.method(t, "x")
	require.EqualValues(t, 130, m.Minute.Count)
	require.InDelta(t, 2, m.Minute.PerSecond, 0.01)
	require.Equal(t, 65*time.Second, m.Minute.Covers)
	require.InDelta(t, time.Millisecond, m.Minute.P50, float64(time.Millisecond)/8)
	require.EqualValues(t, []int64{130 * 3, 130 * 5}, []int64{m.Minute.Sent, m.Minute.Received})
	require.EqualValues(t, 730, m.TenMinutes.Count)
	require.Equal(t, time.Second, m.TenMinutes.Most)
	require.Equal(t, time.Second, m.Slowest.Took)
	require.Equal(t, []uint32{600, 0, 0, 0, 0, 0, 0}, m.History)
	require.InDelta(t, time.Second, m.usual.P50, float64(time.Second)/8)
	require.EqualValues(t, 600, m.usual.Count)
	require.Equal(t, slotTime, m.usual.Covers)
	c.now = 10*time.Minute + 10*time.Second
	m = p.method(t, "x")
	require.EqualValues(t, 130, m.TenMinutes.Count)
	require.Len(t, m.History, 60)
	require.Equal(t, uint32(130), m.History[6])
	c.now = time.Hour
	m = p.method(t, "x")
	require.Zero(t, m.TenMinutes.Count)
	require.Nil(t, m.Slowest)
	require.EqualValues(t, 730, m.Count)
	require.Equal(t, time.Second, m.Most)
}

// TestErrorsAreGrouped checks that of a method and a code there is one row, with the first, the
// last, and the text of that.
func TestErrorsAreGrouped(t *testing.T) {
	t.Parallel()
	p := &Page{}
	fail := func(kind inspect.EventKind, code hg.Code, text string) {
		p.Observe(&inspect.Event{Kind: kind, RPC: "kv/get", Code: code, Text: text, Took: 1})
	}
	for range 1000 {
		fail(inspect.EventTarget, hg.ErrNotFound, "no key user/16")
	}
	fail(inspect.EventTarget, hg.ErrNotFound, "no key user/17")
	fail(inspect.EventTarget, hg.ErrTimeout, "")
	fail(inspect.EventOrigin, hg.ErrNotFound, "")
	fail(inspect.EventTarget, 0, "")
	s := p.Snapshot(Query{})
	require.Equal(t, 3, s.Errors.Total)
	e := s.Errors.Rows[0]
	require.EqualValues(t, 1001, e.Count)
	require.Equal(t, "no key user/17", e.Text)
	require.True(t, e.First.Before(e.Last))
	require.EqualValues(t, 1002, s.Methods.Rows[0].Errors, "of requests")
}

// TestBytesOfTransfers checks that the bytes that a handler moves are counted for its method, and
// for the peer.
func TestBytesOfTransfers(t *testing.T) {
	t.Parallel()
	p := &Page{}
	p.Observe(&inspect.Event{Kind: inspect.EventTransfer, RPC: "pull", Of: "kv/put", Received: 1 << 20, Took: 1, Code: hg.ErrCanceled})
	p.Observe(&inspect.Event{Kind: inspect.EventTransfer, RPC: "pull", Received: 7, Took: 1})
	s := p.Snapshot(Query{})
	require.Len(t, s.Methods.Rows, 2)
	require.Equal(t, []any{"kv/put", "request", int64(0), int64(1 << 20)}, []any{s.Methods.Rows[0].Name, s.Methods.Rows[0].Kind, s.Methods.Rows[0].Minute.Count, s.Methods.Rows[0].Minute.Received})
	require.Equal(t, []any{"pull", "transfer", int64(1), int64(7)}, []any{s.Methods.Rows[1].Name, s.Methods.Rows[1].Kind, s.Methods.Rows[1].Minute.Count, s.Methods.Rows[1].Minute.Received})
	require.Zero(t, s.Errors.Total, "the handler that made it fails or does not")
}

// TestPeersAreForgotten checks that peers that are counted are bounded, those that were idle the
// longest make room.
func TestPeersAreForgotten(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	peer := func(i int) hg.Addr {
		var a hg.Addr
		require.NoError(t, a.UnmarshalText([]byte("tcp://@"+string(rune('a'+i%26))+time.Duration(i).String())))
		return a
	}
	const n = 3 * maxPeersPerShard * peerShards
	for i := range n {
		c.now += time.Millisecond
		p.Observe(&inspect.Event{RPC: "x", Peer: peer(i), Took: 1})
	}
	kept := 0
	for i := range p.collector.peers {
		require.LessOrEqual(t, len(p.collector.peers[i].peers), maxPeersPerShard)
		kept += len(p.collector.peers[i].peers)
	}
	require.Equal(t, maxPeersPerShard*peerShards, kept)
	for i := range 1000 {
		last, _ := p.collector.countPeerMinute(peer(n-1-i).Name(), false, "", c.now)
		first, _ := p.collector.countPeerMinute(peer(i).Name(), false, "", c.now)
		require.EqualValues(t, 1, last.count)
		require.Zero(t, first.count)
	}
}
