package na

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waits has a spinner wait n times in a world where a wait takes so long either way, and counts the ways.
func waits(s *spinner, n int, costAsleep, costAwake time.Duration) (ways [2]int) {
	for range n {
		way := s.choose()
		ways[way]++
		s.learn(way, [2]time.Duration{costAsleep, costAwake}[way])
	}
	return ways
}

func testSpinner() spinner {
	return spinner{limit: 50 * time.Microsecond, procs: 2, best: awake, gap: spinGapFirst, turns: spinGapFirst}
}

func TestSpinnerTakesTheBetterWay(t *testing.T) {
	s := testSpinner()
	ways := waits(&s, 10_000, 12*time.Microsecond, 8*time.Microsecond)
	require.Less(t, ways[asleep], 100, "spinning is better: sleep is tried now and then only")
	require.Positive(t, ways[asleep])

	ways = waits(&s, 10_000, 20*time.Microsecond, 45*time.Microsecond) // the machine has become busy
	require.Less(t, ways[awake], 200)
	require.Positive(t, ways[awake])

	ways = waits(&s, 20_000, 12*time.Microsecond, 8*time.Microsecond) // and quiet again
	require.Greater(t, ways[awake], 10_000)
}

func TestSpinnerGivesUpWhenNothingComes(t *testing.T) {
	s := testSpinner()
	require.Equal(t, spinMisses, waits(&s, 1000, time.Second, time.Second)[awake], "an idle process does not spin")
	require.Equal(t, spinMisses, s.misses)
	s.learn(asleep, 10*time.Microsecond) // something came soon
	require.Equal(t, awake, s.choose(), "it is worth a try again")

	never := spinner{procs: 2}
	require.Zero(t, waits(&never, 1000, 12, 8)[awake], "Config.Spin is negative")
}

// Calls that come one each millisecond are not waited for by spinning.
func TestSpinnerBetweenRareCalls(t *testing.T) {
	s := testSpinner()
	require.LessOrEqual(t, waits(&s, 10_000, 990*time.Microsecond, 990*time.Microsecond)[awake], spinMisses)
}

// An idle leader looks once when Progress begins, and then sleeps. A busy machine that interrupts a sleep makes it short,
// after which the leader tries once more whether to poll pays: so this may need some attempts.
func TestIdleLeaderLooksOnce(t *testing.T) {
	c, _ := newFake(t, Config{})
	const rounds = 20
	looks := uint(0)
	for range 20 {
		for range spinMisses + 1 {
			_ = c.Progress(time.Millisecond)
		}
		before := c.spinner.looks
		for range rounds {
			_ = c.Progress(time.Millisecond)
		}
		if looks = c.spinner.looks - before; looks <= rounds {
			return
		}
	}
	require.FailNow(t, "the leader looks again and again", "%d times in %d calls of Progress", looks, rounds)
}

// A leader that was to poll, and could not because others do, slept: it learns nothing about polling from that.
func TestSpinnerLearnsWhatItDid(t *testing.T) {
	c, e := newFake(t, Config{})
	c.spinner.procs = 2
	spinning.Add(1) // another context of the process
	defer spinning.Add(-1)
	done := make(chan struct{}, 1)
	for range spinGapFirst / 2 {
		op := c.NewOp(func(*Op, Result) { done <- struct{}{} })
		require.NoError(t, c.RecvUnexpected(op))
		go func() {
			for !c.asleep() {
				runtime.Gosched()
			}
			e.ticket(op).Finish(Result{})
		}()
		require.NoError(t, c.Progress(-1))
		c.Trigger(0)
		<-done
	}
	require.Zero(t, c.spinner.cost[awake])
	require.Zero(t, c.spinner.misses)
	require.Positive(t, c.spinner.cost[asleep])
	require.Equal(t, awake, c.spinner.choose(), "it is still worth a try")
}

// The number of processors may change while the process runs.
func TestSpinnerFollowsProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newSpinner(50 * time.Microsecond)
	require.Zero(t, waits(&s, 100, 12*time.Microsecond, 8*time.Microsecond)[awake], "there is nobody to run meanwhile")
	runtime.GOMAXPROCS(2)
	require.Positive(t, waits(&s, 2*spinProcs, 12*time.Microsecond, 8*time.Microsecond)[awake])
}
