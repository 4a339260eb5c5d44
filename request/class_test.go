package request_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
	"github.com/stretchr/testify/assert"
)

// startWait starts a goroutine that waits, lets it fall asleep or take the lead, and returns how to get its result and
// the time of it.
func startWait(w *testWorld, wait func() bool) (result func() (bool, time.Duration)) {
	var ok bool
	var at time.Duration
	done := make(chan struct{})
	go func() {
		ok = wait()
		at = w.now()
		close(done)
	}()
	synctest.Wait()
	return func() (bool, time.Duration) { <-done; return ok, at }
}

func completeFunc(r *request.Request) func() { return func() { r.Complete(nil) } }

func TestOneGoroutineDrives(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a, b := c.Create(nil), c.Create(nil)
		w.after(10*ms, completeFunc(a))
		w.after(20*ms, completeFunc(b))
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		bDone := startWait(w, func() bool { return b.Wait(-1) })
		assert.Equal(t, []time.Duration{-1}, w.calls(), "only a drives, and without a limit")
		ok, at := aDone()
		assert.True(t, ok)
		assert.Equal(t, 10*ms, at)
		ok, at = bDone()
		assert.True(t, ok)
		assert.Equal(t, 20*ms, at, "b has taken the lead")
	})
}

// TestDriverCompletesASleeper checks that a sleeper completed by the driver wakes at once and the
// driver continues to drive.
func TestDriverCompletesASleeper(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a, b := c.Create(nil), c.Create(nil)
		w.after(10*ms, completeFunc(b))
		w.after(20*ms, completeFunc(a))
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		bDone := startWait(w, func() bool { return b.Wait(-1) })
		_, at := bDone()
		assert.Equal(t, 10*ms, at)
		_, at = aDone()
		assert.Equal(t, 20*ms, at)
	})
}

// TestHandOverWakesOne checks that a leaving driver wakes one sleeper, not all of them.
func TestHandOverWakesOne(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		first, rest := c.Create(nil), c.Create(nil)
		w.after(10*ms, completeFunc(first))
		firstDone := startWait(w, func() bool { return first.Wait(-1) })
		var done []func() (bool, time.Duration)
		for range 50 {
			done = append(done, startWait(w, func() bool { return rest.Wait(-1) }))
		}
		looks := w.looks.Load()
		firstDone()
		synctest.Wait()
		assert.LessOrEqual(t, w.looks.Load()-looks, int64(8), "goroutines that have looked around")
		rest.Complete(nil) // from outside, while one of them drives
		for _, d := range done {
			ok, at := d()
			assert.True(t, ok)
			assert.Equal(t, 10*ms, at)
		}
	})
}

func TestEarlierDeadlineOfAFollower(t *testing.T) {
	for _, driver := range []time.Duration{-1, time.Hour} {
		run := func(t *testing.T, w *testWorld, c *request.Class) (at time.Duration) {
			a, b := c.Create(nil), c.Create(nil)
			w.after(time.Minute, completeFunc(a))
			aDone := startWait(w, func() bool { return a.Wait(driver) })
			pause(ms)
			bDone := startWait(w, func() bool { return b.Wait(10 * ms) })
			ok, at := bDone()
			assert.False(t, ok)
			ok, last := aDone()
			assert.True(t, ok)
			assert.Equal(t, time.Minute, last)
			return at
		}
		withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
			assert.Equal(t, 11*ms, run(t, w, c), "driver waits %v", driver)
		})
		withoutWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
			assert.Equal(t, request.Slice, run(t, w, c), "driver waits %v", driver)
		})
	}
}

// TestDriverKeepsTimeForAll checks that the driver knows all deadlines that were there when it
// began, so it need not be woken for them.
func TestDriverKeepsTimeForAll(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a := c.Create(nil)
		w.after(2*time.Second, completeFunc(a))
		var done []func() (bool, time.Duration)
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		for i := range 9 {
			b := c.Create(nil)
			done = append(done, startWait(w, func() bool { return b.Wait(time.Second - time.Duration(i)*10*ms) }))
		}
		for i, d := range done {
			ok, at := d()
			assert.False(t, ok)
			assert.Equal(t, time.Second-time.Duration(i)*10*ms, at)
		}
		_, at := aDone()
		assert.Equal(t, 2*time.Second, at)
	})
}

// TestCompleteByOtherGoroutine checks that Complete from a goroutine that does not use the class
// otherwise reaches a sleeper at once, and a driver when it can be woken.
func TestCompleteByOtherGoroutine(t *testing.T) {
	run := func(t *testing.T, w *testWorld, c *request.Class) time.Duration {
		a, b := c.Create(nil), c.Create(nil)
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		bDone := startWait(w, func() bool { return b.Wait(-1) })
		pause(30 * ms)
		b.Complete(nil)
		_, at := bDone()
		assert.Equal(t, 30*ms, at, "sleeper")
		a.Complete(nil)
		_, at = aDone()
		return at
	}
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		assert.Equal(t, 30*ms, run(t, w, c))
		assert.Equal(t, []time.Duration{-1}, w.calls())
	})
	withoutWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) { assert.Equal(t, request.Slice, run(t, w, c)) })
}

func TestCallbackMayWait(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		outer, inner, innermost := c.Create(nil), c.Create(nil), c.Create(nil)
		w.after(10*ms, func() {
			w.after(10*ms, func() {
				w.after(10*ms, completeFunc(innermost))
				assert.True(t, innermost.Wait(-1))
				assert.False(t, inner.Wait(5*ms), "the goroutine's own timeout")
				inner.Complete(nil)
			})
			assert.True(t, inner.Wait(-1))
			outer.Complete(nil)
		})
		assert.True(t, outer.Wait(-1))
		assert.Equal(t, 35*ms, w.now())
	})
}

// TestOuterCompletesDuringInner checks that the request of the outer Wait may complete during the
// inner one.
func TestOuterCompletesDuringInner(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		outer, inner := c.Create(nil), c.Create(nil)
		w.after(10*ms, func() {
			w.after(1*ms, completeFunc(outer))
			w.after(5*ms, completeFunc(inner))
			assert.True(t, inner.Wait(-1))
		})
		assert.True(t, outer.Wait(-1))
		assert.Equal(t, 15*ms, w.now(), "the callback has to return first")
	})
}

// TestCallbackMayWaitAmongOthers checks a callback that waits among sleepers: the goroutine that
// runs it is delayed by it, the other one is not.
func TestCallbackMayWaitAmongOthers(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a, b, inner := c.Create(nil), c.Create(nil), c.Create(nil)
		w.after(10*ms, func() {
			w.after(20*ms, completeFunc(inner))
			assert.True(t, inner.Wait(-1))
		})
		w.after(15*ms, func() { a.Complete(nil); b.Complete(nil) })
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		bDone := startWait(w, func() bool { return b.Wait(-1) })
		_, at := aDone()
		_, bt := bDone()
		assert.Equal(t, []time.Duration{15 * ms, 30 * ms}, []time.Duration{min(at, bt), max(at, bt)})
	})
}

// TestBlockingCallbackDelaysOnlyItself checks callbacks that block for long in as many of the
// waiting goroutines. All the others continue: their requests complete and their timeouts end to
// the millisecond, also when they begin to wait only now.
func TestBlockingCallbackDelaysOnlyItself(t *testing.T) {
	for blocking := range 5 {
		withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
			for range blocking {
				w.after(10*ms, func() { pause(90 * ms) })
			}
			behind := c.Create(nil)
			w.after(10*ms, completeFunc(behind))
			type waiter struct {
				result func() (bool, time.Duration)
				ok     bool
				at     time.Duration
			}
			var waiters []waiter
			add := func(after time.Duration) {
				r := c.Create(nil)
				at := w.now() + after
				w.after(after, completeFunc(r))
				waiters = append(waiters,
					waiter{startWait(w, func() bool { return r.Wait(-1) }), true, at},
					waiter{startWait(w, func() bool { return c.Create(nil).Wait(after + ms/2) }), false, at + ms/2},
					waiter{startWait(w, func() bool { return behind.Wait(-1) }), true, max(w.now(), 10*ms)})
			}
			for i := range 4 {
				add(time.Duration(20+i) * ms)
			}
			pause(12 * ms)
			for i := range 4 {
				add(time.Duration(20+i) * ms)
			}
			held := 0
			for _, x := range waiters {
				ok, at := x.result()
				assert.Equal(t, x.ok, ok)
				if at == 100*ms {
					held++
				} else {
					assert.Equal(t, x.at, at)
				}
			}
			assert.Equal(t, blocking, held, "goroutines held up")
		})
	}
}

// TestPromotedSleeperLeaves checks that the sleeper that is woken to take the lead has timed out:
// it must pass the lead on, for the driver that woke it is in a callback that blocks.
func TestPromotedSleeperLeaves(t *testing.T) {
	scheduled := func() (passed bool) {
		withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
			a, b, third := c.Create(nil), c.Create(nil), c.Create(nil)
			block := func(d time.Duration) func() { return func() { pause(d) } }
			w.after(2*ms, block(3*ms))  // in a, which is alone
			w.after(10*ms, block(9*ms)) // in b, when a's time is up
			w.after(12*ms, completeFunc(third))
			w.after(20*ms, completeFunc(b))
			aDone := startWait(w, func() bool { return a.Wait(10 * ms) })
			pause(3 * ms)
			bDone := startWait(w, func() bool { return b.Wait(-1) })         // takes the lead
			thirdDone := startWait(w, func() bool { return third.Wait(-1) }) // asleep before a is
			ok, at := aDone()
			assert.False(t, ok)
			assert.Equal(t, 10*ms, at)
			_, at = thirdDone()
			passed = at == 12*ms
			if !passed { // it got the lead, and with it the callback, before b did
				assert.Equal(t, 19*ms, at)
			}
			_, at = bDone()
			assert.Equal(t, 20*ms, at)
		})
		return passed
	}
	for range 1000 {
		if scheduled() {
			return
		}
	}
	t.Error("the third never got the lead while b was in the callback")
}

// TestLeadIsFreeWhileAllRunCallbacks checks that when all waiters but the last are inside
// callbacks, and no other one can be promoted, the next goroutine that waits leads.
func TestLeadIsFreeWhileAllRunCallbacks(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		release := make(chan struct{})
		var done []func() (bool, time.Duration)
		for range 5 {
			r := c.Create(nil)
			w.after(ms, func() { <-release; r.Complete(nil) })
			done = append(done, startWait(w, func() bool { return r.Wait(-1) }))
		}
		pause(5 * ms)
		last := c.Create(nil)
		w.after(ms, completeFunc(last))
		assert.True(t, last.Wait(-1))
		assert.Equal(t, 6*ms, w.now())
		close(release)
		for _, d := range done {
			d()
		}
	})
}

func TestSeveralWaitForOneRequest(t *testing.T) {
	withWaiter(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		w.after(10*ms, completeFunc(r))
		patient := startWait(w, func() bool { return r.Wait(-1) })
		hasty := startWait(w, func() bool { return r.Wait(5 * ms) })
		also := startWait(w, func() bool { return r.Wait(time.Hour) })
		ok, at := hasty()
		assert.False(t, ok)
		assert.Equal(t, 5*ms, at)
		for _, d := range []func() (bool, time.Duration){patient, also} {
			ok, at := d()
			assert.True(t, ok)
			assert.Equal(t, 10*ms, at)
		}
	})
}

// TestWaitZeroWhileAnotherDrives checks that a poll beside a driver runs the queued callbacks,
// leaves Progress to the driver and does not sleep.
func TestWaitZeroWhileAnotherDrives(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		a := c.Create(nil)
		w.after(10*ms, completeFunc(a))
		aDone := startWait(w, func() bool { return a.Wait(-1) })
		w.calls()
		assert.False(t, c.Create(nil).Wait(0))
		assert.Empty(t, w.calls())
		aDone()
	})
}

// TestCallbackPanics checks that a panic in a callback, or the end of its goroutine, passes through
// the Wait and leaves the class usable.
func TestCallbackPanics(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		w.after(1*ms, func() { panic("ouch") })
		w.after(2*ms, runtime.Goexit)
		w.after(3*ms, completeFunc(r))
		var panicked, completed, exited atomic.Int32
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				defer exited.Add(1)
				defer func() {
					if recover() != nil {
						panicked.Add(1)
					}
				}()
				if r.Wait(-1) {
					completed.Add(1)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, [3]int32{1, 1, 3}, [3]int32{panicked.Load(), completed.Load(), exited.Load()})
		r.Reset(nil) // panics if a Wait is left
	})
}

type panickingProgressor struct {
	*testWorld
	armed bool
}

func (b *panickingProgressor) Progress(timeout time.Duration) error {
	if b.armed {
		b.armed = false
		panic("ouch")
	}
	return b.testWorld.Progress(timeout)
}

func TestProgressPanics(t *testing.T) {
	as := func(w *testWorld) request.Progressor { return waiterOf(w, &panickingProgressor{w, true}) }
	inBubble(t, as, func(t *testing.T, w *testWorld, c *request.Class) {
		r := c.Create(nil)
		assert.PanicsWithValue(t, "ouch", func() { r.Wait(-1) })
		assert.False(t, r.Wait(5*ms), "the lead is free again")
		assert.Equal(t, 5*ms, w.now())
	})
}

// lockChecker fails the test when it is called with the lock of the class held. One goroutine uses it.
type lockChecker struct {
	*testWorld
	check func(where string)
}

func (s *lockChecker) Progress(timeout time.Duration) error {
	s.check("Progress")
	return s.testWorld.Progress(timeout)
}
func (s *lockChecker) Trigger(max int) int { s.check("Trigger"); return s.testWorld.Trigger(max) }
func (s *lockChecker) Now() time.Duration  { s.check("Now"); return s.testWorld.Now() }

func TestNoLockIsHeldInCallsOut(t *testing.T) {
	spy := &lockChecker{}
	var spied *waiter
	as := func(w *testWorld) request.Progressor { spy.testWorld = w; spied = waiterOf(w, spy); return spied }
	inBubble(t, as, func(t *testing.T, w *testWorld, c *request.Class) {
		called := map[string]int{}
		spy.check = func(where string) {
			called[where]++
			assert.True(t, request.Unlocked(c) && spied.loop.Unlocked(), where)
		}
		r := c.Create(nil)
		r.Reset(func() {
			spy.check("cancel")
			w.post(func() { r.Complete(nil) })
		})
		assert.False(t, r.Wait(ms))
		ctx, stop := context.WithTimeout(t.Context(), ms)
		defer stop()
		assert.NoError(t, r.WaitContext(ctx))

		r.Reset(nil)
		done := startWait(w, func() bool { return r.Wait(-1) }) // blocked in Progress
		r.Complete(nil)
		done()
		for _, where := range []string{"Progress", "Trigger", "Now", "cancel"} {
			assert.NotZero(t, called[where], where)
		}
	})
}

// TestRandomWaitsEndOnTime checks sixty-four goroutines that wait for operations that end in random
// order. Virtual time makes the answer exact: a wait ends at the completion or at the deadline,
// whichever is first, and without a Waiter at most one slice later.
func TestRandomWaitsEndOnTime(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		tolerance := request.Slice
		if t.Name() == "TestRandomWaitsEndOnTime/waiter" {
			tolerance = 0
		}
		rnd := newRand(t)
		var wg sync.WaitGroup
		for range 64 {
			p := &randomPlayer{t: t, w: w, c: c, tolerance: tolerance, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0))}
			wg.Go(func() {
				for range 8 {
					p.round()
				}
			})
		}
		wg.Wait()
	})
}

type randomPlayer struct {
	t         *testing.T
	w         *testWorld
	c         *request.Class
	tolerance time.Duration
	rnd       *rand.Rand
}

func (p *randomPlayer) random() time.Duration { return time.Duration(1 + p.rnd.Int64N(int64(50*ms))) }

// op starts an operation that ends once: after delay, or when it is canceled.
func (p *randomPlayer) op() (r *request.Request, delay time.Duration) {
	var ended atomic.Bool
	end := func(err error) {
		if ended.CompareAndSwap(false, true) {
			r.Complete(err)
		}
	}
	r = p.c.Create(func() { p.w.post(func() { end(errCanceled) }) })
	delay = p.random()
	p.w.after(delay, func() { end(nil) })
	return r, delay
}

func (p *randomPlayer) round() {
	start := p.w.now()
	timeout := p.random()
	r, delay := p.op()
	switch p.rnd.IntN(5) {
	case 0:
		p.check(start, delay, timeout, r.Wait(timeout))
		assert.True(p.t, r.Wait(-1))
		p.ended(start, delay)
	case 1:
		assert.True(p.t, r.Wait(-1))
		p.ended(start, delay)
	case 2:
		ctx, stop := context.WithTimeout(p.t.Context(), timeout)
		defer stop()
		err := r.WaitContext(ctx)
		assert.True(p.t, r.Completed())
		p.check(start, delay, timeout, err == nil)
		if err != nil {
			assert.ErrorIs(p.t, err, errCanceled)
			assert.ErrorIs(p.t, err, context.DeadlineExceeded)
		}
	case 3:
		r2, delay2 := p.op()
		r3, delay3 := p.op()
		p.check(start, max(delay, delay2, delay3), timeout, request.WaitAll(timeout, r, r2, r3))
	case 4:
		r2, delay2 := p.op()
		r3, delay3 := p.op()
		i := request.WaitAny(timeout, r, nil, r2, r3)
		p.check(start, min(delay, delay2, delay3), timeout, i >= 0)
		if i >= 0 && p.tolerance == 0 {
			assert.Equal(p.t, min(delay, delay2, delay3), []time.Duration{delay, -1, delay2, delay3}[i])
		}
	}
}

// check judges a wait from start for something that takes delay.
func (p *randomPlayer) check(start, delay, timeout time.Duration, ok bool) {
	p.t.Helper()
	switch {
	case delay < timeout:
		assert.True(p.t, ok, "delay %v, timeout %v", delay, timeout)
	case delay > timeout+p.tolerance:
		assert.False(p.t, ok, "delay %v, timeout %v", delay, timeout)
	}
	p.ended(start, min(delay, timeout))
}

func (p *randomPlayer) ended(start, want time.Duration) {
	p.t.Helper()
	got := p.w.now() - start
	assert.GreaterOrEqual(p.t, got, want)
	assert.LessOrEqual(p.t, got, want+p.tolerance)
}

// TestRandomCallbacks checks callbacks that block, wait for others and start new operations. The
// times are no longer exact, but every wait ends, every callback runs once, and never are two
// goroutines in Progress.
func TestRandomCallbacks(t *testing.T) {
	eachProgressor(t, func(t *testing.T, w *testWorld, c *request.Class) {
		rnd := newRand(t)
		var started, ran atomic.Int64
		var start func(rnd *rand.Rand, depth int) *request.Request
		start = func(rnd *rand.Rand, depth int) *request.Request {
			r := c.Create(nil)
			delay, kind := time.Duration(rnd.Int64N(int64(20*ms))), rnd.IntN(4)
			inner := rand.New(rand.NewPCG(rnd.Uint64(), 0))
			started.Add(1)
			w.after(delay, func() {
				defer ran.Add(1)
				switch {
				case kind == 0:
					pause(delay)
				case kind == 1 && depth < 3:
					assert.True(t, start(inner, depth+1).Wait(-1))
				case kind == 2 && depth < 3:
					a, b := start(inner, depth+1), start(inner, depth+1)
					r.SetData(request.WaitAny(delay/2, a, b))
					assert.True(t, request.WaitAll(-1, a, b))
				}
				r.Complete(nil)
			})
			return r
		}
		var wg sync.WaitGroup
		for range 32 {
			rnd := rand.New(rand.NewPCG(rnd.Uint64(), 0))
			wg.Go(func() {
				for range 8 {
					r := start(rnd, 0)
					r.Wait(time.Duration(rnd.Int64N(int64(20 * ms))))
					assert.True(t, r.Wait(-1))
				}
			})
		}
		wg.Wait()
		assert.Equal(t, started.Load(), ran.Load())
	})
}
