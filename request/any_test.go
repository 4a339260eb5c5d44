package request_test

import (
	"context"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWaitAny(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		reqs := []*request.Request{c.Create(nil), c.Create(nil), c.Create(nil)}
		w.after(30*ms, completeFunc(reqs[0]))
		w.after(10*ms, completeFunc(reqs[1]))
		w.after(20*ms, completeFunc(reqs[2]))
		assert.Equal(t, -1, request.WaitAny(0, reqs...))
		assert.Equal(t, -1, request.WaitAny(5*ms, reqs...))
		assert.Equal(t, 5*ms, w.now())
		for n, want := range []int{1, 2, 0} { // the loop that nil requests are for
			i := request.WaitAny(-1, reqs...)
			require.Equal(t, want, i)
			assert.Equal(t, time.Duration(n+1)*10*ms, w.now())
			reqs[i] = nil
		}
		assert.Equal(t, -1, request.WaitAny(-1, reqs...), "nothing left")
		assert.Equal(t, -1, request.WaitAny(-1))
	})
}

func TestWaitAnyAmongCompleted(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a, b, d := c.Create(nil), c.Create(nil), c.Create(nil)
		d.Complete(nil)
		b.Complete(nil)
		assert.Equal(t, 1, request.WaitAny(-1, a, b, d), "the lowest")
		assert.Equal(t, 2, request.WaitAny(-1, a, a, d, a))
		a.Reset(nil) // no goroutine waits for a any more
	})
}

// TestWaitSameRequestTwice checks that one request may be in the list twice, and the others may
// complete after the wait has been satisfied.
func TestWaitSameRequestTwice(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a, b := c.Create(nil), c.Create(nil)
		w.after(10*ms, func() { a.Complete(nil); b.Complete(nil) })
		assert.True(t, request.WaitAll(-1, a, b, a))
		a.Reset(nil)
		b.Reset(nil)
		w.after(10*ms, func() { b.Complete(nil); a.Complete(nil) })
		assert.Equal(t, 0, request.WaitAny(-1, a, b, a))
		assert.Equal(t, 20*ms, w.now())
	})
}

// TestWaitAllHasOneDeadline checks that n requests that never complete take one timeout, not N of
// them.
func TestWaitAllHasOneDeadline(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		var reqs []*request.Request
		for range 10 {
			reqs = append(reqs, c.Create(nil))
		}
		w.after(900*ms, completeFunc(reqs[9]))
		assert.False(t, request.WaitAll(time.Second, reqs...))
		assert.Equal(t, time.Second, w.now())
		for i, r := range reqs[:9] {
			w.after(time.Duration(i)*100*ms, completeFunc(r))
		}
		assert.True(t, request.WaitAll(time.Second, reqs...))
		assert.Equal(t, 1800*ms, w.now())
	})
}

func TestWaitAllOfNothing(t *testing.T) {
	assert.True(t, request.WaitAll(-1))
	assert.True(t, request.WaitAll(-1, nil, nil))
	assert.NoError(t, request.WaitAllContext(t.Context(), nil))
}

func TestWaitAllSleeping(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		driver, a, b := c.Create(nil), c.Create(nil), c.Create(nil)
		w.after(30*ms, completeFunc(driver))
		w.after(20*ms, completeFunc(a))
		w.after(10*ms, completeFunc(b))
		driverDone := startWait(w, func() bool { return driver.Wait(-1) })
		all := startWait(w, func() bool { return request.WaitAll(-1, a, b) })
		some := startWait(w, func() bool { return request.WaitAny(-1, a, b) == 1 })
		late := startWait(w, func() bool { return request.WaitAll(15*ms, a, b, driver) })
		for _, tt := range []struct {
			done func() (bool, time.Duration)
			ok   bool
			at   time.Duration
		}{{some, true, 10 * ms}, {late, false, 15 * ms}, {all, true, 20 * ms}, {driverDone, true, 30 * ms}} {
			ok, at := tt.done()
			assert.Equal(t, tt.ok, ok)
			if at != tt.at { // without a Waiter a follower's deadline is seen late
				assert.False(t, tt.ok)
				assert.LessOrEqual(t, at-tt.at, request.Slice)
			}
		}
	})
}

func TestWaitAllContext(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeoutCause(t.Context(), 20*ms, errMaster)
		defer stop()
		var canceled []string
		create := func(name string, reaction time.Duration, outcome error) *request.Request {
			r := c.Create(nil)
			r.Reset(func() {
				canceled = append(canceled, name)
				w.after(reaction, func() { r.Complete(outcome) })
			})
			return r
		}
		early, broken := create("early", 0, nil), create("broken", 0, nil)
		slow, answered := create("slow", 5*ms, errCanceled), create("lucky", 2*ms, nil)
		w.after(10*ms, completeFunc(early))
		w.after(10*ms, func() { broken.Complete(errBroken) })

		err := request.WaitAllContext(ctx, early, broken, nil, slow, answered)
		assert.Equal(t, 25*ms, w.now(), "after the last callback")
		assert.Equal(t, []string{"slow", "lucky"}, canceled)
		for _, want := range []error{errBroken, errCanceled, errMaster} {
			assert.ErrorIs(t, err, want)
		}
		assert.NoError(t, request.WaitAllContext(ctx, early, answered), "success wins over an ended context")
		err = request.WaitAllContext(ctx, early, broken)
		assert.ErrorIs(t, err, errBroken)
		assert.NotErrorIs(t, err, errMaster, "the context has done nothing here")
	})
}

func TestWaitAllContextWithoutCancelFunc(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		ctx, stop := context.WithTimeout(t.Context(), 20*ms)
		defer stop()
		unanswered, answered := c.Create(nil), c.Create(nil)
		answered.Reset(func() { w.after(5*ms, completeFunc(answered)) })
		assert.Equal(t, context.DeadlineExceeded, request.WaitAllContext(ctx, unanswered, answered))
		assert.Equal(t, 25*ms, w.now(), "lucky is waited for, deaf is not")
	})
}
