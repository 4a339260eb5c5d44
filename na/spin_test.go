package na

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waits has a spinner wait n times for something that comes so late, and counts the ways.
func waits(s *spinner, n int, comes time.Duration) (ways [2]int) {
	for range n {
		way := s.choose(0)
		ways[way]++
		s.learn(way, comes, way == asleep || comes < s.limit)
	}
	return ways
}

func testSpinner() spinner {
	s := newSpinner(50 * time.Microsecond)
	s.procs = 2
	return s
}

// How long answers take says nothing of how to wait for them, as long as they come while the leader polls.
func TestSpinnerPollsWhileAnswersCome(t *testing.T) {
	s := testSpinner()
	require.Equal(t, 10_000, waits(&s, 10_000, 45*time.Microsecond)[awake])
}

func TestSpinnerGivesUpWhenNothingComes(t *testing.T) {
	s := testSpinner()
	require.Equal(t, spinMisses, waits(&s, 1000, time.Second)[awake], "an idle process does not spin")
	require.Equal(t, spinMisses, s.misses)
	s.learn(asleep, 10*time.Microsecond, true) // something came soon
	require.Equal(t, awake, s.choose(0), "it is worth a try again")

	never := spinner{procs: 2}
	require.Zero(t, waits(&never, 1000, 12*time.Microsecond)[awake], "Config.Spin is negative")
}

// Calls that come one each millisecond are not waited for by spinning.
func TestSpinnerBetweenRareCalls(t *testing.T) {
	s := testSpinner()
	require.LessOrEqual(t, waits(&s, 10_000, 990*time.Microsecond)[awake], spinMisses)
}

// yielding has a spinner yield n times, each time for so long, and nothing come after it; it returns after how many it gives up.
func yielding(s *spinner, clock *time.Duration, n int, took time.Duration) int {
	s.give = func() { *clock += took }
	now := func() time.Duration { return *clock }
	for i := range n {
		s.since = s.yields
		if took := s.yield(now); took > 0 && s.yielded(*clock, took) {
			return i + 1
		}
	}
	return 0
}

// A processor that nobody needs is polled on, and given away ever more rarely. One that others use between two answers is given to
// them, until most of that was of no use.
func TestSpinnerOnASharedProcessor(t *testing.T) {
	s := testSpinner()
	clock := time.Duration(1)
	require.Zero(t, yielding(&s, &clock, 1000, 200*time.Nanosecond))
	require.Equal(t, spinYields, s.yields)
	require.Equal(t, 33, yielding(&s, &clock, 1000, 5*time.Microsecond))
	require.Equal(t, spinYield, s.yields)
	require.Equal(t, asleep, s.choose(clock))
	require.Equal(t, awake, s.choose(clock+pauseFirst), "it tries again, by time")
}

// Somebody who computes has the processor for as long as he may: the first time that he is let run is one too many. The tries come at
// longer and longer intervals, until polling has been of use for long.
func TestSpinnerBesideOneWhoComputes(t *testing.T) {
	s := testSpinner()
	clock := time.Duration(1)
	var pauses []time.Duration
	for range 10 {
		s.yields = 0
		require.Equal(t, 1, yielding(&s, &clock, 100, 3*time.Millisecond))
		pauses = append(pauses, s.again-clock)
		clock = s.again
	}
	require.IsNonDecreasing(t, pauses)
	require.Equal(t, pauseLast, pauses[9])
	clock += time.Minute
	s.yields = 0
	require.Equal(t, 1, yielding(&s, &clock, 100, 3*time.Millisecond))
	require.Equal(t, pauseFirst, s.again-clock)
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
	c, f := newFake(t, Config{})
	c.spinner.procs = 2
	spinning.Add(1) // another context of the process
	defer spinning.Add(-1)
	done := make(chan struct{}, 1)
	for range 8 {
		op := c.NewOp(func(*Op, Result) { done <- struct{}{} })
		require.NoError(t, c.RecvUnexpected(op))
		go func() {
			for !c.isAsleep() {
				runtime.Gosched()
			}
			f.end(op, Result{})
		}()
		require.NoError(t, c.Progress(-1))
		c.Trigger(0)
		<-done
	}
	require.Zero(t, c.spinner.misses)
	require.Equal(t, awake, c.spinner.choose(c.Now()), "it is still worth a try")
}

// The number of processors may change while the process runs.
func TestSpinnerFollowsProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newSpinner(50 * time.Microsecond)
	require.Zero(t, waits(&s, 100, 8*time.Microsecond)[awake], "there is nobody to run meanwhile")
	runtime.GOMAXPROCS(2)
	require.Positive(t, waits(&s, 2*spinProcs, 8*time.Microsecond)[awake])
}
