package debug

import (
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// countSlots adds n ended requests of each method to each slot of ten seconds, for the given number
// of slots.
func (c *clock) countSlots(p *Page, slots, n int, took map[string]time.Duration) {
	for range slots {
		for name, d := range took {
			for range n {
				p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: name, Took: d})
			}
		}
		c.now += slotTime
	}
}

func causesOf(p *Page, kind string) (all []Cause) {
	for _, c := range p.Snapshot(Query{}).Causes {
		if c.Kind == kind {
			all = append(all, c)
		}
	}
	return all
}

// TestSlowReportsRates checks that the earlier rate is that of the time for which the page has
// counted.
func TestSlowReportsRates(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	c.countSlots(p, 12, 100, map[string]time.Duration{"x": time.Millisecond})
	c.countSlots(p, 6, 50, map[string]time.Duration{"x": 10 * time.Millisecond})
	all := causesOf(p, "slow")
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "The rate was 5 per second, and 10 before.")
	if cpuTime() > 0 {
		require.Contains(t, all[0].Text, ", so its handlers are waiting: take a goroutine profile to see for what")
	}
}

// TestSlowMethodNamesResources checks that the cause of a slow method depends on the resources that the
// process has used: its requests wait for other processes, or its handlers compute or lack a
// processor. Without that knowledge the text has no cause.
func TestSlowMethodNamesResources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cpu     float64
		waiting int
		want    string
	}{
		{0, 0, ""},
		{0, 3, " 3 of them are waiting for others to finish, which adds to the time: see the limit that has been reached."},
		{0.08, 0, " This process has used 0.08 of 2 processors in 1m0s, so its handlers are waiting: take a goroutine profile to see for what, unless other processes occupy the processors."},
		{1.9, 0, " This process has used 1.9 of 2 processors in 1m0s, so its handlers may be short of CPU time: take a CPU profile of it."},
	} {
		l := &snapshotBuilder{usage: Usage{CPU: c.cpu, CPUCovers: time.Minute, Processors: 2}, methodWork: map[methodKey]*methodWork{
			{inspect.EventTarget, "kv/get"}: {waiting: c.waiting}, {inspect.EventOrigin, "kv/get"}: {waiting: 7},
		}}
		require.Equal(t, c.want, l.explainSlow("kv/get"))
	}
}

// TestSlowMethodStaysReported checks that a slow method is reported as long as it is slow, with its usual times,
// even if the page is not viewed, and for an hour at most.
func TestSlowMethodStaysReported(t *testing.T) {
	t.Parallel()
	for _, looks := range []bool{false, true} {
		var c clock
		p := c.newPage()
		run := func(slots int, d time.Duration) {
			for range slots {
				c.countSlots(p, 1, 10, map[string]time.Duration{"x": d})
				if looks {
					p.Snapshot(Query{})
				}
			}
		}
		run(30, time.Millisecond)
		run(6*40, 10*time.Millisecond)
		all := causesOf(p, "slow")
		require.Len(t, all, 1)
		require.Regexp(t, `slower than usual for 39m\d+s: the median was 10ms in the last minute, and 1ms in the 4m30s before`, all[0].Text)
		run(6*25, 10*time.Millisecond)
		require.Empty(t, causesOf(p, "slow"), "it is the usual by now")
		run(12, 100*time.Millisecond)
		require.Len(t, causesOf(p, "slow"), 1)
		run(12, 10*time.Millisecond)
		require.Empty(t, causesOf(p, "slow"))
		run(12, 100*time.Millisecond)
		require.Len(t, causesOf(p, "slow"), 1, "slow minutes are not usual")
	}
}

// TestSlowMachine checks that if all methods are slower, that is reported, with the resources that
// the process uses, and also those methods that are even slower, the worst first.
func TestSlowMachine(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	usual, slow, few := map[string]time.Duration{}, map[string]time.Duration{}, map[string]time.Duration{}
	for i := range 8 {
		name := fmt.Sprint("m", i)
		usual[name], slow[name], few[name] = 2*time.Millisecond, 10*time.Millisecond, 2*time.Millisecond
	}
	slow["m3"] = 200 * time.Millisecond
	few["m1"], few["m2"] = 10*time.Millisecond, 100*time.Millisecond
	c.countSlots(p, 12, 10, usual)
	c.countSlots(p, 7, 10, slow)
	all := causesOf(p, "slow")
	require.Len(t, all, 2)
	require.Contains(t, all[0].Text, "Most methods are slower than usual: the process or the machine is busy. This affects the requests of 8 of 8 methods, most of all m3")
	require.Regexp(t, `This process has used .* of \d+ processors? in 1m0s, and has \d+ goroutines and .*iB of memory`, all[0].Text)
	require.Empty(t, all[0].Method)
	require.Equal(t, "m3", all[1].Method)
	c.countSlots(p, 12, 10, usual)
	c.countSlots(p, 7, 10, few)
	all = causesOf(p, "slow")
	require.Len(t, all, 2)
	require.Equal(t, []string{"m2", "m1"}, []string{all[0].Method, all[1].Method})
}

// countTails adds to each slot 98 requests of each method with the usual time, and two with the
// given one: a machine that is busy now and then.
func (c *clock) countTails(p *Page, slots int, tails map[methodKey]time.Duration) {
	for range slots {
		for key, tail := range tails {
			for i := range 100 {
				took := 5 * time.Millisecond
				if i < 2 {
					took = tail
				}
				p.Observe(&inspect.Event{Kind: key.kind, RPC: key.name, Took: took})
			}
		}
		c.now += slotTime
	}
}

// TestSlowTailsOfBusyMachine checks that a machine that is busy now and then lengthens the tails of all
// methods, one of them the most. A method is reported if it is slower than the others, even if few
// are of its kind.
func TestSlowTailsOfBusyMachine(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	lone := methodKey{inspect.EventOrigin, "ledger/post"}
	usual, busy := map[methodKey]time.Duration{lone: 100 * time.Millisecond}, map[methodKey]time.Duration{lone: 420 * time.Millisecond}
	for i := range 6 {
		key := methodKey{inspect.EventTarget, fmt.Sprint("m", i)}
		usual[key], busy[key] = 10*time.Millisecond, time.Duration(25+i)*time.Millisecond
	}
	c.countTails(p, 12, usual)
	c.countTails(p, 7, busy)
	require.Empty(t, causesOf(p, "slow"))
	c.countTails(p, 12, usual)
	usual[lone] = busy[lone]
	c.countTails(p, 7, usual)
	all := causesOf(p, "slow")
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "Calls of ledger/post are slower than usual: the 99th percentile was ")
}

// TestSlowTailsOfShortMethod checks that a method that takes little time is delayed by the same
// moments many times as long as it takes.
func TestSlowTailsOfShortMethod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tail     time.Duration
		slow     int // number of other methods that are slow, too
		reported int
	}{
		{30 * time.Millisecond, 0, 0},
		{300 * time.Millisecond, 0, 1},
		{300 * time.Millisecond, 2, 3},
	} {
		var k clock
		p := k.newPage()
		short := methodKey{inspect.EventOrigin, "short"}
		usual, busy := map[methodKey]time.Duration{short: 6 * time.Millisecond}, map[methodKey]time.Duration{short: c.tail}
		for i := range 5 {
			key := methodKey{inspect.EventTarget, fmt.Sprint("m", i)}
			if usual[key], busy[key] = 20*time.Millisecond, 40*time.Millisecond; i < c.slow {
				busy[key] = 300 * time.Millisecond
			}
		}
		k.countTails(p, 12, usual)
		k.countTails(p, 7, busy)
		require.Len(t, causesOf(p, "slow"), c.reported)
	}
}

// TestSlowCommonDelayIsOneCause checks that a delay of all methods has the largest relative effect on short
// ones, and on calls: it is reported as one cause, without the methods. A method with a longer
// delay is reported by itself.
func TestSlowCommonDelayIsOneCause(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	run := func(slots int, delay, ledger time.Duration) {
		for range slots {
			for i, took := range []time.Duration{200 * time.Microsecond, 5 * time.Millisecond, 6 * time.Millisecond, 7 * time.Millisecond} {
				for range 10 {
					p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: fmt.Sprint("m", i), Took: took + delay})
				}
			}
			for range 10 {
				p.Observe(&inspect.Event{Kind: inspect.EventOrigin, RPC: "ledger/post", Took: 3*time.Millisecond + ledger})
			}
			c.now += slotTime
		}
	}
	run(12, 0, 0)
	run(7, 20*time.Millisecond, 20*time.Millisecond)
	all := causesOf(p, "slow")
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "Most methods are slower than usual")
	run(7, 20*time.Millisecond, 300*time.Millisecond)
	all = causesOf(p, "slow")
	require.Len(t, all, 2)
	require.Equal(t, "ledger/post", all[1].Method)
}

// bodyOf returns the body of the page at path.
func bodyOf(t *testing.T, p *Page, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Body.String()
}

// TestSlowCalls checks that if all calls are slower, the text names the peers as a possible cause.
func TestSlowCalls(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	for i := range 20 {
		for _, name := range []string{"a", "b", "c"} {
			for range 10 {
				p.Observe(&inspect.Event{Kind: inspect.EventOrigin, RPC: name, Took: time.Duration(1+i/12*9) * time.Millisecond})
			}
		}
		c.now += slotTime
	}
	all := causesOf(p, "slow")
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "Most calls are slower than usual: the peers, the network, this process or its machine are busy. This affects the calls of 3 of 3 methods")
}

// TestSlowAfterStart checks that a method that is slower than in its first seconds is not reported
// as slow: the usual times need a minute.
func TestSlowAfterStart(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	c.countSlots(p, 1, 100, map[string]time.Duration{"x": time.Millisecond})
	for range 30 {
		c.countSlots(p, 1, 100, map[string]time.Duration{"x": 20 * time.Millisecond})
		require.Empty(t, causesOf(p, "slow"))
	}
	c.countSlots(p, 7, 100, map[string]time.Duration{"x": 200 * time.Millisecond})
	require.Len(t, causesOf(p, "slow"), 1)
}

// countSpread adds ended requests to each slot with the usual time, but two of each hundred with a
// longer one.
func (c *clock) countSpread(p *Page, slots int, methods map[string]latencySpread) {
	for range slots {
		for name, m := range methods {
			for i := range m.n {
				took := m.took
				if i < max(m.n/50, 1) {
					took = m.tail
				}
				p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: name, Took: took})
			}
		}
		c.now += slotTime
	}
}

// A latencySpread is how many requests end in a slot, how long most of them take, and how long the slowest.
type latencySpread struct {
	n          int
	took, tail time.Duration
}

// TestSlowMedianStandsOut checks that a method with an outlying median is reported by itself, even
// while the slowest requests of all others take many times as long; of the latter, the method with
// few requests is not reported as the worst.
func TestSlowMedianStandsOut(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	usual, busy := map[string]latencySpread{}, map[string]latencySpread{}
	for i := range 5 {
		name := fmt.Sprint("m", i)
		usual[name] = latencySpread{100, 5 * time.Millisecond, 6 * time.Millisecond}
		busy[name] = latencySpread{100, 5 * time.Millisecond, time.Duration(120+20*i) * time.Millisecond}
	}
	usual["images/get"], busy["images/get"] = latencySpread{10, 5 * time.Millisecond, 6 * time.Millisecond}, latencySpread{10, 5 * time.Millisecond, 400 * time.Millisecond}
	usual["checkout/pay"], busy["checkout/pay"] = latencySpread{100, 5 * time.Millisecond, 6 * time.Millisecond}, latencySpread{100, 200 * time.Millisecond, 240 * time.Millisecond}
	c.countSpread(p, 12, usual)
	c.countSpread(p, 7, busy)
	all := causesOf(p, "slow")
	require.Len(t, all, 2, "%+v", all)
	require.Equal(t, "checkout/pay", all[0].Method)
	require.Contains(t, all[0].Text, "the median was 2")
	require.Empty(t, all[1].Method)
	require.Regexp(t, `^The slowest requests of many methods take longer than usual, while their medians have hardly changed: .* 5 of 7 methods, most of all m4, whose 99th percentile is [\d.]+ times the usual one\.`, all[1].Text)
	require.NotContains(t, all[1].Text, "images/get")
}
