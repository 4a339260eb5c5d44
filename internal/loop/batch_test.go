package loop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCallbacksOfPassAreBatched checks that output of callbacks of one pass is held back while
// there are several, and is sent at its end when no goroutine is running.
func TestCallbacksOfPassAreBatched(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			f, l := newFakeDriver()
			w, end := startWaiter(l)
			held := 0
			f.mu.Lock()
			for range n - 1 {
				f.queue = append(f.queue, func() { held += int(f.holds.Load()) })
			}
			f.queue = append(f.queue, func() { held += int(f.holds.Load()); w.End() })
			f.mu.Unlock()
			f.Stir()
			require.NoError(t, <-end)
			require.Zero(t, f.holds.Load(), "it is still held back, and there is no leader")
			require.Equal(t, n > 1, held == n, "held back in %d of %d callbacks", held, n)
			requireIdle(t, f, l)
		})
	}
}

// TestWorkersAndWokenAreBatched checks that the leader waits for workers that callbacks have given
// work to, together with the goroutines that the pass has woken: their output leaves together, and
// slow ones delay nothing.
func TestWorkersAndWokenAreBatched(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, l := newFakeDriver()
			last, lastEnd := startWaiter(l)
			w, end := startWaiter(l)
			gate := make(chan struct{})
			held := make(chan int32, 2)
			f.mu.Lock()
			for range 2 {
				f.queue = append(f.queue, func() {
					n := l.Away()
					go func() {
						held <- f.holds.Load()
						if slow {
							<-gate
						}
						l.Home(n)
					}()
				})
			}
			f.queue = append(f.queue, w.End)
			f.mu.Unlock()
			f.Stir()
			require.NoError(t, <-end)
			require.EqualValues(t, 1, <-held)
			require.EqualValues(t, 1, <-held)
			pause(time.Millisecond)
			synctest.Wait()
			require.Zero(t, f.holds.Load())
			close(gate)
			f.post(last.End)
			require.NoError(t, <-lastEnd)
			requireIdle(t, f, l)
		})
	}
}

// TestLastWorkerSends checks that when no goroutine leads any more, the last of the workers sends
// the output.
func TestLastWorkerSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		w, end := startWaiter(l)
		var numbers []uint32
		f.mu.Lock()
		for range 2 {
			f.queue = append(f.queue, func() { numbers = append(numbers, l.Away()) })
		}
		f.queue = append(f.queue, w.End)
		f.mu.Unlock()
		f.Stir()
		require.NoError(t, <-end)
		l.Home(numbers[0])
		require.EqualValues(t, 1, f.holds.Load())
		l.Home(numbers[1])
		require.Zero(t, f.holds.Load())
		requireIdle(t, f, l)
	})
}

// TestWorkersAreSkippedAfterTimeout checks that after waits that time out fewer passes wait, and a
// wait that succeeds ends that.
func TestWorkersAreSkippedAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := newFakeDriver()
		pass := func(home bool) (waited bool) {
			begun := time.Now()
			n := l.BeginBatch()
			a, b := l.Away(), l.Away()
			if home && a != 0 {
				go func() { l.Home(a); l.Home(b) }()
			}
			l.EndBatch(n)
			synctest.Wait()
			return a != 0 && (home || time.Since(begun) > 0)
		}
		for _, rests := range []int{1, 3, 7, 15, 31, 31} {
			require.True(t, pass(false))
			for range rests {
				require.False(t, pass(false))
			}
		}
		require.True(t, pass(true))
		require.True(t, pass(false))
		require.False(t, pass(true), "it rests")
		require.True(t, pass(true))
	})
}

// TestConcurrentBatches checks that a goroutine that runs callbacks beside a batch of another one
// sends the output that is held back then, and leaves that batch alone.
func TestConcurrentBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		f.queue = append(f.queue, nil, nil)
		first := l.BeginBatch()
		second := l.BeginBatch()
		require.EqualValues(t, 1, f.holds.Load())
		l.EndBatch(second)
		require.EqualValues(t, 1, f.flushes.Load())
		require.EqualValues(t, 1, f.holds.Load())
		l.EndBatch(first)
		require.Zero(t, f.holds.Load())
	})
}
