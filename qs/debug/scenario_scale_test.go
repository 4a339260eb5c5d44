package debug

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A fakeSource is a class with a state that the test sets.
type fakeSource struct {
	data    []contextData
	handles map[hg.Addr]int // not in use, for kv/get
	regions int64
	mems    []memoryUse
	most    int // handlers of each method
	up      hg.Addr
	lost    func(hg.Addr, error) // of the page
}

func (f *fakeSource) name() string                           { return "big" }
func (f *fakeSource) isOpen() bool                           { return true }
func (f *fakeSource) isReady() bool                          { return true }
func (f *fakeSource) limitOf(string) int                     { return f.most }
func (f *fakeSource) identityOf(int, hg.Addr) (string, bool) { return "", false }
func (f *fakeSource) subscribeFaults(n int, lost func(hg.Addr, error)) int {
	f.lost = lost
	return 0
}
func (f *fakeSource) listMemory(most int) []memoryUse { return f.mems[:min(most, len(f.mems))] }
func (f *fakeSource) isConnected(peer hg.Addr) bool   { return peer == f.up }
func (f *fakeSource) countUnused(each func(string, hg.Addr)) int64 {
	for peer, n := range f.handles {
		for range n {
			each("kv/get", peer)
		}
	}
	return f.regions
}
func (f *fakeSource) contexts() []contextData {
	all := slices.Clone(f.data)
	for i := range all {
		all[i].calls = slices.Clone(all[i].calls)
	}
	return all
}

// newPeer returns the address of a session with a peer that does not listen.
func newPeer(i int, process string) hg.Addr {
	a := na.MakeAddr(fmt.Sprintf("tcp://@%016x", i), 0).Bound(uint64(i + 1))
	label := na.MakeLabel(a, process, fmt.Sprintf("10.0.%d.%d:4000", i/256, i%256))
	return a.Labeled(&label)
}

// busyPage returns a page of a process with these numbers of peers, streams and calls, and 256
// methods.
func busyPage(peers, streams, calls int) *Page {
	p := &Page{}
	d := contextData{open: true}
	d.Address, d.MaxActive, d.MaxActivePerPeer, d.Budget = "tcp://10.0.0.1:7000", 1<<20, 1<<20, 1<<40
	for i := range peers {
		a := newPeer(i, fmt.Sprintf("worker-%04d", i))
		d.Peers = append(d.Peers, inspect.PeerGauges{Address: a.Name(), Label: a.Label(), PeerStats: na.PeerStats{
			Addr: a, Transport: "tcp", Process: fmt.Sprintf("worker-%04d", i), Remote: "10.0.0.1:4000", Offered: 32, Promised: 32, Free: 32,
		}})
	}
	add := func(i int, rpc string, flow *inspect.Flow) {
		d.calls = append(d.calls, inspect.Call{
			Kind: inspect.EventTarget, RPC: rpc, Peer: d.Peers[i%peers].Addr, State: "running", Age: time.Duration(streams+calls-i) * time.Millisecond, ID: uint64(i + 1), Flow: flow,
		})
	}
	for i := range streams {
		add(i, "feed/subscribe", &inspect.Flow{Items: int64(i), Bytes: int64(i) * 100, Waiting: 7})
	}
	for i := range calls {
		add(streams+i, fmt.Sprintf("shop/%d", i%200), nil)
	}
	for i := range 20 * maxMethods {
		p.Observe(&inspect.Event{
			Kind: inspect.EventTarget, RPC: fmt.Sprintf("shop/%d", i%(maxMethods-1)), Peer: d.Peers[i%peers].Addr, Took: time.Duration(i) * time.Microsecond,
			Code: hg.Code(i % 2 * int(hg.ErrNotFound)), Text: "no such thing",
		})
	}
	p.sources = []source{&fakeSource{data: []contextData{d}}}
	return p
}

// TestManyStreamsAndPeers checks that of 10,000 streams, 10,000 calls and 5,000 peers the page
// shows a readable part and the total, and links to the rest: sorted, filtered and cut by the
// server.
func TestManyStreamsAndPeers(t *testing.T) {
	t.Parallel()
	p := busyPage(5000, 10_000, 10_000)
	s := p.Snapshot(Query{})
	require.Equal(t, []int{10_000, 10_000, 5000}, []int{s.Streams.Total, s.Calls.Total, s.Peers.Total})
	require.Equal(t, []int{20, 20, 20, 20, 20}, []int{len(s.Streams.Rows), len(s.Calls.Rows), len(s.Peers.Rows), len(s.Methods.Rows), len(s.Errors.Rows)})
	require.Equal(t, 10*time.Second, s.Calls.Rows[0].Age, "the oldest first")
	require.LessOrEqual(t, len(s.Causes), maxCauses)

	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	t.Logf("%d bytes of HTML", w.Body.Len())
	require.Less(t, w.Body.Len(), 200_000)
	require.Contains(t, w.Body.String(), "1–20 of 10000")

	seen := map[string]bool{}
	for offset := 0; offset < 5000; offset += 1000 {
		s := p.Snapshot(Query{View: "peers", Limit: 1000, Offset: offset, Sort: "-requests"})
		require.Len(t, s.Peers.Rows, 1000)
		require.Empty(t, s.Calls.Rows)
		for _, r := range s.Peers.Rows {
			require.False(t, seen[r.Key])
			seen[r.Key] = true
			require.Equal(t, 4, r.Requests)
		}
	}
	require.Len(t, seen, 5000)
	require.Empty(t, p.Snapshot(Query{View: "peers", Offset: 1 << 30}).Peers.Rows)

	s = p.Snapshot(Query{View: "streams", Sort: "-items", Filter: "WORKER-0007"})
	require.Equal(t, 2, s.Streams.Total)
	require.EqualValues(t, []int64{5007, 7}, []int64{s.Streams.Rows[0].Stream.Items, s.Streams.Rows[1].Stream.Items})
	p = busyPage(50, 100, 100)
	for _, view := range views {
		for _, sort := range Sorts(view) {
			up, down := p.Snapshot(Query{View: view, Sort: sort}), p.Snapshot(Query{View: view, Sort: "-" + sort})
			require.Equal(t, len(rowsOf(up, view)), len(rowsOf(down, view)))
		}
	}
}

func rowsOf(s Snapshot, view string) (keys []string) {
	for _, r := range s.Calls.Rows {
		keys = append(keys, r.Key)
	}
	for _, r := range s.Streams.Rows {
		keys = append(keys, r.Key)
	}
	for _, r := range s.Peers.Rows {
		keys = append(keys, r.Key)
	}
	for _, r := range s.Methods.Rows {
		keys = append(keys, r.Kind+r.Name)
	}
	for _, r := range s.Errors.Rows {
		keys = append(keys, r.Kind+r.Method+r.Error)
	}
	return keys
}

// TestHostileNames checks that strings that peers choose, such as names of methods and processes
// and texts of errors, are shown as text on the page, in its JSON and on terminals, whatever they
// contain.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("looong", 20_000)
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</style><script>alert(1)</script>`, "{{.}}", "javascript:alert(1)",
		"a\x1b[31mred\x1b[0m\r\n", "nul\x00", "\u202ertl", "bad\xff\xfeutf8", "&lt;", `"`, "'", "?method=x&all=1#y", "../..", long,
	}
	p := &Page{}
	d := contextData{open: true}
	for i, name := range hostile {
		a := newPeer(i, name)
		d.Peers = append(d.Peers, inspect.PeerGauges{Address: a.Name(), Label: a.Label(), PeerStats: na.PeerStats{Addr: a, Process: name, Remote: name, Transport: name, Why: name, Queued: 1}})
		for _, kind := range []inspect.EventKind{inspect.EventOrigin, inspect.EventTarget} {
			d.calls = append(d.calls, inspect.Call{Kind: kind, RPC: name, Peer: a, State: name, Age: time.Hour, ID: 7})
		}
		d.calls = append(d.calls, inspect.Call{Kind: inspect.EventTarget, RPC: name, Peer: a, State: "running", Age: time.Hour, ID: 8, Flow: &inspect.Flow{Stuck: time.Hour}})
		for range 2 * minFailures {
			p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: name, Peer: a, Code: hg.ErrNotFound, Text: name, Took: 1})
		}
	}
	p.sources = []source{&fakeSource{data: []contextData{d}}}
	for i := range hostile {
		queries := []Query{{}, {Filter: hostile[i][:min(len(hostile[i]), 500)]}, {Method: hostile[i][:min(len(hostile[i]), 500)]}, {Peer: d.Peers[i].Addr.Name()}, {View: "calls", Sort: hostile[i][:min(len(hostile[i]), 20)]}}
		for _, q := range queries {
			path := "/" + q.withDefaults().linkWith()
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			html := w.Body.String()
			require.Equal(t, 1, strings.Count(html, "<script>"), path)
			require.Equal(t, 1, strings.Count(html, "</script>"), path)
			require.Equal(t, 1, strings.Count(html, "</style>"), path)
			require.NotContains(t, html, "<img", path)
			require.NotContains(t, html, `href="javascript:`, path)
			require.NotContains(t, html, "\x1b", path)
			require.NotContains(t, html, "\x00", path)
			require.NotContains(t, html, "\u202e", path)

			w = httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest("GET", path+"&format=json", nil))
			require.NotContains(t, w.Body.String(), "<", path)
			require.NotContains(t, w.Body.String(), "\x1b", path)

			w = httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest("GET", path+"&format=text", nil))
			require.NotContains(t, w.Body.String(), "\x1b", path)
			require.NotContains(t, w.Body.String(), "\r", path)
		}
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Less(t, w.Body.Len(), 200_000, "a long name does not make a long page")
}

// BenchmarkPage measures the page of a process with 10,000 streams, 10,000 calls and 5,000 peers.
func BenchmarkPage(b *testing.B) {
	for _, of := range []struct {
		name                  string
		peers, streams, calls int
		paths                 []string
	}{
		{"few", 13, 8, 20, []string{"/"}},
		{"many", 5000, 10_000, 10_000, []string{"/", "/?view=streams&sort=-items&limit=1000", "/?q=worker-0007", "/?format=json&limit=1000"}},
	} {
		p := busyPage(of.peers, of.streams, of.calls)
		for _, path := range of.paths {
			b.Run(of.name+path, func(b *testing.B) {
				b.ReportAllocs()
				before := cpuTime()
				for b.Loop() {
					p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
				}
				reportCPU(b, before)
			})
		}
	}
}

// BenchmarkObserve measures the cost of an ended call for a process that is watched.
func BenchmarkObserve(b *testing.B) {
	p := &Page{}
	peers := make([]hg.Addr, 100)
	for i := range peers {
		peers[i] = newPeer(i, "worker")
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		e := &inspect.Event{Kind: inspect.EventTarget, RPC: "shop/order", Peer: peers[0], Took: 10 * time.Microsecond}
		for b.Loop() {
			p.Observe(e)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			e := &inspect.Event{Kind: inspect.EventTarget, RPC: "shop/order", Took: 10 * time.Microsecond}
			for i := 0; pb.Next(); i++ {
				e.Peer = peers[i%len(peers)]
				p.Observe(e)
			}
		})
	})
	b.Run("error", func(b *testing.B) {
		b.ReportAllocs()
		e := &inspect.Event{Kind: inspect.EventTarget, RPC: "shop/order", Peer: peers[0], Took: 10 * time.Microsecond, Code: hg.ErrNotFound, Text: "no key"}
		for b.Loop() {
			p.Observe(e)
		}
	})
}

// TestTransfersOfCalls checks that a transfer is counted with the request that it belongs to, and
// is a row of its own if there is none.
func TestTransfersOfCalls(t *testing.T) {
	t.Parallel()
	a, b := newPeer(1, "a"), newPeer(2, "b")
	d := contextData{calls: []inspect.Call{
		{Kind: inspect.EventTarget, RPC: "put", Peer: a, ID: 7, State: "running", Age: 5, Moved: 3, Size: 9},
		{Kind: inspect.EventTransfer, RPC: "pull", Peer: a, ID: 1, Of: 7, Age: 4},
		{Kind: inspect.EventTransfer, RPC: "pull", Peer: a, ID: 2, Of: 7, Age: 3},
		{Kind: inspect.EventTransfer, RPC: "pull", Peer: b, ID: 3, Of: 7, Age: 2, Moved: 1, Size: 2},
		{Kind: inspect.EventTransfer, RPC: "push", Peer: a, ID: 4, Age: 1},
	}}
	p := &Page{sources: []source{&fakeSource{data: []contextData{d}}}}
	s := p.Snapshot(Query{})
	require.Equal(t, 3, s.Calls.Total)
	keys := map[string]bool{}
	for i, want := range []struct {
		method, peer string
		transfers    int
	}{{"put", "a (10.0.0.1:4000)", 2}, {"pull", "b (10.0.0.2:4000)", 0}, {"push", "a (10.0.0.1:4000)", 0}} {
		c := s.Calls.Rows[i]
		require.Equal(t, []any{want.method, want.peer, want.transfers}, []any{c.Method, c.Peer, c.Transfers})
		keys[c.Key] = true
	}
	require.Len(t, keys, 3)
}
