package ledger

// Withdraw races with dispatch, a million times if need be: exactly one of the two wins.

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

var withdraws = flag.Int("sim.withdraws", long.Or(10_000, 50_000), "calls that TestWithdrawRaces takes back")

// racesPerSeed is how many calls of one world are withdrawn.
const racesPerSeed = 250

// TestWithdrawRaces (C-T11, C-T29, C-T6, C-T12): never withdrawn with the handler run, never too
// late with it not run, one callback each. A failure prints the seed; -sim.seed=N replays it.
func TestWithdrawRaces(t *testing.T) {
	if *oneSeed != 0 {
		s := drawRace(*oneSeed, racesPerSeed)
		err := s.run()
		t.Log(s.summary())
		if err != nil {
			_ = s.w.Dump(os.Stderr)
			t.Fatalf("seed %d: %v", *oneSeed, err)
		}
		return
	}
	total := runRaces(t, (*withdraws+racesPerSeed-1)/racesPerSeed, func(seed uint64) *race { return drawRace(seed, racesPerSeed) })
	if total.races < 10_000 {
		return
	}
	for name, n := range map[string]int{"one-way": total.oneWay, "large": total.large, "to itself": total.self, "canceled": total.canceled,
		"with a bound": total.bounded, "asked again": total.again, "indeterminate": total.results[hg.Indeterminate],
		"indeterminate and run": total.ran, "destroyed at their destination": int(total.far), "late answers": int(total.late),
		"waits for an envelope": int(total.stalls), "waits for MaxActive": total.full, "crashes": int(total.world.Crashes),
		"resets": int(total.world.Resets), "partitions": int(total.world.Partitions), "clogs": int(total.world.Clogs)} {
		require.Greater(t, n, 10, "%s: too rare", name)
	}
}

// TestWithdrawHalf (X-T2, as far as streams go: they lose nothing): half of all requests are
// withdrawn; each is either dispatched or withdrawn, and no credit is lost.
func TestWithdrawHalf(t *testing.T) {
	runRaces(t, 20, func(seed uint64) *race {
		return newRace(seed, raceOptions{races: racesPerSeed, envelopes: 4, plain: true})
	})
}

// TestRaceReplays checks that one seed of a race gives one trace.
func TestRaceReplays(t *testing.T) {
	seen := map[uint64]uint64{}
	for seed := range uint64(12) {
		var hashes [2]uint64
		for i := range hashes {
			s := drawRace(seed, 50)
			require.NoError(t, s.run())
			hashes[i] = s.w.Hash()
		}
		require.Equal(t, hashes[0], hashes[1], "seed %d", seed)
		require.NotContains(t, seen, hashes[0])
		seen[hashes[0]] = seed
	}
}

// runRaces runs worlds on all cores.
func runRaces(t *testing.T, n int, make func(seed uint64) *race) *raceCounts {
	t.Helper()
	var (
		mu    sync.Mutex
		total raceCounts
	)
	took := manySeeds(n, func(seed uint64) bool {
		s := make(seed)
		mu.Lock()
		before := total.races
		mu.Unlock()
		err := s.run()
		mu.Lock()
		total.add(s)
		mu.Unlock()
		if err != nil {
			t.Errorf("seed %d, after %d races (replay with: go test ./plugins/sim/ledger -run %s -sim.seed=%d): %v\n%s",
				seed, before, t.Name(), seed, err, s.summary())
		}
		return err == nil
	})
	t.Logf("seeds %d to %d in %v, %.1f µs for each race: %v", *fromSeed, *fromSeed+uint64(n)-1, took.Round(time.Millisecond),
		float64(took.Microseconds())/float64(max(total.races, 1)), &total)
	require.Greater(t, total.results[hg.Withdrawn], total.races/10, "the race is none: handlers win")
	require.Greater(t, total.results[hg.TooLate], total.races/10, "the race is none: withdraws win")
	return &total
}

// A raceCounts is how races ended.
type raceCounts struct {
	seeds, clean, calls, races int
	results                    [4]int // by WithdrawResult
	ran                        int    // of the indeterminate

	oneWay, large, self, canceled, bounded, again, full int
	far, late, stalls                                   int64

	virtual time.Duration
	world   sim.Stats
}

func (p *raceCounts) add(s *race) {
	p.seeds++
	if s.opts.isClean() {
		p.clean++
	}
	p.calls += len(s.calls)
	p.far += s.far
	p.late += s.late
	p.stalls += s.stalls
	p.full += s.full
	p.virtual += s.w.Now()
	st := s.w.Stats()
	p.world.Events += st.Events
	p.world.Resets += st.Resets
	p.world.Clogs += st.Clogs
	p.world.Partitions += st.Partitions
	p.world.Crashes += st.Crashes
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	for _, c := range s.calls {
		if len(c.asks) == 0 || c.asks[0].over || c.asks[0].reported == 0 {
			continue
		}
		p.races++
		p.results[c.asks[0].r]++
		count(&p.ran, c.asks[0].r == hg.Indeterminate && c.ran > 0)
		count(&p.oneWay, c.oneWay)
		count(&p.large, c.large)
		count(&p.self, c.to == c.by.i)
		count(&p.canceled, c.canceled)
		count(&p.bounded, c.bounded)
		count(&p.again, len(c.asks) > 1)
	}
}

func (p *raceCounts) String() string {
	of := func(n int) string { return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(max(p.races, 1))) }
	return fmt.Sprintf("races %d: withdrawn %s, too late %s, indeterminate %s, of these ran %d; "+
		"one-way %d, larger than a message %d, to itself %d, canceled %d, with a bound %d, asked again %d; "+
		"destroyed at their destination %d, waits for an envelope %d, times that MaxActive was reached %d, late answers %d; "+
		"worlds %d, without faults %d, calls %d, events %d, virtual %v, resets %d, clogs %d, partitions %d, crashes %d",
		p.races, of(p.results[hg.Withdrawn]), of(p.results[hg.TooLate]), of(p.results[hg.Indeterminate]), p.ran,
		p.oneWay, p.large, p.self, p.canceled, p.bounded, p.again,
		p.far, p.stalls, p.full, p.late,
		p.seeds, p.clean, p.calls, p.world.Events, p.virtual.Round(time.Millisecond), p.world.Resets, p.world.Clogs, p.world.Partitions, p.world.Crashes)
}
