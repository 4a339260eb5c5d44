package loop_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
)

const ms = time.Millisecond

// fakeDriver is a Driver without a network: callbacks are posted by the test.
type fakeDriver struct {
	start time.Time
	kick  chan struct{}

	mu    sync.Mutex
	queue []func()

	holds, flushes, polls atomic.Int32
}

func newFakeDriver() (*fakeDriver, *loop.Loop) {
	f := &fakeDriver{start: time.Now(), kick: make(chan struct{}, 1)}
	return f, loop.New(f, loop.Lend)
}

func (f *fakeDriver) Now() time.Duration { return time.Since(f.start) }

func (f *fakeDriver) Stir() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *fakeDriver) post(cb func()) {
	f.mu.Lock()
	f.queue = append(f.queue, cb)
	f.mu.Unlock()
	f.Stir()
}

func (f *fakeDriver) Queued() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

func (f *fakeDriver) Poll(w *loop.Waiter, _, until time.Duration) (read time.Duration, err error) {
	if f.polls.Add(1) > 1 {
		panic("two goroutines are in Poll")
	}
	defer f.polls.Add(-1)
	if !w.Stirred() {
		w.WillSleep()
	}
	var over <-chan time.Time
	if until != loop.Never {
		timer := time.NewTimer(until - f.Now())
		defer timer.Stop()
		over = timer.C
	}
	for !w.Stirred() {
		select {
		case <-f.kick:
		case <-over:
			return f.Now(), os.ErrDeadlineExceeded
		}
	}
	return f.Now(), nil
}

// runner is a Runner that is a function.
type runner func(p loop.Pass)

func (r runner) RunPass(p loop.Pass) { r(p) }

func (f *fakeDriver) Run(w *loop.Waiter, max int) (ran int) {
	for stopped := false; ran < max && !stopped; ran++ {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.mu.Unlock()
			break
		}
		cb := f.queue[0]
		f.queue = f.queue[1:]
		f.mu.Unlock()
		cb()
		stopped = w.Stops()
	}
	return ran
}

func (f *fakeDriver) Hold() bool { f.holds.Add(1); return true }
func (f *fakeDriver) Unhold()    { f.holds.Add(-1) }
func (f *fakeDriver) Freed()     {}
func (f *fakeDriver) Flush()     { f.flushes.Add(1) }

// pause lets time of the bubble pass.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// startWaiter starts a goroutine that waits for a Waiter of its own, and lets it park or take the lead.
func startWaiter(t *loop.Loop) (w *loop.Waiter, result chan error) {
	w, result = t.NewWaiter(), make(chan error, 1)
	go func() { result <- w.Wait(context.Background()) }()
	synctest.Wait()
	return w, result
}

// requireIdle requires that no goroutine waits and no output is held back.
func requireIdle(t *testing.T, f *fakeDriver, l *loop.Loop) {
	t.Helper()
	pause(10 * ms) // the watch may still be on
	synctest.Wait()
	require.True(t, l.Quiet())
	require.Zero(t, f.holds.Load(), "holds")
}

// TestPass checks that all callbacks of a pass run before goroutines are woken, and the leader
// keeps the lead.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		leader, led := startWaiter(l)
		var ends []chan error
		ran := 0
		f.mu.Lock()
		for range 20 {
			w, end := startWaiter(l)
			ends = append(ends, end)
			f.queue = append(f.queue, func() {
				ran++
				w.End()
				for _, e := range ends {
					require.Empty(t, e, "a waiter was woken in the middle of the pass")
				}
			})
		}
		f.mu.Unlock()
		f.Stir()
		synctest.Wait()
		require.Equal(t, 20, ran)
		for _, e := range ends {
			require.NoError(t, <-e)
		}
		require.Empty(t, led)
		f.post(leader.End)
		require.NoError(t, <-led)
		requireIdle(t, f, l)
	})
}

// TestLongCallbackLosesTheLead checks that a callback that takes long loses the lead: another
// goroutine drives meanwhile, and ends.
func TestLongCallbackLosesTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		first, firstEnd := startWaiter(l)
		second, secondEnd := startWaiter(l)
		third, thirdEnd := startWaiter(l)
		hold := make(chan struct{})
		f.post(func() { <-hold; first.End() })
		f.post(second.End)
		begun := time.Now()
		require.NoError(t, <-secondEnd)
		require.Less(t, time.Since(begun), 5*ms)
		third.End() // from outside, while the first is in its callback
		require.NoError(t, <-thirdEnd)
		require.Less(t, time.Since(begun), 10*ms)
		require.Empty(t, firstEnd)
		close(hold)
		require.NoError(t, <-firstEnd)
		requireIdle(t, f, l)
	})
}

// TestWaitInsideCallback checks that a Wait inside a callback takes the lead over: it would block
// for ever otherwise.
func TestWaitInsideCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		outer, outerEnd := startWaiter(l)
		other, otherEnd := startWaiter(l)
		f.post(func() {
			inner := l.NewWaiter()
			f.post(inner.End)
			begun := time.Now()
			require.NoError(t, inner.Wait(context.Background()))
			require.Zero(t, time.Since(begun), "it has waited for the watch")
			outer.End()
		})
		require.NoError(t, <-outerEnd)
		f.post(other.End)
		require.NoError(t, <-otherEnd)
		requireIdle(t, f, l)
	})
}

// TestCallbackPanicsInAPass checks that a panic in a callback, or the end of its goroutine, passes
// through the Wait of the leader. The others continue, those whose callbacks had run before it too,
// and nothing stays held back.
func TestCallbackPanicsInAPass(t *testing.T) {
	for _, end := range []func(){func() { panic("ouch") }, runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			f, l := newFakeDriver()
			gone := make(chan any, 1)
			go func() {
				defer func() { gone <- recover() }()
				_ = l.NewWaiter().Wait(context.Background())
			}()
			synctest.Wait()
			var ends []chan error
			f.mu.Lock()
			for i := range 8 {
				w, e := startWaiter(l)
				ends = append(ends, e)
				f.queue = append(f.queue, w.End)
				if i == 4 {
					f.queue = append(f.queue, end)
				}
			}
			f.mu.Unlock()
			f.Stir()
			<-gone
			for _, e := range ends {
				require.NoError(t, <-e)
			}
			requireIdle(t, f, l)
		})
	}
}

// TestDrainBatch checks that the output of woken goroutines is held back until they wait again; one
// that does not wait again holds nothing back for long.
func TestDrainBatch(t *testing.T) {
	for _, home := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, l := newFakeDriver()
			last, lastEnd := startWaiter(l)
			const n = 16
			var held atomic.Int32
			next := make([]*loop.Waiter, n)
			var all sync.WaitGroup
			f.mu.Lock()
			for i := range n {
				w := l.NewWaiter()
				next[i] = l.NewWaiter()
				all.Go(func() {
					_ = w.Wait(context.Background())
					held.Add(f.holds.Load())
					if home {
						_ = next[i].Wait(context.Background())
					}
				})
				f.queue = append(f.queue, w.End)
			}
			f.mu.Unlock()
			synctest.Wait()
			f.Stir()
			synctest.Wait()
			pause(ms)
			synctest.Wait()
			require.Positive(t, held.Load(), "nothing was held back while they sent")
			require.Zero(t, f.holds.Load(), "it is still held back")
			if home {
				require.Positive(t, f.flushes.Load(), "the first half leaves before the second")
				for _, w := range next {
					f.post(w.End)
				}
			}
			all.Wait()
			f.post(last.End)
			require.NoError(t, <-lastEnd)
			requireIdle(t, f, l)
		})
	}
}

// TestConditionPanics checks that a condition that panics does so in the Wait that it belongs to,
// wherever it is looked at, and the others continue.
func TestConditionPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		var bad atomic.Bool
		done := func() bool {
			if bad.Load() {
				panic("ouch")
			}
			return false
		}
		var gone [2]chan any
		for i := range gone { // one leads, one sleeps
			gone[i] = make(chan any, 1)
			go func() {
				defer func() { gone[i] <- recover() }()
				_ = l.Wait(context.Background(), -1, done)
			}()
			synctest.Wait()
		}
		w, end := startWaiter(l)
		bad.Store(true)
		l.Wake()
		require.Equal(t, "ouch", <-gone[0])
		l.Wake()
		require.Equal(t, "ouch", <-gone[1])
		f.post(w.End)
		require.NoError(t, <-end)
		requireIdle(t, f, l)
	})
}

// TestWakeAndLimits checks that Wake makes all waiters check their conditions, also in the middle
// of a pass, and a Wait ends with its context and at its timeout.
func TestWakeAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		leader, led := startWaiter(l)
		var over atomic.Bool
		ends := make(chan error, 4)
		for range 4 {
			go func() { ends <- l.Wait(context.Background(), -1, over.Load) }()
		}
		synctest.Wait()
		f.post(func() { over.Store(true); l.Wake() })
		for range 4 {
			require.NoError(t, <-ends)
		}
		begun := time.Now()
		require.ErrorIs(t, l.Wait(context.Background(), 7*ms, func() bool { return false }), os.ErrDeadlineExceeded)
		require.Equal(t, 7*ms, time.Since(begun))
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, -1, func() bool { return false }), context.DeadlineExceeded)
		require.Equal(t, 10*ms, time.Since(begun))
		require.Empty(t, led)
		f.post(leader.End)
		require.NoError(t, <-led)
		requireIdle(t, f, l)
	})
}

// TestNothingHeldBackWithoutALeader checks that when all woken goroutines have ended and none
// leads, no output stays held back.
func TestNothingHeldBackWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		var ends []chan error
		var queue []func()
		for range 4 {
			w, end := startWaiter(l)
			ends = append(ends, end)
			queue = append(queue, w.End)
		}
		f.mu.Lock()
		f.queue = queue
		f.mu.Unlock()
		f.Stir()
		for _, end := range ends {
			require.NoError(t, <-end)
		}
		require.Positive(t, f.holds.Load())
		requireIdle(t, f, l)
	})
}

// TestContextCostsNothing checks that a cancelable context needs no goroutine while none sleeps:
// each waiter checks it itself.
func TestContextCostsNothing(t *testing.T) {
	f, l := newFakeDriver()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := l.NewWaiter()
	ends := []func(){w.End}
	allocs := testing.AllocsPerRun(100, func() {
		w.Reset()
		f.queue = ends // so its Progress does not sleep
		if err := w.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, allocs)
}

// TestContextEnds checks that the end of its context ends the wait of the leader, blocked in
// Progress, and of a parked goroutine.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		why := errors.New("enough")
		var results []chan error
		var cancels []context.CancelCauseFunc
		for range 3 {
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error, 1)
			go func() { result <- l.NewWaiter().Wait(ctx) }()
			synctest.Wait()
			results, cancels = append(results, result), append(cancels, cancel)
		}
		for _, i := range []int{0, 2, 1} { // the leader, a sleeper, and the leader that follows it
			cancels[i](why)
			synctest.Wait()
			require.Equal(t, why, <-results[i])
		}
		requireIdle(t, f, l)
	})
}
