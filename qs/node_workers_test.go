package qs

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBlockedJobs: jobs that block get goroutines in a bounded time, also when they do not all stand still at once: of 400 callers
// whose jobs block for 1 ms each waits hardly longer than that, and the few goroutines that quick jobs share do not hold them up.
func TestBlockedJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers, each, blocked = 400, 50, time.Millisecond
		type job struct {
			given time.Time
			done  chan time.Duration
		}
		c := crew[job]{most: 1024}
		c.run = func(j job) {
			pause(blocked)
			j.done <- time.Since(j.given)
		}
		took := make(chan []time.Duration, callers)
		for i := range callers {
			go func() {
				pause(time.Duration(i) * 7 * time.Microsecond) // never all at once
				var all []time.Duration
				for range each {
					j := job{time.Now(), make(chan time.Duration, 1)}
					c.give(j, false)
					all = append(all, <-j.done)
				}
				took <- all
			}()
		}
		var all []time.Duration
		for range callers {
			all = append(all, <-took...)
		}
		slices.Sort(all)
		require.LessOrEqual(t, all[len(all)/2], 3*blocked/2, "half of the jobs")
		require.LessOrEqual(t, all[len(all)*95/100], 3*blocked)
		c.end()
		c.all.Wait()
	})
}

// TestQuickJobs: jobs that use a processor share a few goroutines, although some wait.
func TestQuickJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		c := crew[int]{most: 1024}
		c.run = func(int) {
			n := running.Add(1)
			for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
			}
			running.Add(-1)
		}
		for i := range 10_000 {
			c.give(i, false)
		}
		synctest.Wait()
		require.LessOrEqual(t, int(most.Load()), few())
		require.Equal(t, 0, len(c.queue)-c.first)
		c.end()
		c.all.Wait()
	})
}

// TestJobsThatAreOver: jobs that need not run any more leave the queue, however many come while all goroutines are blocked, and the others
// run in order.
func TestJobsThatAreOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var ran []int
		c := crew[int]{most: 1, over: func(i int) bool { return i%100 != 0 }}
		c.run = func(i int) {
			<-free
			ran = append(ran, i)
		}
		c.give(-1, false)
		var want []int
		longest := 0
		for i := range 100 * sweepFirst {
			c.give(i, false)
			longest = max(longest, len(c.queue))
			if i%100 == 0 {
				want = append(want, i)
			}
		}
		require.LessOrEqual(t, longest, 2*sweepFirst)
		close(free)
		synctest.Wait()
		ran = slices.DeleteFunc(ran, c.over) // of those that were in the queue in the end
		require.Equal(t, want, ran)
		c.end()
		c.all.Wait()
	})
}

// pause is how long a job blocks, and a caller comes late, in the time of the bubble.
func pause(d time.Duration) { <-time.NewTimer(d).C }
