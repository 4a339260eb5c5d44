package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// twoSamples returns two samples of a program, 2 s apart.
func twoSamples() (now, before *gaugesSample) {
	times := func(n int64) map[int]int64 {
		return map[int]int64{inspect.TimeBucket(time.Millisecond): 9 * n, inspect.TimeBucket(time.Second): n}
	}
	made := func(watched time.Duration, n int64) *gaugesSample {
		a := inspect.Activity{
			Watched: watched,
			Gauges: inspect.Gauges{Active: 2, Waiting: 1, Peers: []inspect.PeerGauges{
				{Address: "tcp://@1", Label: "me", PeerStats: na.PeerStats{Process: "idle", Remote: "10.0.0.1:7", Transport: "tcp"}},
				{Address: "tcp://@2", PeerStats: na.PeerStats{Process: escapes, Remote: "10.0.0.2:7", Transport: "tcp"}},
			}},
			Calls: []inspect.CallState{
				{Kind: inspect.EventTarget, RPC: "kv/put", Peer: "b", State: "running", Age: 90 * time.Second, Moved: 1 << 20, Size: 1 << 22},
				{Kind: inspect.EventTarget, RPC: "hg/gauges", Peer: "me", State: "running", Age: time.Millisecond},
				{Kind: inspect.EventOrigin, RPC: "log/" + escapes, Peer: "c", State: "waiting", Age: 2 * time.Second},
			},
			Methods: []inspect.MethodCount{
				{Kind: inspect.EventTarget, RPC: "kv/get", Count: 10 * n, Errors: n, Sent: 2048 * n, Times: times(n)},
				{Kind: inspect.EventTarget, RPC: "kv/put", Count: n, Times: map[int]int64{inspect.TimeBucket(time.Minute): n}},
				{Kind: inspect.EventTarget, RPC: "hg/gauges", Count: n},
			},
			Traffic: []inspect.PeerCount{{Address: "tcp://@2", Count: 10 * n, Errors: n, Sent: 4096 * n}},
		}
		return &gaugesSample{all: []inspect.Activity{a}}
	}
	return made(3*time.Second, 30), made(time.Second, 10)
}

// TestReportRates checks that rates and percentiles count the events between two samples.
func TestReportRates(t *testing.T) {
	now, before := twoSamples()
	r := newTopReport("tcp://h:1", now, before, false)
	require.Equal(t, 2.0, r.Seconds)
	require.Len(t, r.Calls, 2, "none of Quicksilver's own")
	require.Len(t, r.Methods, 3, "that which is under way, too")
	get := r.Methods[0]
	require.Equal(t, []float64{100, 10, 20480, 0}, []float64{get.Rate, get.Errors, get.Sent, get.Received})
	require.EqualValues(t, 200, get.Count)
	require.InDelta(t, 1000, get.P50, 100)
	require.InDelta(t, 1000, get.P90, 100)
	require.InDelta(t, 1e6, get.P99, 1e5)
	require.InDelta(t, 1e6, get.Max, 1e5)
	require.Equal(t, []float64{0, 100, 10, 40960}, []float64{r.Peers[0].Rate, r.Peers[1].Rate, r.Peers[1].Errors, r.Peers[1].Sent})
	require.Len(t, newTopReport("tcp://h:1", now, before, true).Methods, 4)
	require.EqualValues(t, 1, r.Contexts[0].Active, "without the look itself")
	require.Equal(t, []bool{true, false}, []bool{r.Peers[0].Own, r.Peers[1].Own})
	now.all[0].Calls = append(now.all[0].Calls, inspect.CallState{Kind: inspect.EventTarget, RPC: "hg/gauges", Peer: "another"})
	r = newTopReport("tcp://h:1", now, before, false)
	require.EqualValues(t, 1, r.Contexts[0].Active)
	require.False(t, r.Peers[0].Own, "it is not known whose look it is")

	before.all[0].Watched = time.Hour // the counting has restarted
	r = newTopReport("tcp://h:1", now, before, false)
	require.Equal(t, 3.0, r.Seconds)
	require.Equal(t, 100.0, r.Methods[0].Rate)
	require.Zero(t, newTopReport("tcp://h:1", &gaugesSample{all: []inspect.Activity{{}}}, nil, false).Seconds)
}

// TestReportStreams checks that a stream in flight is active, and its items are in the rates of its
// method and of its peer.
func TestReportStreams(t *testing.T) {
	stream := func(items int64, age time.Duration) *gaugesSample {
		now, _ := twoSamples()
		now.all[0].Watched = age
		now.all[0].Traffic = nil
		now.all[0].Calls = []inspect.CallState{
			{Kind: inspect.EventTarget, RPC: "log/tail", Peer: "b", ID: 7, State: "running", Age: age, Items: items, Moved: 100 * items},
			{Kind: inspect.EventTarget, RPC: "log/put", Peer: "b", ID: 8, State: "running", Age: time.Second, Items: items, Moved: items, In: true},
		}
		now.all[0].Peers[1].Label = "b"
		return now
	}
	r := newTopReport("tcp://h:1", stream(30, 5*time.Second), stream(10, 3*time.Second), false)
	i := slices.IndexFunc(r.Methods, func(m methodReport) bool { return m.Method == "log/tail" })
	require.Positive(t, i)
	tail, put := r.Methods[i], r.Methods[i+1]
	require.Equal(t, []float64{10, 1000, 0}, []float64{tail.Items, tail.Sent, tail.Received})
	require.Equal(t, []float64{10, 0, 10}, []float64{put.Items, put.Sent, put.Received})
	require.Equal(t, []int{1, 1, 2}, []int{tail.Active, put.Active, r.Peers[1].Active})
	require.Equal(t, []float64{1000, 10}, []float64{r.Peers[1].Sent, r.Peers[1].Received})
	r = newTopReport("tcp://h:1", stream(30, 5*time.Second), nil, false)
	require.Equal(t, 6.0, r.Methods[i].Items, "it is no older than the watch")
	shown := strings.Join(r.listSections(0)[0].lines, "\n")
	require.Contains(t, shown, "30 items, 2.93 KiB")
	r.filter("tail")
	require.Len(t, r.Peers, 1, "a filter by a method keeps the peer that calls it")
}

// TestTopNarrow checks that on 80 columns names come first and are not cut; other columns are
// omitted.
func TestTopNarrow(t *testing.T) {
	now, before := twoSamples()
	p := &now.all[0].Peers[1]
	p.Process, p.Remote = "billing", "192.168.100.200:34567"
	v := topView{order: byRate, report: newTopReport("tcp://h:1", now, before, false)}
	for width, want := range map[int]string{
		80: `(?m)^name +address +active +calls/s +err/s +out/s +by$`, 100: `(?m)^name +address .* in/s +out/s +held +queued +by$`, 60: `(?m)^name +address +calls/s +err/s$`,
	} {
		shown := strings.Join(v.render(width, 40), "\n")
		require.Regexp(t, want, shown, width)
		require.Contains(t, shown, "billing", width)
		require.Contains(t, shown, "192.168.100.200:34567", width)
		require.Contains(t, shown, "idle (this top)", width)
		require.Regexp(t, `(?m)^method +`, shown)
	}
}

// TestTopViewFits checks that the screen fits the terminal in width and lines, at any size, and
// contains no control sequence of a peer.
func TestTopViewFits(t *testing.T) {
	now, before := twoSamples()
	for i := range 300 {
		now.all[0].Calls = append(now.all[0].Calls, inspect.CallState{RPC: fmt.Sprint("many/", i), Peer: strings.Repeat("世", 50)})
	}
	v := topView{order: byRate, report: newTopReport("tcp://h:1", now, before, false)}
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 3}, {1, 1}} {
		for only := range 4 {
			v.fullSection = only
			lines := v.render(size[0], size[1])
			require.LessOrEqual(t, len(lines), size[1])
			for _, l := range lines {
				require.LessOrEqual(t, text.StringWidthWithoutEscSequences(l), size[0], "%v: %q", size, l)
				require.NotContains(t, l, "\x1b")
				require.NotContains(t, l, "\n")
			}
		}
	}
	v.fullSection = 2
	require.Len(t, v.render(80, 24), 7, "a line for each of two peers, however long their names are")
	v.fullSection = 0
	shown := strings.Join(v.render(120, 40), "\n")
	for _, want := range []string{"1 handler at work, 1 request waits", "Calls under way: 302  (", "Peers: 2", "Methods: 303, of the last 2.0 s", "1m30s  running", "1.00 MiB/4.00 MiB", "idle (this top)", "10.0.0.2:7"} {
		require.Contains(t, shown, want)
	}
	v.styled = true
	require.Contains(t, strings.Join(v.render(120, 40), "\n"), "\x1b[1mPeers: 2\x1b[0m")
}

// TestTopViewKeys checks that keys sort, filter, pause, choose a list, and quit.
func TestTopViewKeys(t *testing.T) {
	now, before := twoSamples()
	v := topView{order: byRate, report: newTopReport("tcp://h:1", now, before, false)}
	shows := func() string { return strings.Join(v.render(120, 40), "\n") }
	press := func(keys string) {
		for _, key := range keys {
			require.False(t, v.handleKey(key), "%q", key)
		}
	}
	first := func(a, b string) bool { return strings.Index(shows(), a) < strings.Index(shows(), b) }
	press("3")
	require.True(t, first("kv/get", "kv/put"))
	press("s")
	require.Contains(t, shows(), "sort: p99")
	require.True(t, first("kv/put", "kv/get"), "a minute is more than a second")
	require.NotContains(t, shows(), "Peers")
	press("2")
	require.NotContains(t, shows(), "Methods: ")
	press("0/PUTx\x7f\r")
	require.Contains(t, shows(), "filter: PUT ")
	require.NotContains(t, shows(), "kv/get")
	require.Contains(t, shows(), "kv/put")
	require.Contains(t, shows(), "Peers: 0 of 2: none has \"PUT\" in its name")
	require.Contains(t, shows(), "Methods: 1 of 3, of the")
	press("/idle\x1b")
	require.Contains(t, shows(), "filter: none")
	press("/q\r") // a letter of the filter
	require.Contains(t, shows(), "filter: q ")
	press("\x1bp")
	require.Contains(t, shows(), "PAUSED")
	press(" ")
	require.NotContains(t, shows(), "PAUSED")
	require.True(t, v.handleKey('q'))
	require.True(t, v.handleKey(3))
}

// TestTopSorts checks that every column of the table of methods can be sorted by, by its name.
func TestTopSorts(t *testing.T) {
	now, before := twoSamples()
	for name, order := range sortOrders {
		require.NotPanics(t, func() { newTopReport("tcp://h:1", now, before, true).sort(order) }, name)
	}
	r := newTopReport("tcp://h:1", now, before, false)
	r.sort(sortOrders["latency"])
	require.Equal(t, "kv/put", r.Methods[0].Method, "a minute")
	r.sort(sortOrders["calls/s"])
	require.Equal(t, "kv/get", r.Methods[0].Method)
	for _, column := range strings.Fields(r.listSections(0)[2].lines[0]) {
		require.True(t, sortOrders[column] != "" || slices.Contains([]string{"kind", "active", "items/s"}, column), column)
	}
}
