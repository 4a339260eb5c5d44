package request_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	errCanceled = errors.New("operation canceled")
	errBroken   = errors.New("broken")
	errMaster   = errors.New("because the master said so")
)

func TestWaitReturnsAtTheCompletion(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		for _, timeout := range []time.Duration{-1, 31 * ms, time.Hour, 1<<63 - 1} {
			start := w.now()
			r := c.Create(nil)
			w.after(30*ms, func() { r.Complete(errBroken) })
			assert.False(t, r.Completed())
			assert.NoError(t, r.Err())
			assert.True(t, r.Wait(timeout), "timeout %v", timeout)
			assert.Equal(t, 30*ms, w.now()-start, "timeout %v", timeout)
			assert.True(t, r.Completed())
			assert.Equal(t, errBroken, r.Err())
		}
	})
}

func TestWaitTimesOutExactly(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(func() { t.Error("Wait must not cancel") })
		for _, timeout := range []time.Duration{0, 1, 5 * ms, 100 * ms, 101 * ms, 3 * time.Minute} {
			start := w.now()
			assert.False(t, r.Wait(timeout), "timeout %v", timeout)
			assert.Equal(t, timeout, w.now()-start)
		}
	})
}

func TestWaitOnCompletedCallsNothing(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		r.Complete(nil)
		w.post(func() { t.Error("callback has run") })
		assert.True(t, r.Wait(0))
		assert.True(t, r.Wait(-1))
		assert.NoError(t, r.WaitContext(t.Context()))
		assert.Empty(t, w.calls(), "calls of Progress")
	})
}

func TestWaitLeavesTheRestQueued(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r, next := c.Create(nil), c.Create(nil)
		w.after(ms, completeFunc(r))
		w.after(ms, completeFunc(next))
		assert.True(t, r.Wait(-1))
		assert.False(t, next.Completed(), "r need not wait for the callback behind its own")
		assert.True(t, next.Wait(0))
	})
}

func TestWaitZeroPollsOnce(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		assert.False(t, r.Wait(0))
		assert.Equal(t, []time.Duration{0}, w.calls())

		w.after(0, func() { r.Complete(nil) }) // only Progress finds it
		assert.True(t, r.Wait(0))
		assert.Equal(t, []time.Duration{0}, w.calls())

		r.Reset(nil)
		for range 3000 { // a long queue is no reason to miss what is in it
			w.post(func() {})
		}
		w.post(func() { r.Complete(nil) })
		assert.True(t, r.Wait(0))
		assert.Empty(t, w.calls(), "it was queued already")
	})
}

func TestTinyTimeoutsMakeProgress(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		busy := func() { pause(ms) } // each Wait is late before it has got anywhere
		w.after(3*ms, func() { r.Complete(nil) })
		rounds := 0
		for ; !r.Wait(time.Nanosecond); rounds++ {
			w.post(busy)
			require.Less(t, rounds, 10)
		}
	})
}

func TestEndlessCallbacksDoNotDelayWait(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		stop := false
		var again func()
		again = func() {
			if !stop {
				w.post(again)
			}
		}
		w.post(again)
		assert.False(t, r.Wait(0), "a poll ends")

		w.after(0, func() { r.Complete(nil) }) // needs Progress, though the queue is never empty
		assert.True(t, r.Wait(-1), "bytes continue to move")

		r.Reset(nil)
		stop = true
		assert.False(t, r.Wait(0))
		stop = false
		again = func() {
			pause(ms)
			if !stop {
				w.post(again)
			}
		}
		w.post(again)
		start := w.now()
		assert.False(t, r.Wait(10*ms))
		assert.LessOrEqual(t, w.now()-start, 11*ms, "slow callbacks: late by one of them at most")
		stop = true
		assert.False(t, r.Wait(0))
	})
}

// TestWaitAfterCancel checks the sequence that request emulation is for: time out, cancel, wait for
// the callback, use the request again.
func TestWaitAfterCancel(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		assert.False(t, r.Wait(10*ms))
		w.post(func() { r.Complete(errCanceled) })
		assert.True(t, r.Wait(-1))
		assert.Equal(t, 10*ms, w.now(), "cancellation is local")
		assert.Equal(t, errCanceled, r.Err())

		r.SetData("kept")
		r.Reset(nil)
		assert.False(t, r.Completed())
		assert.NoError(t, r.Err())
		assert.Equal(t, "kept", r.Data())
		w.after(ms, func() { r.Complete(nil) })
		assert.True(t, r.Wait(-1))
		assert.NoError(t, r.Err())
	})
}

// TestForwardFailed checks that after a Forward that has returned an error, and so has no callback,
// the request can be used for the next attempt, and one that was dropped next to it has no effect.
func TestForwardFailed(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		dropped, r := c.Create(nil), c.Create(nil)
		assert.False(t, dropped.Wait(ms))
		assert.False(t, r.Wait(ms))
		calls := 0
		r.Reset(func() { calls++; w.post(func() { r.Complete(errCanceled) }) })
		ctx, stop := context.WithTimeout(t.Context(), ms)
		defer stop()
		assert.ErrorIs(t, r.WaitContext(ctx), errCanceled)
		assert.Equal(t, 1, calls, "the new cancel function")
		assert.False(t, dropped.Completed())
	})
}

func TestMisusePanics(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		r.Complete(nil)
		assert.PanicsWithValue(t, "request: Complete called twice without Reset", func() { r.Complete(nil) })
		assert.True(t, r.Wait(0), "and nothing is locked")

		r.Reset(nil)
		r.Complete(nil)

		r.Reset(nil)
		w.after(ms, func() {
			assert.PanicsWithValue(t, "request: Reset during a Wait", func() { r.Reset(nil) })
			r.Complete(nil)
			assert.PanicsWithValue(t, "request: Reset during a Wait", func() { r.Reset(nil) })
		})
		assert.True(t, r.Wait(-1))
		r.Reset(nil)

		other := request.NewClass(w).Create(nil)
		assert.Panics(t, func() { request.WaitAll(0, r, other) })
	})
}

func TestData(t *testing.T) {
	r := request.NewClass(&fakeProgressor{}).Create(nil)
	assert.Nil(t, r.Data())
	r.SetData(42)
	assert.Equal(t, 42, r.Data())
}

func TestWaitContext(t *testing.T) {
	type op struct { // what the operation does, and when
		result   error
		after    time.Duration // -1: never, unless canceled
		onCancel error         // the error of its callback after Cancel; nil: it succeeds nevertheless
		reaction time.Duration // from Cancel to the callback
		noCancel bool          // the request has no cancel function
	}
	tests := []struct {
		name    string
		op      op
		timeout time.Duration // of the context; 0: it has ended before
		cause   error         // nil: a plain deadline
		want    []error       // the error matches all of these; none: success
		not     []error
		at      time.Duration
		cancels int
	}{
		{name: "success", op: op{after: 5 * ms}, timeout: 10 * ms, at: 5 * ms},
		{name: "failure keeps its error", op: op{after: 5 * ms, result: errBroken}, timeout: 10 * ms,
			want: []error{errBroken}, not: []error{context.DeadlineExceeded}, at: 5 * ms},
		{name: "canceled at the deadline", op: op{after: -1, onCancel: errCanceled}, timeout: 10 * ms,
			want: []error{errCanceled, context.DeadlineExceeded}, at: 10 * ms, cancels: 1},
		{name: "returns only after the callback",
			op: op{after: -1, onCancel: errCanceled, reaction: 7 * ms}, timeout: 10 * ms,
			want: []error{errCanceled, context.DeadlineExceeded}, at: 17 * ms, cancels: 1},
		{name: "keeps the cause", op: op{after: -1, onCancel: errCanceled}, timeout: 10 * ms, cause: errMaster,
			want: []error{errCanceled, errMaster}, not: []error{context.DeadlineExceeded}, at: 10 * ms, cancels: 1},
		{name: "success wins", op: op{after: -1, reaction: 2 * ms}, timeout: 10 * ms, at: 12 * ms, cancels: 1},
		{name: "context ended before", op: op{after: -1, onCancel: errCanceled}, cause: errMaster,
			want: []error{errCanceled, errMaster}, cancels: 1},
		{name: "context ended before, success wins", op: op{after: 5 * ms, reaction: -1}, at: 5 * ms, cancels: 1},
		{name: "no cancel function", op: op{after: 20 * ms, noCancel: true}, timeout: 10 * ms, cause: errMaster,
			want: []error{errMaster}, at: 10 * ms},
		{name: "no cancel function, ended before", op: op{after: 20 * ms, noCancel: true}, cause: errMaster,
			want: []error{errMaster}},
		{name: "no cancel function, success", op: op{after: 5 * ms, noCancel: true}, timeout: 10 * ms, at: 5 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
				ctx, stop := context.WithTimeoutCause(t.Context(), tt.timeout, tt.cause)
				defer stop()
				cancels := 0
				r := c.Create(nil)
				if !tt.op.noCancel {
					r.Reset(func() {
						cancels++
						if tt.op.reaction >= 0 {
							w.after(tt.op.reaction, func() { r.Complete(tt.op.onCancel) })
						}
					})
				}
				if tt.op.after >= 0 {
					w.after(tt.op.after, func() { r.Complete(tt.op.result) })
				}
				err := r.WaitContext(ctx)
				assert.Equal(t, tt.at, w.now())
				assert.Equal(t, tt.cancels, cancels, "calls of cancel")
				if len(tt.want) == 0 {
					assert.NoError(t, err)
				}
				for _, want := range tt.want {
					assert.ErrorIs(t, err, want)
				}
				for _, not := range tt.not {
					assert.NotErrorIs(t, err, not)
				}
				if tt.op.noCancel {
					assert.True(t, r.Wait(-1), "the callback runs all the same")
				} else {
					assert.True(t, r.Completed(), "returned before the callback has run")
				}
			})
		})
	}
}

func TestWaitContextText(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeout(t.Context(), ms)
		defer stop()
		r := c.Create(nil)
		r.Reset(func() { w.post(func() { r.Complete(errCanceled) }) })
		assert.EqualError(t, r.WaitContext(ctx), "operation canceled: context deadline exceeded")

		r.Reset(func() { w.post(func() { r.Complete(context.DeadlineExceeded) }) })
		assert.EqualError(t, r.WaitContext(ctx), "context deadline exceeded", "no cause is stated twice")
	})
}

// TestWaitContextOfPlainProgressor checks that without a Waiter the end of the context is detected
// late, but by one slice at most.
func TestWaitContextOfPlainProgressor(t *testing.T) {
	withoutWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeout(t.Context(), 250*ms)
		defer stop()
		r := c.Create(nil)
		r.SetCancel(request.CancelFunc(func() { w.post(func() { r.Complete(errCanceled) }) }))
		assert.ErrorIs(t, r.WaitContext(ctx), context.DeadlineExceeded)
		assert.Equal(t, 300*ms, w.now())
	})
}

// TestWaitContextAmongEndlessCallbacks checks that callbacks that are queued faster than they run
// do not delay the cancellation.
func TestWaitContextAmongEndlessCallbacks(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		var again func()
		again = func() {
			pause(ms)
			if !r.Completed() {
				w.post(again)
			}
		}
		w.post(again)
		r.Reset(func() {
			assert.LessOrEqual(t, w.now(), 11*ms)
			w.post(func() { r.Complete(errCanceled) })
		})
		ctx, stop := context.WithTimeout(t.Context(), 10*ms)
		defer stop()
		assert.ErrorIs(t, r.WaitContext(ctx), errCanceled)
		assert.False(t, c.Create(nil).Wait(0))
	})
}

// TestWaitContextCancelsOncePerRequest checks two contexts that end while two goroutines wait for
// one request. One of them sleeps, one drives.
func TestWaitContextCancelsOncePerRequest(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		calls := 0
		r := c.Create(nil)
		r.Reset(func() { calls++; w.after(5*ms, func() { r.Complete(errCanceled) }) })
		wait := func() {
			ctx, stop := context.WithTimeout(t.Context(), 10*ms)
			defer stop()
			err := r.WaitContext(ctx)
			assert.ErrorIs(t, err, errCanceled)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
		go wait()
		go wait()
		assert.True(t, r.Wait(-1))
		synctest.Wait()
		assert.Equal(t, 1, calls)
	})
}

// TestWaitContextLeavesNothingBehind checks that a stopped AfterFunc leaves nothing that reaches a
// later Wait.
func TestWaitContextLeavesNothingBehind(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithCancel(t.Context())
		r := c.Create(func() { t.Error("canceled") })
		w.after(ms, func() { r.Complete(nil) })
		assert.NoError(t, r.WaitContext(ctx))
		stop()
		r.Reset(nil)
		synctest.Wait()
		start := w.now()
		w.calls()
		assert.False(t, r.Wait(time.Second))
		assert.Equal(t, time.Second, w.now()-start)
		assert.Equal(t, []time.Duration{time.Second}, w.calls())
	})
}

// TestWaitContextEndsWithTheCompletion checks a context that ends and a request that completes in
// one callback: the function that AfterFunc has started by then must not reach a later Wait. On a
// single processor it runs when that Wait blocks.
func TestWaitContextEndsWithTheCompletion(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithCancel(t.Context())
		r := c.Create(nil)
		w.after(ms, func() {
			stop()
			r.Complete(nil)
		})
		assert.NoError(t, r.WaitContext(ctx))
		r.Reset(nil)
		start := w.now()
		assert.False(t, r.Wait(time.Second))
		assert.Equal(t, time.Second, w.now()-start)
	})
}

// failingProgressor refuses to make progress even while callbacks are queued.
type failingProgressor struct{ *testWorld }

func (failingProgressor) Progress(time.Duration) error { return errBroken }

func TestFailedProgressRunsAllThatIsQueued(t *testing.T) {
	as := func(w *testWorld) request.Progressor { return waiterOf(w, failingProgressor{w}) }
	inBubble(t, as, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		for range 500 {
			w.post(func() {})
		}
		w.post(func() { r.Complete(errCanceled) })
		assert.Equal(t, errCanceled, r.WaitContext(t.Context()))
	})
}

func TestClosedProgressor(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r, drained := c.Create(func() { t.Error("canceled") }), c.Create(nil)
		w.close(errBroken)
		w.post(func() { drained.Complete(errCanceled) })
		assert.True(t, drained.Wait(-1), "what is queued still runs")
		w.calls()
		assert.False(t, r.Wait(-1))
		assert.Len(t, w.calls(), 1, "one refusal is enough")
		assert.False(t, r.Wait(time.Hour))
		assert.Equal(t, errBroken, r.WaitContext(t.Context()))
		assert.Equal(t, -1, request.WaitAny(-1, r))
		assert.False(t, request.WaitAll(-1, r, drained))
		err := request.WaitAllContext(t.Context(), r, drained)
		assert.ErrorIs(t, err, errBroken)
		assert.ErrorIs(t, err, errCanceled)
		assert.Zero(t, w.now())
	})
}

// TestCloseDuringWaits checks a Progressor that fails while many wait. All of them must get the
// error, and the callbacks that the closing has queued must run. A waiter whose callback another
// goroutine is just running may get the error first.
func TestCloseDuringWaits(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		var wg sync.WaitGroup
		var queued []*request.Request
		for i := range 20 {
			r := c.Create(nil)
			if i%2 == 0 {
				queued = append(queued, r)
			}
			wg.Go(func() {
				if r.Wait(-1) {
					assert.Equal(t, errCanceled, r.Err())
				}
			})
		}
		synctest.Wait()
		pause(ms)
		for _, r := range queued {
			w.post(func() { r.Complete(errCanceled) })
		}
		w.close(errBroken)
		wg.Wait()
		for _, r := range queued {
			assert.True(t, r.Completed())
		}
	})
}

// TestWaitContextClosedAfterCancel checks a cancel that fails: the context ends, and then the
// Progressor does, before the callback.
func TestWaitContextClosedAfterCancel(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeout(t.Context(), ms)
		defer stop()
		r := c.Create(func() { w.close(errBroken) })
		err := r.WaitContext(ctx)
		assert.ErrorIs(t, err, errBroken)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// cancelError is the error of a canceled operation of another package.
type cancelError int

func (cancelError) Error() string        { return "ended early" }
func (cancelError) Is(target error) bool { return target == context.Canceled }

// TestDeadlineDoesNotMatchCanceled checks that a passed deadline is no cancel, whatever error the
// canceled operation returned: errors.As does not find that, and leaves its target unchanged.
func TestDeadlineDoesNotMatchCanceled(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeout(t.Context(), ms)
		defer stop()
		var r *request.Request
		r = c.Create(func() { w.post(func() { r.Complete(cancelError(7)) }) })
		err := r.WaitContext(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
		found := cancelError(1)
		require.False(t, errors.As(err, &found))
		require.Equal(t, cancelError(1), found)
	})
}
