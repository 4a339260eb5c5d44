package na

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// countWaits has a spinner wait n times for an event with the given delay, and counts the kinds of wait.
func countWaits(s *spinner, n int, comes time.Duration) (ways [2]int) {
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

// TestSpinnerPollsWhileAnswersArrive checks that the time that answers take does not decide how to
// wait for them, as long as they arrive while the leader polls.
func TestSpinnerPollsWhileAnswersArrive(t *testing.T) {
	s := testSpinner()
	require.Equal(t, 10_000, countWaits(&s, 10_000, 45*time.Microsecond)[awake])
}

func TestSpinnerStopsWithoutArrivals(t *testing.T) {
	s := testSpinner()
	require.Equal(t, spinMisses, countWaits(&s, 1000, time.Second)[awake], "an idle process does not spin")
	require.Equal(t, spinMisses, s.misses)
	s.learn(asleep, 10*time.Microsecond, true) // something arrived soon
	require.Equal(t, awake, s.choose(0), "it is worth a try again")

	never := spinner{procs: 2}
	require.Zero(t, countWaits(&never, 1000, 12*time.Microsecond)[awake], "Config.Spin is negative")
}

// TestSpinnerBetweenRareCalls checks that calls that arrive one each millisecond are not waited for
// by spinning.
func TestSpinnerBetweenRareCalls(t *testing.T) {
	s := testSpinner()
	require.LessOrEqual(t, countWaits(&s, 10_000, 990*time.Microsecond)[awake], spinMisses)
}

// countYields has a spinner yield n times, each time for the given time, with no arrival after it; it
// returns after how many the spinner stops.
func countYields(s *spinner, clock *time.Duration, n int, took time.Duration) int {
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

// TestSpinnerOnASharedProcessor checks that a leader polls on, and yields ever more rarely, on a
// processor that no other thread needs. One that others use between two answers is yielded, until
// most of that was of no use.
func TestSpinnerOnASharedProcessor(t *testing.T) {
	s := testSpinner()
	clock := time.Duration(1)
	require.Zero(t, countYields(&s, &clock, 1000, 200*time.Nanosecond))
	require.Equal(t, spinYields, s.yields)
	require.Equal(t, 33, countYields(&s, &clock, 1000, 5*time.Microsecond))
	require.Equal(t, spinYield, s.yields)
	require.Equal(t, asleep, s.choose(clock))
	require.Equal(t, awake, s.choose(clock+pauseFirst), "it tries again, by time")
}

// TestSpinnerBesideComputation checks a thread that computes and keeps the processor for its
// whole time slice: the first yield to it is one too many. The attempts are at longer and longer
// intervals, until polling has been of use for long.
func TestSpinnerBesideComputation(t *testing.T) {
	s := testSpinner()
	clock := time.Duration(1)
	var pauses []time.Duration
	for range 10 {
		s.yields = 0
		require.Equal(t, 1, countYields(&s, &clock, 100, 3*time.Millisecond))
		pauses = append(pauses, s.again-clock)
		clock = s.again
	}
	require.IsNonDecreasing(t, pauses)
	require.Equal(t, pauseLast, pauses[9])
	clock += time.Minute
	s.yields = 0
	require.Equal(t, 1, countYields(&s, &clock, 100, 3*time.Millisecond))
	require.Equal(t, pauseFirst, s.again-clock)
}

// TestIdleLeaderLooksOnce checks that an idle leader looks once when Progress begins, and then
// sleeps. A busy machine that interrupts a sleep makes it short, after which the leader tries once
// more whether to poll pays: so this may need some attempts.
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

// TestSpinnerRecordsOwnWaits checks that a leader that was to poll, and blocked because others
// poll, records nothing about polling.
func TestSpinnerRecordsOwnWaits(t *testing.T) {
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

// TestSpinnerFollowsProcessors checks that the number of processors may change while the process
// runs.
func TestSpinnerFollowsProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newSpinner(50 * time.Microsecond)
	require.Zero(t, countWaits(&s, 100, 8*time.Microsecond)[awake], "there is no other thread to run meanwhile")
	runtime.GOMAXPROCS(2)
	require.Positive(t, countWaits(&s, 2*spinProcs, 8*time.Microsecond)[awake])
}
