package ledger

import (
	"encoding/json"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	seeds    = flag.Int("ledger.seeds", long.Or(60, 10_000), "seeds that TestSeeds runs")
	oneSeed  = flag.Uint64("ledger.seed", 0, "the one seed that TestSeeds runs, with its book; 0 runs many")
	fromSeed = flag.Uint64("ledger.from", 1, "the first seed that TestSeeds runs")
	without  = flag.Uint("ledger.without", 0, "deeds that origins do not do, a sum of Deeds")
	failures = flag.Uint64("ledger.failures", 3, "after so many failures TestSeeds gives up")
	theseOpt = flag.String("ledger.options", "", "the options that TestSeeds runs, as a failure prints them")
)

// TestSeeds checks random programs over package qs under random faults: the outcomes that callers
// got match the handlers that ran.
func TestSeeds(t *testing.T) {
	if *oneSeed != 0 || *theseOpt != "" {
		o := drawOptions(*oneSeed)
		if *theseOpt != "" {
			require.NoError(t, json.Unmarshal([]byte(*theseOpt), &o))
		}
		w, err := play(o)
		t.Logf("%s", w.summary())
		require.NoError(t, err)
		return
	}
	begun := time.Now()
	var mu sync.Mutex
	total := NewAudit()
	broke := map[string]int{}
	var next, fails atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for fails.Load() < *failures {
				at := next.Add(1) - 1
				if at >= uint64(*seeds) {
					return
				}
				o := drawOptions(*fromSeed + at)
				w, err := play(o)
				mu.Lock()
				total.merge(w.audit)
				for k, n := range w.broke {
					broke[k] += n
				}
				mu.Unlock()
				if err == nil {
					continue
				}
				t.Errorf("seed %d (replay with: go test ./internal/ledger -run TestSeeds -ledger.seed=%d -v): %v", o.Seed, o.Seed, err)
				if fails.Add(1) == 1 {
					t.Log(shrunk(o, w))
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds in %v: %d calls, %d ran, %d ran again, %d of origins that were killed; %v; %v; withdraws %v; %v", *seeds, time.Since(begun).Round(time.Millisecond),
		total.Calls, total.Executed, total.Repeated, total.Cut, broke, total.Outcomes, total.Withdraws, total.Kinds)
	if *seeds < 60 || t.Failed() {
		return
	}
	require.Greater(t, total.Calls, 20**seeds)
	require.Greater(t, total.Executed, 10**seeds)
	for _, what := range []string{"success", CanceledOnPurpose, qs.ErrTimeout.Error(), qs.ErrPeerLost.Error()} {
		require.Positive(t, total.Outcomes[what], what)
	}
	for _, what := range []string{"withdrawn", "too-late"} {
		require.Positive(t, total.Withdraws[what], what)
	}
	for _, what := range []string{"kill", "stop", "end", "power"} {
		require.Positive(t, broke[what], what)
	}
	require.Positive(t, total.Repeated)
	require.Positive(t, total.Kinds["echo-all"])
}

// TestReplay checks that a seed replays the same run.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		a, _ := play(drawOptions(seed))
		b, _ := play(drawOptions(seed))
		require.Equal(t, a.Hash(), b.Hash(), "seed %d", seed)
	}
}

// summary is what happened to the calls about which something is wrong.
func (w *world) summary() string {
	text, _ := json.Marshal(w.audit)
	return fmt.Sprintf("%+v\n%s\nbroken: %v\n%s", w.options, text, w.broke, strings.Join(w.lines, "\n"))
}

// shrunk looks for a smaller case that fails, and returns how to replay it.
func shrunk(o options, w *world) string {
	end, kind := time.Now().Add(5*time.Second), w.kind()
	try := func(change func(o *options)) bool {
		next := o
		change(&next)
		for i := uint64(0); i < 16 && next != o && time.Now().Before(end); i++ {
			smaller := next
			smaller.Seed += i * 1_000_003
			if got, err := play(smaller); err != nil && got.kind() == kind {
				o, w = smaller, got
				return true
			}
		}
		return false
	}
	for again := true; again && time.Now().Before(end); {
		before := o
		for _, n := range []func(o *options) *int{
			func(o *options) *int { return &o.Origins }, func(o *options) *int { return &o.Callers }, func(o *options) *int { return &o.Breakers },
			func(o *options) *int { return &o.Rounds },
		} {
			for try(func(o *options) { *n(o) = max(1, *n(o)/2) }) {
			}
		}
		try(func(o *options) { o.Faults = noFaults })
		for d := Deeds(1); d < DeedsEnd; d <<= 1 {
			try(func(o *options) { o.Off |= d })
		}
		again = o != before
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("smaller: go test ./internal/ledger -run TestSeeds -ledger.options='%s' -v\n%s", text, w.summary())
}

// kind is what the first thing is that is wrong.
func (w *world) kind() string {
	if len(w.audit.First) == 0 {
		return "none"
	}
	text, _, _ := strings.Cut(numbers.ReplaceAllString(w.audit.First[0], "N"), ": hg:")
	return text
}
