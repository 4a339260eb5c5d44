package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// looks are two looks at a program that are 2 s apart.
func looks() (now, before *look) {
	times := func(n int64) map[int]int64 {
		return map[int]int64{inspect.TimeBucket(time.Millisecond): 9 * n, inspect.TimeBucket(time.Second): n}
	}
	made := func(watched time.Duration, n int64) *look {
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
		return &look{all: []inspect.Activity{a}}
	}
	return made(3*time.Second, 30), made(time.Second, 10)
}

// TestReportLooks: rates and percentiles are of what has ended between two looks.
func TestReportLooks(t *testing.T) {
	now, before := looks()
	r := reportLooks("tcp://h:1", now, before, false)
	require.Equal(t, 2.0, r.Seconds)
	require.Len(t, r.Calls, 2, "none of Quicksilver's own")
	require.Len(t, r.Methods, 2)
	get := r.Methods[0]
	require.Equal(t, []float64{100, 10, 20480, 0}, []float64{get.Rate, get.Errors, get.Sent, get.Received})
	require.EqualValues(t, 200, get.Count)
	require.InDelta(t, 1000, get.P50, 100)
	require.InDelta(t, 1000, get.P90, 100)
	require.InDelta(t, 1e6, get.P99, 1e5)
	require.InDelta(t, 1e6, get.Max, 1e5)
	require.Equal(t, []float64{0, 100, 10, 40960}, []float64{r.Peers[0].Rate, r.Peers[1].Rate, r.Peers[1].Errors, r.Peers[1].Sent})
	require.Len(t, reportLooks("tcp://h:1", now, before, true).Methods, 3)
	require.EqualValues(t, 1, r.Contexts[0].Active, "without the look itself")
	require.Equal(t, []bool{true, false}, []bool{r.Peers[0].Own, r.Peers[1].Own})
	now.all[0].Calls = append(now.all[0].Calls, inspect.CallState{Kind: inspect.EventTarget, RPC: "hg/gauges", Peer: "another"})
	r = reportLooks("tcp://h:1", now, before, false)
	require.EqualValues(t, 1, r.Contexts[0].Active)
	require.False(t, r.Peers[0].Own, "it is not known whose look it is")

	before.all[0].Watched = time.Hour // it has begun to count anew
	r = reportLooks("tcp://h:1", now, before, false)
	require.Equal(t, 3.0, r.Seconds)
	require.Equal(t, 100.0, r.Methods[0].Rate)
	require.Zero(t, reportLooks("tcp://h:1", &look{all: []inspect.Activity{{}}}, nil, false).Seconds)
}

// TestTopViewFits: the screen has no line that is wider, and no more lines, than the terminal, whatever its size, and nothing that it
// obeys.
func TestTopViewFits(t *testing.T) {
	now, before := looks()
	for i := range 300 {
		now.all[0].Calls = append(now.all[0].Calls, inspect.CallState{RPC: fmt.Sprint("many/", i), Peer: strings.Repeat("世", 50)})
	}
	v := topView{order: byRate, report: reportLooks("tcp://h:1", now, before, false)}
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 3}, {1, 1}} {
		for only := range 4 {
			v.only = only
			lines := v.render(size[0], size[1])
			require.LessOrEqual(t, len(lines), size[1])
			for _, l := range lines {
				require.LessOrEqual(t, text.StringWidthWithoutEscSequences(l), size[0], "%v: %q", size, l)
				require.NotContains(t, l, "\x1b")
				require.NotContains(t, l, "\n")
			}
		}
	}
	v.only = 2
	require.Len(t, v.render(80, 24), 7, "a line for each of two peers, however long their names are")
	v.only = 0
	shown := strings.Join(v.render(120, 40), "\n")
	for _, want := range []string{"1 handler at work, 1 request waits", "Calls under way: 302  (", "Peers: 2", "Methods: 2, of the last 2.0 s", "1m30s  running", "1.00 MiB/4.00 MiB", "idle (this top)", "10.0.0.2:7"} {
		require.Contains(t, shown, want)
	}
	v.styled = true
	require.Contains(t, strings.Join(v.render(120, 40), "\n"), "\x1b[1mPeers: 2\x1b[0m")
}

// TestTopViewKeys: keys sort, filter, pause, choose a list, and quit.
func TestTopViewKeys(t *testing.T) {
	now, before := looks()
	v := topView{order: byRate, report: reportLooks("tcp://h:1", now, before, false)}
	shows := func() string { return strings.Join(v.render(120, 40), "\n") }
	press := func(keys string) {
		for _, key := range keys {
			require.False(t, v.press(key), "%q", key)
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
	require.Contains(t, shows(), "Peers: 0 of 2")
	require.Contains(t, shows(), "Methods: 1 of 2, of the")
	press("/idle\x1b")
	require.Contains(t, shows(), "filter: none")
	press("/q\r") // a letter of the filter
	require.Contains(t, shows(), "filter: q ")
	press("\x1bp")
	require.Contains(t, shows(), "PAUSED")
	press(" ")
	require.NotContains(t, shows(), "PAUSED")
	require.True(t, v.press('q'))
	require.True(t, v.press(3))
}

// TestTopOrders: every column of the table of methods can be sorted by, by its name.
func TestTopOrders(t *testing.T) {
	now, before := looks()
	for name, order := range orders {
		require.NotPanics(t, func() { reportLooks("tcp://h:1", now, before, true).sort(order) }, name)
	}
	r := reportLooks("tcp://h:1", now, before, false)
	r.sort(orders["latency"])
	require.Equal(t, "kv/put", r.Methods[0].Method, "a minute")
	r.sort(orders["calls/s"])
	require.Equal(t, "kv/get", r.Methods[0].Method)
	for _, column := range strings.Fields(r.sections(0)[2].lines[0]) {
		require.True(t, orders[column] != "" || column == "kind", column)
	}
}
