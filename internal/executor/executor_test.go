package executor

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBlockedJobs checks that jobs that block get goroutines in a bounded time, also when they do
// not all block at once: of 400 callers whose jobs block for 1 ms each waits little longer than
// that, and the few goroutines that quick jobs share do not delay them.
func TestBlockedJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers, each, blocked = 400, 50, time.Millisecond
		type job struct {
			given time.Time
			done  chan time.Duration
		}
		var all sync.WaitGroup
		e := New(Options[job]{Go: all.Go, MaxRunning: 1024, Run: func(j job) {
			pause(blocked)
			j.done <- time.Since(j.given)
		}})
		took := make(chan []time.Duration, callers)
		for i := range callers {
			go func() {
				pause(time.Duration(i) * 7 * time.Microsecond) // never all at once
				var lasted []time.Duration
				for range each {
					j := job{time.Now(), make(chan time.Duration, 1)}
					e.Give(j)
					lasted = append(lasted, <-j.done)
				}
				took <- lasted
			}()
		}
		var lasted []time.Duration
		for range callers {
			lasted = append(lasted, <-took...)
		}
		slices.Sort(lasted)
		require.LessOrEqual(t, lasted[len(lasted)/2], 3*blocked/2, "half of the jobs")
		require.LessOrEqual(t, lasted[len(lasted)*95/100], 3*blocked)
		e.End()
		all.Wait()
	})
}

// TestQuickJobs checks that jobs that use a processor share a few goroutines, although some wait.
func TestQuickJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			all           sync.WaitGroup
			running, most atomic.Int64
		)
		e := New(Options[int]{Go: all.Go, MaxRunning: 1024, Run: func(int) {
			n := running.Add(1)
			for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
			}
			running.Add(-1)
		}})
		for i := range 10_000 {
			e.Give(i)
		}
		synctest.Wait()
		require.LessOrEqual(t, int(most.Load()), shared())
		require.Zero(t, e.waiting())
		e.End()
		all.Wait()
	})
}

// TestEndedJobsLeaveQueue checks that jobs that need not run any more leave the queue, however many
// arrive while all goroutines are blocked, and the others run in order.
func TestEndedJobsLeaveQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var (
			all sync.WaitGroup
			ran []int
		)
		isOver := func(i int) bool { return i%100 != 0 }
		e := New(Options[int]{Go: all.Go, MaxRunning: 1, IsOver: isOver, Run: func(i int) {
			<-free
			ran = append(ran, i)
		}})
		e.Give(-1)
		var want []int
		longest := 0
		for i := range 100 * minSweep {
			e.Give(i)
			longest = max(longest, len(e.queue))
			if i%100 == 0 {
				want = append(want, i)
			}
		}
		require.LessOrEqual(t, longest, 2*minSweep)
		requireCounted(t, e)
		close(free)
		synctest.Wait()
		requireCounted(t, e)
		ran = slices.DeleteFunc(ran, isOver) // of those that were in the queue in the end
		require.Equal(t, want, ran)
		e.End()
		all.Wait()
	})
}

// requireCounted checks that the counts of e describe its queue, also after jobs have been removed
// from it: otherwise each check would find that a job has waited, and add a goroutine.
func requireCounted(t *testing.T, e *Executor[int]) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Equal(t, e.waiting(), e.queued-e.taken)
	require.LessOrEqual(t, e.lastCheck.queued-e.taken, e.waiting())
}

// pause is how long a job blocks, and a caller is late, in the time of the bubble.
func pause(d time.Duration) {
	if d > 0 {
		<-time.NewTimer(d).C
	}
}
