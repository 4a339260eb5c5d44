package loop_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

// startStandIn has a goroutine stand in when there is no leader, until stop.
func startStandIn(l *loop.Loop) (times *atomic.Int32, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	times = new(atomic.Int32)
	var idle func()
	idle = func() {
		times.Add(1)
		go func() {
			if l.StandIn(ctx) == nil {
				l.OnIdle(idle)
			}
		}()
	}
	l.OnIdle(idle)
	return times, func() {
		l.OnIdle(nil)
		cancel()
		synctest.Wait()
	}
}

// TestStandIn checks that a goroutine stands in after a moment when there is no waiter, runs the
// callbacks, and continues.
func TestStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		times, stop := startStandIn(l)
		ran := make(chan time.Time, 1)
		f.post(func() { ran <- time.Now() })
		begun := time.Now()
		require.LessOrEqual(t, (<-ran).Sub(begun), 2*ms)
		pause(time.Second)
		f.post(func() { ran <- time.Now() })
		begun = time.Now()
		require.Zero(t, (<-ran).Sub(begun))
		require.EqualValues(t, 1, times.Load())
		stop()
		requireIdle(t, f, l)
	})
}

// TestStandInEndsForWaiter checks that a goroutine that waits while another one stands in is woken by
// it, and leads from then on; that one stands in again when there has been no leader for a moment,
// and not between two waits.
func TestStandInEndsForWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		times, stop := startStandIn(l)
		pause(10 * ms)
		require.EqualValues(t, 1, times.Load())
		w, end := startWaiter(l)
		f.post(w.End)
		require.NoError(t, <-end)
		for range 20 {
			w, end := startWaiter(l)
			pause(ms / 2)
			require.Zero(t, l.Parked(), "a waiter leads")
			f.post(w.End)
			require.NoError(t, <-end)
		}
		require.EqualValues(t, 1, times.Load())
		pause(10 * ms)
		w, end = startWaiter(l)
		require.Equal(t, 1, l.Parked(), "no waiter leads")
		f.post(w.End)
		require.NoError(t, <-end)
		stop()
		requireIdle(t, f, l)
	})
}

// TestStandInLeadsForMany checks that while many wait the goroutine that stands in leads.
func TestStandInLeadsForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		times, stop := startStandIn(l)
		var (
			all  []*loop.Waiter
			ends []chan error
		)
		for range 8 {
			w, end := startWaiter(l)
			all, ends = append(all, w), append(ends, end)
		}
		require.Equal(t, 7, l.Parked(), "one of them leads")
		f.post(all[0].End)
		require.NoError(t, <-ends[0])
		synctest.Wait()
		f.post(all[7].End) // which leads then
		require.NoError(t, <-ends[7])
		synctest.Wait()
		require.Equal(t, 6, l.Parked(), "none of them leads")
		require.EqualValues(t, 1, times.Load())
		for i := 1; i < 7; i++ {
			f.post(all[i].End)
			require.NoError(t, <-ends[i])
		}
		stop()
		requireIdle(t, f, l)
	})
}

// TestStandInForBlockedLeader checks that a goroutine stands in for a leader that is blocked in a
// callback.
func TestStandInForBlockedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		_, stop := startStandIn(l)
		w, end := startWaiter(l)
		hold, ran := make(chan struct{}), make(chan time.Time, 1)
		f.post(func() { <-hold })
		f.post(func() { ran <- time.Now() })
		begun := time.Now()
		require.LessOrEqual(t, (<-ran).Sub(begun), 3*ms)
		f.post(w.End)
		close(hold)
		require.NoError(t, <-end)
		stop()
		requireIdle(t, f, l)
	})
}

// TestRouse checks that Rouse has a goroutine stand in at once, if there is no leader.
func TestRouse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		times, stop := startStandIn(l)
		w, end := startWaiter(l)
		l.Rouse()
		require.Zero(t, times.Load())
		f.post(w.End)
		require.NoError(t, <-end)
		ran := make(chan time.Time, 1)
		f.post(func() { ran <- time.Now() })
		begun := time.Now()
		l.Rouse()
		require.Zero(t, (<-ran).Sub(begun))
		stop()
		requireIdle(t, f, l)
	})
}
