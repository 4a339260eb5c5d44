package executor

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pollScript is a Poller in the time of the bubble.
type pollScript struct {
	alone   bool
	start   time.Time
	flushes int
	reads   atomic.Int32 // of the clock
}

func (s *pollScript) OneJobWaits() bool  { return s.alone }
func (s *pollScript) Flush()             { s.flushes++ }
func (s *pollScript) Now() time.Duration { s.reads.Add(1); return time.Since(s.start) + 1 }

// testPass is a loop.Pass.
type testPass struct {
	run    func(one bool)
	keep   func()
	polled time.Duration
	set    time.Duration // by SetClock
}

func (p *testPass) Run(one bool)               { p.run(one) }
func (p *testPass) Polled() time.Duration      { return p.polled }
func (p *testPass) SetClock(now time.Duration) { p.set = now }
func (p *testPass) Keep()                      { p.keep() }

// runPass is RunPass after a poll that has not read the clock.
func runPass[T comparable](i *Inline[T], run func(one bool), keep func()) {
	i.RunPass(&testPass{run: run, keep: keep, polled: -1})
}

// inlineTest has an Inline whose jobs are how long they block. It notes which of them ran on the goroutine that polls.
type inlineTest struct {
	e    *Executor[time.Duration]
	i    *Inline[time.Duration]
	poll *pollScript
	all  sync.WaitGroup

	mu    sync.Mutex
	here  int // jobs that ran while Pass did, on its goroutine
	total int
	polls string // the goroutine that polls
}

func newInlineTest() *inlineTest {
	x := &inlineTest{poll: &pollScript{start: time.Now()}}
	x.e = New(Options[time.Duration]{Go: x.all.Go, MaxRunning: 64, Run: func(d time.Duration) {
		on := goroutineName()
		pause(d)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.total++
		if on == x.polls {
			x.here++
		}
	}})
	x.i = NewInline(x.e, x.poll)
	return x
}

// goroutineName names the one that runs.
func goroutineName() string {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	for i, c := range b {
		if c == '[' {
			return string(b[:i])
		}
	}
	return string(b)
}

// pass runs one pass with jobs, and returns how many of them ran on the goroutine that polls.
func (x *inlineTest) pass(jobs ...time.Duration) (here int) {
	x.polls = goroutineName()
	x.poll.alone = len(jobs) == 1
	before := x.here
	runPass(x.i, func(bool) {
		for _, d := range jobs {
			x.i.Give(d)
		}
	}, nil)
	synctest.Wait()
	return x.here - before
}

func (x *inlineTest) end() {
	x.e.End()
	x.all.Wait()
}

// TestInline checks that quick jobs run on the goroutine that polls, alone and in a batch; one of a
// batch that blocks is the last to run there; when jobs were slow repeatedly the executor's
// goroutines run all of them, for a growing pause.
func TestInline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		require.Equal(t, 1, x.pass(0))
		require.Equal(t, 20, x.pass(make([]time.Duration, 20)...))
		require.Equal(t, 1, x.poll.flushes, "the first half of a batch leaves before the second has run")
		require.Equal(t, 2, x.pass(0, 2*maxBlocked, 0, 0, 0), "those behind one that blocks run elsewhere")
		require.Equal(t, 26, x.total)

		const slow = 2 * maxAlone
		for range (maxSlow - 1) / slowStep { // and the one of the batch, which has a count of its own
			require.Equal(t, 1, x.pass(slow))
		}
		require.Equal(t, 1, x.pass(slow), "the one that begins the pause")
		require.Zero(t, x.pass(0), "in the pause")
		require.Equal(t, 2, x.pass(0, 0), "jobs of one batch are judged by themselves")
		pause(firstPause)
		require.Equal(t, 1, x.pass(0), "after the pause")
		x.end()
	})
}

// TestInlineReadsTheClockOnce checks that the time of a single job begins when polling has ended,
// and the time at its end is that at which the next pass begins.
func TestInlineReadsTheClockOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		x.polls, x.poll.alone = goroutineName(), true
		pause(time.Second)
		for i, late := range []time.Duration{0, 2 * maxAlone} {
			p := &testPass{run: func(bool) { x.i.Give(0) }, polled: x.poll.Now() - late}
			x.poll.reads.Store(0)
			x.i.RunPass(p)
			require.Equal(t, i+1, x.here)
			require.EqualValues(t, 1, x.poll.reads.Load())
			require.Equal(t, x.poll.Now(), p.set)
			require.Equal(t, i*slowStep, x.i.alone.slow)
		}
		x.end()
	})
}

// TestInlineBesideOthers checks that while a goroutine of the executor runs a job, the one that
// polls runs none.
func TestInlineBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		x.e.Give(time.Second)
		require.Zero(t, x.pass(0))
		x.poll.alone = false
		runPass(x.i, func(bool) {
			before := x.total
			x.i.Give(0)
			synctest.Wait()
			require.Equal(t, before+1, x.total, "it waits for no callback")
		}, nil)
		require.Zero(t, x.pass(0, 0, 0))
		pause(time.Second)
		synctest.Wait()
		require.Equal(t, 1, x.pass(0))
		require.Equal(t, 7, x.total)
		x.end()
	})
}

// TestInlineEnded checks that a job that ends the goroutine that polls leaves the executor as after
// any other job.
func TestInlineEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			all sync.WaitGroup
			ran int
		)
		e := New(Options[bool]{Go: all.Go, MaxRunning: 4, Run: func(ends bool) {
			ran++
			if ends {
				runtime.Goexit()
			}
		}})
		i := NewInline(e, &pollScript{start: time.Now()})
		all.Go(func() {
			runPass(i, func(bool) {
				i.Give(true)
				i.Give(false)
			}, nil)
			t.Error("the job has not ended the goroutine")
		})
		synctest.Wait()
		require.Equal(t, 2, ran)
		require.Zero(t, e.running)
		e.End()
		all.Wait()
	})
}

// TestLasting checks that a job that may run for ever begins on the goroutine that polls, unless
// other jobs run; when it blocks, or announces that it will, the goroutine is its own, another one
// polls, and the jobs behind it run at once.
func TestLasting(t *testing.T) {
	for name, c := range map[string]struct {
		says bool
		kept int
	}{"returns": {}, "says that it blocks": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newInlineTest()
				defer x.end()
				x.poll.alone = true
				free := make(chan struct{})
				kept, ran := 0, 0
				on := ""
				x.e.opts.Run = func(d time.Duration) {
					ran++
					on = goroutineName()
					if c.says && ran == 1 {
						x.i.Blocks(d + 1) // another one
						require.Zero(t, kept)
						x.i.Blocks(d)
						x.i.Blocks(d)
						<-free
					}
				}
				passed := make(chan struct{})
				var here string
				go func() {
					defer close(passed)
					here = goroutineName()
					runPass(x.i, func(one bool) {
						require.True(t, one)
						x.i.GiveLasting(0)
						require.Zero(t, ran)
					}, func() { kept++ })
				}()
				synctest.Wait()
				require.Equal(t, 1, ran)
				require.Equal(t, here, on)
				require.Equal(t, c.kept, kept)
				require.Zero(t, x.e.stays)
				close(free)
				<-passed
				require.Equal(t, c.kept, kept)
				require.Zero(t, x.e.stays)
				x.e.GiveLasting(0)
				synctest.Wait()
				require.NotEqual(t, here, on)
			})
		})
	}
}

// TestLastingBlocks checks that the next polling goroutine takes over from one that such a job
// keeps. After three of them none begins there for a while.
func TestLastingBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		defer x.end()
		x.poll.alone = true
		free := make(chan struct{})
		defer close(free)
		x.e.opts.Run = func(time.Duration) { <-free }
		for i := range 4 {
			kept, passed := 0, false
			x.all.Go(func() {
				runPass(x.i, func(bool) { x.i.GiveLasting(time.Duration(i)) }, func() { kept++ })
				passed = true
			})
			synctest.Wait()
			if i == 3 {
				require.True(t, passed, "it is not kept")
				break
			}
			require.Equal(t, 1, x.e.stays)
			runPass(x.i, func(bool) {}, nil)
			require.Equal(t, 1, kept)
			require.False(t, passed)
			require.Zero(t, x.e.stays)
		}
	})
}

// TestLastingTakesNoPlace checks that a job that runs on the goroutine that polls, and waits for
// another one, does not count for MaxRunning.
func TestLastingTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		defer x.end()
		x.e.opts.MaxRunning = 1
		x.poll.alone = true
		var here, on, other string
		ran := make(chan struct{})
		x.e.opts.Run = func(d time.Duration) {
			if d > 0 {
				other = goroutineName()
				close(ran)
				return
			}
			on = goroutineName()
			x.e.Give(1)
			select {
			case <-ran:
			case <-time.After(time.Second):
				t.Error("the other job has not run")
			}
		}
		x.all.Go(func() {
			here = goroutineName()
			runPass(x.i, func(bool) { x.i.GiveLasting(0) }, nil)
		})
		synctest.Wait()
		require.Equal(t, here, on)
		require.NotEqual(t, here, other)
	})
}

// TestInlineLeftJobRuns checks that a job that was left to the goroutine that polls does not wait for
// jobs that began elsewhere meanwhile, and block.
func TestInlineLeftJobRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		defer x.end()
		x.poll.alone = true
		runPass(x.i, func(bool) {
			for range shared() {
				x.e.Give(time.Minute)
			}
			x.i.Give(0)
		}, nil)
		pause(time.Second)
		x.mu.Lock()
		defer x.mu.Unlock()
		require.Equal(t, 1, x.total)
	})
}

// TestInlinePausesOncePerPass checks that slow jobs of one pass begin one pause, however many they
// are; those that are slow after it double it.
func TestInlinePausesOncePerPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		defer x.end()
		slow := slices.Repeat([]time.Duration{maxInBatch + time.Microsecond}, 40)
		require.Equal(t, 40, x.pass(slow...))
		require.Zero(t, x.pass(0, 0), "in the pause")
		pause(firstPause)
		require.Equal(t, 40, x.pass(slow...), "after the pause")
		pause(firstPause)
		require.Zero(t, x.pass(0, 0), "in the second pause, which is longer")
		pause(firstPause)
		require.Equal(t, 2, x.pass(0, 0), "after the second pause")
	})
}

// TestInlinesOfOneExecutor checks that a pass does not affect another Inline of the executor: jobs
// that are left to that run on its own goroutine, and a job of GiveLasting that blocks there has it
// replaced.
func TestInlinesOfOneExecutor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newInlineTest()
		defer x.end()
		other := NewInline(x.e, &pollScript{alone: true, start: time.Now()})
		beside := func() { // a pass of other, on its own goroutine
			x.all.Go(func() { runPass(other, func(bool) {}, nil) })
			synctest.Wait()
		}
		x.polls = goroutineName()
		runPass(x.i, func(bool) {
			beside()
			x.i.Give(0)
			x.i.Give(0)
		}, nil)
		synctest.Wait()
		require.Equal(t, 2, x.here)

		kept, on := 0, ""
		x.e.opts.Run = func(d time.Duration) {
			on = goroutineName()
			x.i.Blocks(d)
		}
		x.poll.alone = true
		runPass(x.i, func(bool) {
			x.i.GiveLasting(1)
			beside()
			require.Empty(t, on)
		}, func() { kept++ })
		synctest.Wait()
		require.Equal(t, x.polls, on)
		require.Equal(t, 1, kept)
	})
}
