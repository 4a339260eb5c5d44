package ledger

// Random programs of several nodes under random faults, over the whole stack: hg and bulk on na on
// simulated streams. At the end a ledger is audited for broken promises.

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

var (
	seeds    = flag.Int("sim.seeds", 100, "seeds that TestSeeds runs")
	oneSeed  = flag.Uint64("sim.seed", 0, "the one seed that TestSeeds runs, with a trace; 0 runs many")
	fromSeed = flag.Uint64("sim.from", 1, "the first seed that TestSeeds runs")
	reportTo = flag.String("sim.report", "", "a file to which TestSeeds appends its report, one line of JSON")
)

// TestSeeds runs many seeds on all cores. A failure prints the seed; -sim.seed=N replays it.
func TestSeeds(t *testing.T) {
	if *oneSeed != 0 {
		s, strain, err := runSeed(*oneSeed)
		t.Logf("%s", s.summary())
		switch {
		case s.failed != nil:
			_ = s.w.Dump(os.Stderr)
			t.Log(shrunkText(s))
		case err != nil:
			_ = strain.Dump(os.Stderr)
		}
		require.NoError(t, err, "seed %d", *oneSeed)
		return
	}
	var (
		mu       sync.Mutex
		total    totals
		failures int
	)
	steps := countSteps()
	n := *seeds
	if raceflag.Enabled { // a seed is one goroutine at a time: there is little to find
		n = min(n, 80)
	}
	took := manySeeds(n, func(seed uint64) bool {
		s, strain, err := runSeed(seed)
		replay, same := seed%100 == 0 && err == nil, true
		if replay {
			s2, strain2, _ := runSeed(seed)
			same = s.w.Hash() == s2.w.Hash() && strain.Hash() == strain2.Hash()
		}
		mu.Lock()
		defer mu.Unlock()
		total.add(s)
		if replay {
			total.replayed++
		}
		if !same {
			total.mismatches++
			t.Errorf("seed %d: two runs differ", seed)
		}
		if err != nil {
			t.Errorf("seed %d (replay with: go test ./plugins/sim/ledger -run TestSeeds -sim.seed=%d): %v\n%s", seed, seed, err, s.summary())
			if failures++; failures == 1 && s.failed != nil {
				t.Log(shrunkText(s))
			}
		}
		return err == nil
	})
	line := total.report()
	text := ""
	line.StepsTaken, line.StepsLegal, text = steps.stepsSince()
	t.Logf("%d seeds in %v, at least %d operations in each\n%v\n%s", n, took.Round(time.Millisecond), total.leastOps, line, text)
	if *reportTo != "" {
		require.NoError(t, line.write(*reportTo))
	}
	require.GreaterOrEqual(t, total.leastOps, int64(200), "operations of the seed with the fewest")
	if n >= 200 {
		var heap runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&heap)
		require.Less(t, heap.HeapAlloc>>20, uint64(150), "MiB that are in use after the seeds: something keeps worlds that have ended in memory")
		for _, kind := range []string{"ok", "canceled", "lost", "unreachable", "remote", "timeout", "revoked", "withdrawn", "too late", "indeterminate",
			"response ok", "response canceled", "response lost"} {
			require.Positive(t, total.outcomes[kind], "no operation ended with %q", kind)
		}
		require.Positive(t, total.late, "no late answer was dropped")
		require.GreaterOrEqual(t, line.StepsTaken*100, 95*line.StepsLegal, text)
		for what, n := range line.Faults {
			require.Positive(t, n, "no %s happened", what)
		}
		for what, n := range line.Reach {
			require.Positive(t, n, "no seed reached %q", what)
		}
	}
}

// runSeed is a scenario and, if that keeps its promises, a strain.
func runSeed(seed uint64) (*scenario, *sim.World, error) {
	s := newScenario(seed)
	if err := s.run(); err != nil {
		s.failed = err
		return s, nil, err
	}
	strain, err := runStress(seed)
	return s, strain, err
}

// manySeeds runs n seeds on all cores, until some have failed, and returns how long that took.
func manySeeds(n int, run func(seed uint64) (ok bool)) time.Duration {
	begun := time.Now()
	most := uint64(5)
	var next, fails atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for fails.Load() < most {
				at := next.Add(1) - 1
				if at >= uint64(n) {
					return
				}
				if !run(*fromSeed + at) {
					fails.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

// TestReplay checks that one seed gives one trace: in two runs, in processes with one and two
// threads, and with the race detector; another seed gives another. The constants change only when
// the protocol, the simulator or the scenario does.
func TestReplay(t *testing.T) {
	if list := os.Getenv("QUICKSILVER_SIM_REPLAY"); list != "" {
		for _, f := range strings.Fields(list) {
			var seed uint64
			_, err := fmt.Sscan(f, &seed)
			require.NoError(t, err)
			s := newScenario(seed)
			require.NoError(t, s.run())
			fmt.Printf("replay %d %016x\n", seed, s.w.Hash())
		}
		return
	}
	list := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	hashes := map[uint64]string{}
	var want strings.Builder
	for _, seed := range list {
		s := newScenario(seed)
		require.NoError(t, s.run())
		h := fmt.Sprintf("%016x", s.w.Hash())
		for other, same := range hashes {
			require.NotEqual(t, same, h, "seeds %d and %d", other, seed)
		}
		hashes[seed] = h
		fmt.Fprintf(&want, "replay %d %s\n", seed, h)
		again := newScenario(seed)
		require.NoError(t, again.run())
		require.Equal(t, h, fmt.Sprintf("%016x", again.w.Hash()), "second run of seed %d", seed)
	}
	for _, procs := range []string{"1", "2"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplay$")
		cmd.Env = append(os.Environ(), "GOMAXPROCS="+procs, "QUICKSILVER_SIM_REPLAY="+strings.Trim(fmt.Sprint(list), "[]"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		var got strings.Builder
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "replay ") {
				got.WriteString(line)
			}
		}
		require.Equal(t, want.String(), got.String(), "GOMAXPROCS=%s", procs)
	}
	golden, err := os.ReadFile("testdata/replay.txt")
	if os.Getenv("QUICKSILVER_UPDATE") != "" {
		require.NoError(t, os.WriteFile("testdata/replay.txt", []byte(want.String()), 0o644))
		return
	}
	require.NoError(t, err)
	require.Equal(t, string(golden), want.String(), "the trace has changed; if it was meant to, run with QUICKSILVER_UPDATE=1")
}

// newRand is the scenario's own stream of randomness, apart from the world's.
func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x5eed_0000+stream)) }
