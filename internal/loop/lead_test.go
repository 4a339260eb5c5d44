package loop_test

import (
	"context"
	"math/rand/v2"
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

// TestNewWaiterTakesLeadInCallback checks that a goroutine that begins to wait while the leader is in a
// callback leads at once, and those that have ended by then are woken at once.
func TestNewWaiterTakesLeadInCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		first, firstEnd := startWaiter(l)
		second, secondEnd := startWaiter(l)
		hold := make(chan struct{})
		f.post(func() {
			second.End() // it waits for the end of the pass
			<-hold
			first.End()
		})
		synctest.Wait()
		require.Empty(t, secondEnd)
		begun := time.Now()
		third, thirdEnd := startWaiter(l)
		require.NoError(t, <-secondEnd)
		require.Zero(t, time.Since(begun))
		fourth, fourthEnd := startWaiter(l)
		f.post(fourth.End)
		require.NoError(t, <-fourthEnd)
		require.Zero(t, time.Since(begun))
		require.Empty(t, firstEnd)
		require.Empty(t, thirdEnd)
		close(hold)
		require.NoError(t, <-firstEnd)
		f.post(third.End)
		require.NoError(t, <-thirdEnd)
		requireIdle(t, f, l)
	})
}

// startDrivers starts goroutines in Drive, which behind, if it is not nil, is called in behind the callbacks. One that a
// callback ends is not replaced.
func startDrivers(t *testing.T, l *loop.Loop, n int, behind func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			defer func() { _ = recover() }()
			err := l.Drive(ctx, runner(func(p loop.Pass) {
				p.Run(false)
				if behind != nil {
					behind()
				}
			}), nil)
			if err != context.Canceled {
				t.Error(err)
			}
		})
		synctest.Wait()
	}
	return func() { cancel(); all.Wait() }
}

// TestDriversRunInTurn checks that callbacks of goroutines in Drive run one after the other,
// however long one takes, waits, or ends; the functions behind them do not keep others from
// leading.
func TestDriversRunInTurn(t *testing.T) {
	for what, end := range map[string]func(){"returns": func() {}, "panics": func() { panic("on purpose") }, "exits": runtime.Goexit} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l := newFakeDriver()
				stop := startDrivers(t, l, 3, nil)
				var at, ran atomic.Int32
				var late func()
				for i := range 4 {
					f.post(func() {
						ran.Add(1)
						if i > 0 && i < 3 { // the first and the last keep the lead, which is lent
							w := l.NewWaiter()
							go func() { w.End() }()
							// It takes the lead, runs what is queued, and releases the lead.
							if err := w.Wait(context.Background()); err != nil {
								t.Error(err)
							}
						}
						if at.Add(1) > 1 {
							t.Error("two callbacks run at once")
						}
						defer at.Add(-1)
						pause(10 * ms)
						if i < 2 {
							end()
						}
					})
					synctest.Wait()
					if i == 0 { // one that begins to wait meanwhile does not take the lead, free or lent
						late = startDrivers(t, l, 1, nil)
					}
				}
				pause(50 * ms)
				require.EqualValues(t, 4, ran.Load())
				stop()
				late()
				requireIdle(t, f, l)
			})
		})
	}
}

// TestDriverLosesTheLeadBeforeItsCallbacks checks that a driver that loses the lead before its
// callbacks run, to another one that runs some, leaves the rest to that.
func TestDriverLosesTheLeadBeforeItsCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		ctx, cancel := context.WithCancel(context.Background())
		var (
			all     sync.WaitGroup
			lost    atomic.Bool
			at, ran atomic.Int32
		)
		for range 2 {
			all.Go(func() {
				err := l.Drive(ctx, runner(func(p loop.Pass) {
					if !lost.Swap(true) {
						l.HandOn()
						pause(ms)
					}
					p.Run(true)
				}), nil)
				if err != context.Canceled {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for range 4 {
			f.post(func() {
				ran.Add(1)
				if at.Add(1) > 1 {
					t.Error("two callbacks run at once")
				}
				defer at.Add(-1)
				pause(10 * ms)
			})
		}
		pause(100 * ms)
		require.EqualValues(t, 4, ran.Load())
		cancel()
		all.Wait()
		requireIdle(t, f, l)
	})
}

// TestDriverBehindItsCallbacks checks that a driver whose functions behind its callbacks take long
// loses the lead to another one.
func TestDriverBehindItsCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		var once sync.Once
		hold := make(chan struct{})
		stop := startDrivers(t, l, 2, func() { once.Do(func() { <-hold }) })
		ran := make(chan bool, 2)
		f.post(func() { ran <- true })
		<-ran
		f.post(func() { ran <- true })
		begun := time.Now()
		<-ran
		require.LessOrEqual(t, time.Since(begun), 2*ms)
		close(hold)
		stop()
		requireIdle(t, f, l)
	})
}

// TestEndBeforePark checks that a completion between the check of a condition and the sleep of its
// wait is not missed.
func TestEndBeforePark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		leader, led := startWaiter(l)
		var over atomic.Bool
		looks := 0
		require.NoError(t, l.Wait(context.Background(), -1, func() bool {
			if looks++; looks == 2 { // in the loop, with no lock held
				defer l.Wake()
				defer over.Store(true)
			}
			return over.Load()
		}))
		f.post(leader.End)
		require.NoError(t, <-led)
		requireIdle(t, f, l)
	})
}

// TestEarlierDeadline checks that a waiter that parks with an earlier deadline than the leader
// polls until has that poll end in time.
func TestEarlierDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		never := func() bool { return false }
		leader, led := startWaiter(l)
		begun := time.Now()
		for _, d := range []time.Duration{30 * ms, 20 * ms, 10 * ms} {
			go func() {
				require.ErrorIs(t, l.Wait(context.Background(), d, never), os.ErrDeadlineExceeded)
				require.Equal(t, d, time.Since(begun))
			}()
			synctest.Wait()
		}
		pause(40 * ms)
		f.post(leader.End)
		require.NoError(t, <-led)
		requireIdle(t, f, l)
	})
}

// TestLeadReleasedDuringPark checks that a lead that is given up while another goroutine parks goes
// to that goroutine.
func TestLeadReleasedDuringPark(t *testing.T) {
	f, l := newFakeDriver()
	for range 5_000 {
		require.True(t, l.TryLead())
		w, end := l.NewWaiter(), make(chan error, 1)
		f.post(w.End)
		go func() { end <- w.Wait(context.Background()) }()
		runtime.Gosched()
		l.Unlead()
		select {
		case err := <-end:
			require.NoError(t, err)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "it sleeps, and none leads")
		}
	}
}

// TestTryLead checks that a goroutine that takes the lead for a moment hands it to one that began
// to wait meanwhile, and takes it only from one that is in callbacks.
func TestTryLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		require.True(t, l.TryLead())
		require.False(t, l.TryLead())
		w, end := startWaiter(l)
		l.Unlead()
		synctest.Wait()
		require.False(t, l.TryLead(), "w leads")
		f.post(w.End)
		require.NoError(t, <-end)
		w, end = startWaiter(l)
		f.post(func() {
			require.True(t, l.TryLead())
			l.Unlead()
			w.End()
		})
		require.NoError(t, <-end)
		requireIdle(t, f, l)
	})
}

// TestLoopUnderLoad checks that goroutines that wait with and without limits, in callbacks and
// outside, for completions from anywhere, all return; so do those whose callbacks end their
// goroutine.
func TestLoopUnderLoad(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f, l := newFakeDriver()
	var all, drivers sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for range 2 {
		drivers.Go(func() { _ = l.Drive(ctx, runner(func(p loop.Pass) { p.Run(false) }), nil) })
	}
	for i := range 16 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range 200 {
				w := l.NewWaiter()
				switch nested, kind := r.IntN(4) == 0, r.IntN(6); kind {
				case 0:
					go w.End()
				case 1:
					if err := l.Wait(context.Background(), time.Duration(r.IntN(200))*time.Microsecond, func() bool { return false }); err == nil {
						t.Error("the condition does not hold")
					}
					continue
				case 2:
					short, stop := context.WithTimeout(context.Background(), time.Duration(r.IntN(200))*time.Microsecond)
					if w.Wait(short) == nil {
						t.Error("the wait has not ended")
					}
					stop()
					continue
				case 3:
					var over atomic.Bool
					f.post(func() { over.Store(true); l.Wake() })
					if err := l.Wait(context.Background(), -1, over.Load); err != nil {
						t.Error(err)
					}
					continue
				case 4:
					if l.TryLead() {
						l.Unlead()
					}
					f.post(w.End)
				default:
					f.post(func() {
						if nested {
							inner := l.NewWaiter()
							f.post(inner.End)
							if err := inner.Wait(context.Background()); err != nil {
								t.Error(err)
							}
						}
						w.End()
					})
				}
				if err := w.Wait(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	cancel()
	drivers.Wait()
	require.Eventually(t, l.Quiet, 30*time.Second, time.Millisecond)
}

// TestYieldingGivesTheLeadToADriver checks that a goroutine that yields leads as others do while no
// goroutine in Drive is parked; then it gives the lead to that, and continues to wait.
func TestYieldingGivesTheLeadToADriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFakeDriver()
		w, end := l.NewYielding(), make(chan error, 1)
		go func() { end <- w.Wait(context.Background()) }()
		synctest.Wait()
		stop := startDrivers(t, l, 1, nil)
		require.Equal(t, 1, l.Parked())
		ran := false
		f.post(func() { ran = true })
		synctest.Wait()
		require.True(t, ran)
		require.NotNil(t, l.Runner())
		require.Equal(t, 1, l.Parked())
		require.Empty(t, end)
		f.post(w.End)
		require.NoError(t, <-end)
		stop()
		requireIdle(t, f, l)
	})
}
