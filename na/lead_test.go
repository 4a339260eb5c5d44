package na

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A leadTest is a context whose time passes only where the test advances it: in Poll, in callbacks, in
// a look at the source, in sleep.
type leadTest struct {
	*testing.T
	c      *Context
	f      *fakeCarrier
	clock  time.Duration
	source leadTestSource

	polls  int             // at the descriptors
	last   time.Duration   // of them
	gap    time.Duration   // the longest between two
	sleeps []time.Duration // in the order of the calls
}

// leadTestSource is an Inlet in which letters arrive now and then.
type leadTestSource struct {
	b     *leadTest
	takes time.Duration // a look
	next  func() bool
	peeks int
	arms  int
}

func (s *leadTestSource) Peek() bool {
	s.peeks++
	s.b.clock += s.takes
	return s.next != nil && s.next()
}
func (s *leadTestSource) Arm() bool { s.arms++; return false }
func (s *leadTestSource) Disarm()   {}

func newLeadTest(t *testing.T, cfg Config) *leadTest {
	b := &leadTest{T: t, clock: time.Second}
	b.source.b = b
	p := &fakePlugin{unassisted: true, now: func() time.Duration { return b.clock },
		sources: func(c *Context) { c.poller.AddInlet(&b.source) }}
	b.c, b.f = newFakeOf(t, p, cfg)
	b.c.waits = b
	b.c.spinner.procs = 1000 // other tests may spin
	b.last = b.clock
	return b
}

// wait, sleep, dispatch and wake implement waiter.
func (b *leadTest) wait(time.Duration) int { b.look(); return 0 }
func (b *leadTest) dispatch(int)           {}
func (b *leadTest) wake()                  {}

func (b *leadTest) sleep(d time.Duration) int {
	b.sleeps = append(b.sleeps, d)
	if d < 0 {
		b.c.Wake() // or it would never end
	} else {
		b.clock += d
	}
	b.look()
	return 0
}

func (b *leadTest) look() {
	b.polls++
	b.gap, b.last = max(b.gap, b.clock-b.last), b.clock
}

// begin starts an operation with the callback done.
func (b *leadTest) begin(done func()) *Op {
	op := b.c.NewOp(func(*Op, Result) { done() })
	require.NoError(b, b.c.RecvUnexpected(op))
	return op
}

// TestLeaderPollsInEveryTurn checks that the sockets are polled in every turn, whatever
// is ready without a poll.
func TestLeaderPollsInEveryTurn(t *testing.T) {
	const turn, turns = 10 * time.Microsecond, 2000
	worlds := map[string]func(b *leadTest, more func() bool){
		"Poll ends an operation each time": func(b *leadTest, more func() bool) { // a transfer to itself, timers
			var op *Op
			var again func()
			again = func() {
				if more() {
					op = b.begin(again)
				}
			}
			again()
			poll := func(time.Duration) {
				b.clock += turn
				b.f.end(op, Result{})
			}
			b.f.onPoll.Store(&poll)
		},
		"each callback queues the next one": func(b *leadTest, more func() bool) {
			var again func()
			again = func() {
				b.clock += turn
				if more() {
					b.f.end(b.begin(again), Result{})
				}
			}
			b.f.end(b.begin(again), Result{})
		},
		"Poll asks for another poll each time": func(b *leadTest, more func() bool) { // a carrier that has more to send
			op := b.begin(func() {})
			poll := func(time.Duration) {
				b.clock += turn
				if more() {
					b.c.pollSoon()
				} else {
					b.f.end(op, Result{})
				}
			}
			b.f.onPoll.Store(&poll)
		},
		"a source never runs dry": func(b *leadTest, more func() bool) { // a peer that floods shared memory
			op := b.begin(func() {})
			b.source.takes = turn
			b.source.next = func() bool {
				if !more() {
					b.f.end(op, Result{})
				}
				return true
			}
		},
	}
	drivers := map[string]func(c *Context, over func() bool){
		"Progress": func(c *Context, over func() bool) {
			for !over() {
				_ = c.Progress(-1)
				c.Trigger(0)
			}
		},
		"Wait": func(c *Context, over func() bool) {
			_ = c.loop.Wait(context.Background(), -1, over)
		},
	}
	for world, start := range worlds {
		for driver, drive := range drivers {
			t.Run(world+"/"+driver, func(t *testing.T) {
				b := newLeadTest(t, Config{})
				n := 0
				start(b, func() bool { n++; return n < turns })
				drive(b.c, func() bool { return n >= turns })
				b.gap = max(b.gap, b.clock-b.last)
				require.LessOrEqual(t, b.gap, 5*time.Millisecond, "between two looks at the descriptors, of %d in %d turns", b.polls, turns)
				require.Less(t, b.polls, turns/2, "it does not cost a system call each turn")
			})
		}
	}
}

// TestInletsPolledWhileSending checks that the inlets are polled in every turn in which a carrier has
// more to send, even if operations complete in each.
func TestInletsPolledWhileSending(t *testing.T) {
	const turns = 100
	b := newLeadTest(t, Config{})
	n := 0
	var op *Op
	begin := func() { op = b.begin(func() {}) }
	begin()
	poll := func(now time.Duration) {
		b.clock += 10 * time.Microsecond
		n++
		b.f.timer.Store(int64(now)) // has more to send
		b.f.end(op, Result{})
	}
	b.f.onPoll.Store(&poll)
	for n < turns {
		require.NoError(t, b.c.Progress(-1))
		require.Equal(t, 1, b.c.Trigger(0))
		begin()
	}
	require.GreaterOrEqual(t, b.source.peeks, turns)
	require.Less(t, b.polls, turns/2, "the descriptors are polled less often, because that needs a system call")
}

// TestProgressWhileSending checks that a Progress with timeout 0 polls until the carriers have nothing
// more to send, but no more than 1+maxRepeats times.
func TestProgressWhileSending(t *testing.T) {
	b := newLeadTest(t, Config{})
	n, most := 0, 0
	poll := func(now time.Duration) {
		if n++; n < most {
			b.f.timer.Store(int64(now)) // has more to send
		} else {
			b.f.timer.Store(0)
		}
	}
	b.f.onPoll.Store(&poll)
	for _, c := range []struct{ most, want int }{{1, 1}, {4, 4}, {100, 1 + maxRepeats}} {
		n, most = 0, c.most
		require.ErrorIs(t, b.c.Progress(0), ErrTimeout)
		require.Equal(t, c.want, n)
	}
	b.f.timer.Store(0)
}

// TestSpinUntilTimer checks a spinner that may poll for longer than until the next timer: the
// leader polls until that is due, runs it, and polls on.
func TestSpinUntilTimer(t *testing.T) {
	b := newLeadTest(t, Config{Spin: time.Second})
	b.source.takes = time.Microsecond
	op := b.begin(func() {})
	polls := 0
	poll := func(now time.Duration) { // a timer each 100 us
		polls++
		b.f.timer.Store(int64(now + 100*time.Microsecond))
	}
	b.f.onPoll.Store(&poll)
	come := b.clock + 350*time.Microsecond
	b.source.next = func() bool {
		if b.clock < come {
			return false
		}
		b.f.end(op, Result{})
		return true
	}
	require.NoError(t, b.c.Progress(-1))
	require.Empty(t, b.sleeps, "sleeps although it polls for up to a second")
	require.GreaterOrEqual(t, polls, 4, "Poll is called when the timer is due")
	require.LessOrEqual(t, b.clock-come, 20*time.Microsecond, "the answer is seen late")
	require.Equal(t, 1, b.c.Trigger(0))
}

// TestTimerSetWhileSpinning checks that a timer that is set while the leader polls ends in time,
// however long the leader may poll.
func TestTimerSetWhileSpinning(t *testing.T) {
	b := newLeadTest(t, Config{Spin: time.Second})
	b.source.takes = time.Microsecond
	op := b.begin(func() {})
	set, due := b.clock+200*time.Microsecond, b.clock+300*time.Microsecond
	b.source.next = func() bool {
		if b.clock >= set && b.f.timer.Load() == 0 { // by another goroutine
			b.f.timer.Store(int64(due))
			b.c.pollSoon()
		}
		return false
	}
	poll := func(now time.Duration) {
		if now >= due {
			b.f.end(op, Result{})
		}
	}
	b.f.onPoll.Store(&poll)
	require.NoError(t, b.c.Progress(-1))
	require.Empty(t, b.sleeps)
	require.LessOrEqual(t, b.clock-due, 20*time.Microsecond, "the timer ends late")
	require.Equal(t, 1, b.c.Trigger(0))
}

// TestTimersDoNotProlongSpinning checks that while nothing arrives, timers that are due meanwhile
// neither prolong the polling nor count as an end of it.
func TestTimersDoNotProlongSpinning(t *testing.T) {
	const limit = 50 * time.Microsecond
	for _, every := range []time.Duration{9 * time.Microsecond, 30 * time.Microsecond, 70 * time.Microsecond} {
		b := newLeadTest(t, Config{Spin: limit})
		b.source.takes = time.Microsecond
		poll := func(now time.Duration) { b.f.timer.Store(int64(now + every)) }
		b.f.onPoll.Store(&poll)
		require.ErrorIs(t, b.c.Progress(10*time.Millisecond), ErrTimeout)
		polled := time.Duration(b.source.peeks)
		require.GreaterOrEqual(t, polled*time.Microsecond, spinMisses*limit, "timers each %v: it polls", every)
		require.Equal(t, spinMisses, b.c.spinner.misses, "timers each %v: and gives up for good", every)
		asleep := time.Duration(0)
		for _, d := range b.sleeps {
			asleep += d
		}
		require.Greater(t, asleep, 8*time.Millisecond, "timers each %v: after that it sleeps", every)
	}
}

// TestSleepAfterSpinEndsWithTimer checks that a leader that has polled without effect blocks for
// the rest of the time until the timer.
func TestSleepAfterSpinEndsWithTimer(t *testing.T) {
	b := newLeadTest(t, Config{Spin: 50 * time.Microsecond})
	b.source.takes = time.Microsecond
	due := b.clock + 80*time.Microsecond
	op := b.begin(func() {})
	poll := func(now time.Duration) {
		if b.f.timer.Store(int64(due)); now >= due {
			b.f.end(op, Result{})
		}
	}
	b.f.onPoll.Store(&poll)
	require.NoError(t, b.c.Progress(-1))
	require.Len(t, b.sleeps, 1)
	require.LessOrEqual(t, b.clock-due, 5*time.Microsecond, "the timer ends late: the leader has slept for %v", b.sleeps)
	require.Equal(t, 1, b.c.Trigger(0))
}

// TestDueTimerDoesNotBlock checks that work that is due now is done without blocking in between, which
// would arm bells and disarm them.
func TestDueTimerDoesNotBlock(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0} {
		b := newLeadTest(t, Config{Spin: spin})
		op := b.begin(func() {})
		polls := 0
		poll := func(now time.Duration) {
			b.f.timer.Store(int64(now))
			if polls++; polls == 100 {
				b.f.end(op, Result{})
			}
		}
		b.f.onPoll.Store(&poll)
		require.NoError(t, b.c.Progress(-1))
		require.Zero(t, b.source.arms)
		require.GreaterOrEqual(t, b.polls, 99, "a look between two of them")
		require.Equal(t, 1, b.c.Trigger(0))
	}
}
