package na

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// patience bounds waits for events that are immediate on a machine that is not busy.
const patience = 30 * time.Second

// receiveWithin waits on the wall's clock.
func receiveWithin[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
	return v
}

// eventually polls on the wall's clock.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// startProgress runs Progress in a goroutine and returns once it blocks.
func startProgress(t *testing.T, c *Context, timeout time.Duration) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Progress(timeout) }()
	eventually(t, "Progress sleeps", c.isAsleep)
	return done
}

func TestProgressReturns(t *testing.T) {
	c, f := newFake(t, Config{})
	require.ErrorIs(t, c.Progress(0), os.ErrDeadlineExceeded)
	require.EqualValues(t, 1, f.polls.Load(), "zero polls once")
	begin := c.Now()
	require.ErrorIs(t, c.Progress(20*time.Millisecond), ErrTimeout)
	require.GreaterOrEqual(t, c.Now()-begin, 20*time.Millisecond)

	op := c.NewOp(func(*Op, Result) {})
	require.NoError(t, c.RecvUnexpected(op))
	done := startProgress(t, c, -1)
	f.end(op, Result{})
	require.NoError(t, receiveWithin(t, done, "Progress returns at a completion"))
	require.NoError(t, c.Progress(-1), "as long as a callback waits")
	require.Equal(t, 1, c.Trigger(0))

	done = startProgress(t, c, time.Hour)
	c.Wake()
	require.NoError(t, receiveWithin(t, done, "Progress returns at Wake"))
	require.ErrorIs(t, c.Progress(0), ErrTimeout, "a wake-up counts once")
	c.Wake()
	require.NoError(t, c.Progress(-1), "a wake-up before Progress counts")
}

func TestProgressAbove(t *testing.T) {
	c, _ := newFake(t, Config{})
	ran := 0
	var task Task
	task.Init(func(data any) int { require.Equal(t, "data", data); ran++; return 2 }, "data")
	require.ErrorIs(t, c.Progress(0), ErrTimeout)
	done := startProgress(t, c, -1)
	require.True(t, c.Upper().Queue(&task))
	require.NoError(t, receiveWithin(t, done, "Progress returns for the layer above"))
	require.NoError(t, c.Progress(0))
	require.Equal(t, 2, c.Trigger(0), "it returns the number of callbacks that ran")
	require.Equal(t, 1, ran)
	require.ErrorIs(t, c.Progress(0), ErrTimeout)
}

// TestProgressTimers checks that PollSoon makes a blocked leader look at a timer that is set
// meanwhile.
func TestProgressTimers(t *testing.T) {
	c, f := newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) {})
	require.NoError(t, c.RecvUnexpected(op))
	due := c.Now() + 30*time.Millisecond
	var early atomic.Bool
	poll := func(now time.Duration) {
		if f.timer.Load() == 0 {
			return
		}
		if now < due {
			early.Store(true)
			return
		}
		f.timer.Store(0)
		f.end(op, Result{})
	}
	f.onPoll.Store(&poll)
	done := startProgress(t, c, -1)
	f.timer.Store(int64(due))
	c.pollSoon()
	require.NoError(t, receiveWithin(t, done, "the timer fires"))
	require.GreaterOrEqual(t, c.Now(), due)
	require.True(t, early.Load(), "PollSoon made the leader look before it was due")
	c.Trigger(0)
}

// TestTimerBeforeSleep checks that a timer is not missed that another goroutine sets after the
// leader has looked at the timers and before it blocks.
func TestTimerBeforeSleep(t *testing.T) {
	c, f := newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) {})
	require.NoError(t, c.RecvUnexpected(op))
	late := func() {
		if f.onTimer.Swap(nil) != nil {
			f.timer.Store(int64(c.Now() + time.Millisecond))
			c.pollSoon()
		}
	}
	poll := func(now time.Duration) {
		if at := f.timer.Load(); at != 0 && int64(now) >= at {
			f.timer.Store(0)
			f.end(op, Result{})
		}
	}
	f.onPoll.Store(&poll)
	f.onTimer.Store(&late)
	done := make(chan error, 1)
	go func() { done <- c.Progress(-1) }()
	require.NoError(t, receiveWithin(t, done, "the timer fires"))
	c.Trigger(0)
}

// TestFollowers checks that with one leader and several followers a completion reaches one that
// triggers it, whichever goroutines are blocked.
func TestFollowers(t *testing.T) {
	c, f := newFake(t, Config{})
	const followers, ops = 5, 200
	ran := make(chan struct{}, ops)
	var over atomic.Bool
	var wg sync.WaitGroup
	for range followers {
		wg.Go(func() {
			for !over.Load() {
				if err := c.Progress(time.Hour); err != nil {
					t.Errorf("Progress: %v", err)
				}
				c.Trigger(1)
			}
		})
	}
	for range ops {
		op := c.NewOp(func(*Op, Result) { ran <- struct{}{} })
		require.NoError(t, c.RecvUnexpected(op))
		f.end(op, Result{})
		receiveWithin(t, ran, "somebody runs the callback")
	}
	over.Store(true)
	gone := make(chan struct{})
	go func() { wg.Wait(); close(gone) }()
	eventually(t, "all return", func() bool {
		c.Wake() // each wake-up makes one return
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
}

func TestFollowerTimesOut(t *testing.T) {
	c, _ := newFake(t, Config{})
	leader := startProgress(t, c, time.Hour)
	require.ErrorIs(t, c.Progress(0), ErrTimeout)
	begin := c.Now()
	require.ErrorIs(t, c.Progress(10*time.Millisecond), ErrTimeout)
	require.GreaterOrEqual(t, c.Now()-begin, 10*time.Millisecond)
	c.Wake()
	require.NoError(t, receiveWithin(t, leader, "the leader returns"))
}

// TestFollowerLeads checks that a follower takes over when the leader returns.
func TestFollowerLeads(t *testing.T) {
	c, f := newFake(t, Config{})
	leader := startProgress(t, c, time.Hour)
	op := c.NewOp(func(*Op, Result) {})
	require.NoError(t, c.RecvUnexpected(op))
	follower := make(chan error, 1)
	go func() { follower <- c.Progress(9 * time.Hour) }()
	eventually(t, "the second follows", func() bool { return c.loop.Parked() == 1 })
	f.plugin.skew.Store(int64(2 * time.Hour))
	c.pollSoon()
	require.ErrorIs(t, receiveWithin(t, leader, "the leader's time is over"), ErrTimeout)
	eventually(t, "the second leads", func() bool { return c.loop.Parked() == 0 && c.isAsleep() })
	f.end(op, Result{})
	require.NoError(t, receiveWithin(t, follower, "the second gets the completion"))
	c.Trigger(0)
}

func TestTrigger(t *testing.T) {
	c, f := newFake(t, Config{})
	var order []int
	for i := range 6 {
		op := c.NewOp(func(op *Op, _ Result) {
			order = append(order, i)
			if i == 0 && c.RecvUnexpected(op) == nil { // an operation started here waits for the next Trigger
				f.end(op, Result{})
			}
		})
		require.NoError(t, c.RecvUnexpected(op))
		f.end(op, Result{})
	}
	require.Equal(t, 6, c.Upper().Queued())
	require.Equal(t, 2, c.Trigger(2))
	require.Equal(t, []int{0, 1}, order)
	require.Equal(t, 5, c.Trigger(-1))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 0}, order)
	require.Equal(t, 1, c.Trigger(0), "the one that its own callback has started again")
	c.Close()
}

func TestStartChecks(t *testing.T) {
	c, f := newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) { t.Error("a refused operation has ended") })
	local, err := c.Class().NewMem(make([]byte, 10))
	require.NoError(t, err)
	key := Key{Len: 10, Access: ReadWrite}
	readable, writable := Key{Len: 10, Access: ReadOnly}, Key{Len: 10, Access: WriteOnly}
	for i, c := range []struct {
		err  error
		code Code
		text string
	}{
		{c.SendUnexpected(op, fakePeer, 0, make([]byte, 4097)), ErrMsgSize, "na: send unexpected fake://there: message of 4097 bytes, limit 4096"},
		{c.SendExpected(op, fakePeer, 0, make([]byte, 4097)), ErrMsgSize, "message of 4097 bytes, limit 4096"},
		{c.SendUnexpected(op, Addr{}, 0, nil), ErrInvalid, "na: send unexpected: empty peer address"},
		{c.SendExpected(op, Addr{}, 0, nil), ErrInvalid, "empty peer address"},
		{c.RecvExpected(op, Addr{}, 0, nil), ErrInvalid, "empty peer address"},
		{c.Put(op, nil, 0, fakePeer, key, 0, 1), ErrInvalid, "local memory is nil"},
		{c.Put(op, local, 5, fakePeer, key, 0, 6), ErrInvalid, "6 bytes at offset 5 lie outside local memory of 10 bytes"},
		{c.Get(op, local, 0, fakePeer, key, 9, 2), ErrInvalid, "2 bytes at offset 9 lie outside remote memory of 10 bytes"},
		{c.Get(op, local, 0, fakePeer, key, -1, 2), ErrInvalid, "outside remote memory"},
		{c.Get(op, local, 0, fakePeer, writable, 0, 2), ErrPermission, "remote memory allows write, get needs read"},
		{c.Put(op, local, 0, fakePeer, readable, 0, 2), ErrPermission, "remote memory allows read, put needs write"},
		{c.Put(op, local, 0, Addr{}, key, 0, 2), ErrInvalid, "empty peer address"},
		{func() error { _, err := c.Upper().Lease(op, Addr{}, 0, nil); return err }(), ErrInvalid, "empty peer address"},
	} {
		require.ErrorIs(t, c.err, c.code, "row %d", i)
		require.ErrorContains(t, c.err, c.text)
		var oe *OpError
		require.ErrorAs(t, c.err, &oe)
		require.Equal(t, NotRun, oe.Fate)
	}
	require.False(t, op.Busy())
	require.Zero(t, c.Live())
	require.Zero(t, c.Trigger(0))
	require.Empty(t, f.e.ops)
	require.Zero(t, c.Class().Regions())
	require.Empty(t, f.e.dom.mems)
}

func TestOnFault(t *testing.T) {
	c, _ := newFake(t, Config{})
	c.reportLost(fakePeer, ErrPeerLost)
	require.Zero(t, c.Upper().Queued(), "there is no OnFault function")
	var heard []string
	for i := range 2 {
		c.OnFault(func(peer Addr, err error) { heard = append(heard, fmt.Sprint(i, " ", peer, " ", err)) })
	}
	c.reportLost(fakePeer, ErrPeerLost)
	require.Empty(t, heard)
	require.Equal(t, 1, c.Trigger(0))
	require.Equal(t, []string{"0 fake://there peer lost", "1 fake://there peer lost"}, heard)

	for range maxFaults + 100 { // no goroutine calls Trigger
		c.reportLost(fakePeer, ErrPeerLost)
	}
	require.Equal(t, maxFaults+1, c.Upper().Queued())
	more := []string{"0 <no address> " + errMoreLost.Error(), "1 <no address> " + errMoreLost.Error()}
	heard = nil
	c.Trigger(maxFaults)
	require.Len(t, heard, 2*maxFaults)
	require.NotContains(t, heard, more[0])
	heard = nil
	c.Trigger(0)
	require.Equal(t, more, heard, "there were more")
	c.reportLost(fakePeer, ErrPeerLost)
	require.Equal(t, 1, c.Trigger(0), "there is room again")

	for range maxFaults + 1 {
		c.reportLost(fakePeer, ErrPeerLost)
	}
	c.Trigger(1)
	for range 2 {
		c.reportLost(fakePeer, ErrPeerLost)
	}
	heard = nil
	c.Trigger(0)
	require.Len(t, heard, 2*(maxFaults+1))
	require.Equal(t, more, heard[2*maxFaults:], "losses after some have run are reported, too")
}

// TestOnFaultRemoved checks that a function that was removed is not called any more, not even for
// earlier losses.
func TestOnFaultRemoved(t *testing.T) {
	c, _ := newFake(t, Config{})
	var heard []int
	var remove [3]func()
	for i := range remove {
		remove[i] = c.OnFault(func(Addr, error) {
			if heard = append(heard, i); i == 0 {
				remove[0]()
			}
		})
	}
	c.reportLost(fakePeer, ErrPeerLost)
	remove[1]()
	remove[1]()
	require.Equal(t, 1, c.Trigger(0))
	require.Equal(t, []int{0, 2}, heard)
	c.reportLost(fakePeer, ErrPeerLost)
	c.Trigger(0)
	require.Equal(t, []int{0, 2, 2}, heard)
	remove[2]()
	c.reportLost(fakePeer, ErrPeerLost)
	require.Zero(t, c.Trigger(0), "there is no OnFault function")
}

// TestAbandonNotifiesLayer checks that the layer above is notified of each abandoned message at once,
// and queues its work: nothing is dropped before a Trigger.
func TestAbandonNotifiesLayer(t *testing.T) {
	c, _ := newFake(t, Config{})
	c.reportAbandoned(&Envelope{})
	require.Zero(t, c.Upper().Queued(), "there is no OnFault function")
	reported, ran := 0, 0
	var tasks []*Task
	c.Upper().OnAbandon(func(e *Envelope) {
		require.Equal(t, Tag(reported), e.Tag)
		reported++
		task := &Task{}
		task.Init(func(any) int { ran++; return 0 }, nil)
		tasks = append(tasks, task)
		require.True(t, c.Upper().Queue(task))
	})
	const many = 3000
	for i := range many {
		c.reportAbandoned(&Envelope{Tag: Tag(i)})
	}
	require.Equal(t, many, reported)
	c.Trigger(0)
	require.Equal(t, many, ran)
}

func TestContextClose(t *testing.T) {
	c, f := newFake(t, Config{})
	var ends []error
	for range 3 {
		require.NoError(t, c.RecvUnexpected(c.NewOp(func(_ *Op, r Result) {
			ends = append(ends, r.Err)
			require.False(t, c.Closed(), "closed while a callback runs")
		})))
	}
	c.Close()
	c.Close()
	require.EqualValues(t, 1, f.shut.Load())
	require.Zero(t, f.released.Load())
	require.Empty(t, ends)
	require.False(t, c.Closed())
	require.NoError(t, c.Progress(0), "callbacks wait")
	require.Equal(t, 3, c.Trigger(0))
	for _, err := range ends {
		require.ErrorIs(t, err, ErrClosed)
	}
	require.True(t, c.Closed(), "after the last callback")
	require.EqualValues(t, 1, f.released.Load())
	require.ErrorIs(t, c.Progress(-1), ErrClosed)
	require.Zero(t, c.Trigger(0))
	require.False(t, c.Class().Closed())
	op := c.NewOp(func(*Op, Result) { t.Error("an operation of a closed context has ended") })
	require.ErrorIs(t, c.RecvUnexpected(op), ErrClosed)
	require.ErrorIs(t, c.Lookup(op, "fake://x"), ErrClosed)
	require.ErrorIs(t, c.SendUnexpected(op, fakePeer, 0, nil), ErrClosed)
	_, err := c.Upper().Lease(op, fakePeer, 0, []byte("x"))
	require.ErrorIs(t, err, ErrClosed)
	require.Zero(t, c.Class().Regions())
	op.Cancel()
	c.Wake()
	c.pollSoon()
	require.False(t, op.Busy())
}

// TestCloseWakesSleepers checks that Close wakes a goroutine that is blocked in Progress, and
// everything is given back.
func TestCloseWakesSleepers(t *testing.T) {
	c, f := newFake(t, Config{})
	leader := startProgress(t, c, time.Hour)
	follower := make(chan error, 1)
	go func() { follower <- c.Progress(time.Hour) }()
	eventually(t, "the second follows", func() bool { return c.loop.Parked() == 1 })
	c.Close()
	require.ErrorIs(t, receiveWithin(t, leader, "the leader returns at Close"), ErrClosed)
	require.ErrorIs(t, receiveWithin(t, follower, "the follower returns at Close"), ErrClosed)
	require.EqualValues(t, 1, f.released.Load())
	require.True(t, c.Closed())
}

func TestCloseInCallback(t *testing.T) {
	c, f := newFake(t, Config{})
	order := ""
	first := c.NewOp(func(*Op, Result) {
		order += "first "
		require.NoError(t, c.Class().Close())
		require.False(t, c.Closed())
	})
	second := c.NewOp(func(_ *Op, r Result) { order += "second"; require.ErrorIs(t, r.Err, ErrClosed) })
	require.NoError(t, c.RecvUnexpected(first))
	require.NoError(t, c.RecvUnexpected(second))
	f.end(first, Result{})
	require.Equal(t, 1, c.Trigger(0))
	require.False(t, c.Closed())
	require.Equal(t, 1, c.Trigger(0))
	require.Equal(t, "first second", order)
	require.True(t, c.Closed())
	require.True(t, c.Class().Closed())
	require.EqualValues(t, 1, f.plugin.closed.Load())
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	c, _ := newFake(t, Config{})
	ran := 0
	require.NoError(t, c.RecvUnexpected(c.NewOp(func(*Op, Result) { ran++ })))
	require.NoError(t, c.Shutdown(context.Background()))
	require.Equal(t, 1, ran)
	require.True(t, c.Closed())
	require.NoError(t, c.Shutdown(context.Background()))

	// One that cannot drain: the memory of a Deregister is in use.
	c, f := newFake(t, Config{})
	m, err := c.Class().Register(ReadOnly, make([]byte, 8))
	require.NoError(t, err)
	require.True(t, m.Acquire())
	require.NoError(t, c.Deregister(c.NewOp(func(*Op, Result) { ran++ }), m))
	cause := errors.New("in a hurry")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	err = c.Shutdown(ctx)
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, "1 operations in flight")
	m.Release()
	require.NoError(t, c.Shutdown(context.Background()))
	require.Equal(t, 2, ran)
	require.EqualValues(t, 1, f.released.Load())

	// Inside a callback.
	c, f = newFake(t, Config{})
	op := c.NewOp(func(*Op, Result) { err = c.Shutdown(context.Background()) })
	require.NoError(t, c.RecvUnexpected(op))
	f.end(op, Result{})
	c.Trigger(0)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "from a callback")
	require.Zero(t, f.shut.Load(), "a Shutdown that refuses closes nothing")

	// Inside a callback of another.
	other, _ := newFake(t, Config{})
	op = c.NewOp(func(*Op, Result) { err = other.Shutdown(context.Background()) })
	require.NoError(t, c.RecvUnexpected(op))
	f.end(op, Result{})
	c.Trigger(0)
	require.NoError(t, err)
	require.True(t, other.Closed())
}

func TestClass(t *testing.T) {
	p := &fakePlugin{}
	cls, err := Open("fake://here", Config{Plugins: []Plugin{p}, Contexts: 3})
	require.NoError(t, err)
	require.Equal(t, 3, cls.Config().Contexts)
	require.Equal(t, 32, cls.Config().Envelopes)
	require.Equal(t, MakeAddr("fake://here", 0), cls.Addr())
	require.Equal(t, "fake", cls.Limits().Scheme)
	var all []*Context
	for i := range 3 {
		c, err := cls.NewContext()
		require.NoError(t, err)
		require.Equal(t, i, c.ID())
		require.Equal(t, cls.Addr().WithTarget(i), c.Self())
		require.Same(t, cls, c.Class())
		all = append(all, c)
	}
	_, err = cls.NewContext()
	require.ErrorIs(t, err, ErrAgain)
	all[1].Close()
	require.True(t, all[1].Closed())
	require.False(t, cls.Closed())
	require.NoError(t, cls.Close())
	require.NoError(t, cls.Close())
	require.True(t, cls.Closed())
	require.EqualValues(t, 1, p.closed.Load(), "the network is closed once")
	_, err = cls.NewContext()
	require.ErrorIs(t, err, ErrClosed)

	p.carrierErr = WithText(ErrNoMemory, "no")
	cls, err = Open("fake://here", Config{Plugins: []Plugin{p}})
	require.NoError(t, err)
	_, err = cls.NewContext()
	require.ErrorIs(t, err, ErrNoMemory)
	p.carrierErr = nil
	c, err := cls.NewContext() // nothing is left of the one that failed
	require.NoError(t, err)
	require.Zero(t, c.ID())
	require.NoError(t, cls.Close())
	require.True(t, cls.Closed())
	cls, err = Open("fake://here", Config{Plugins: []Plugin{p}})
	require.NoError(t, err)
	require.NoError(t, cls.Close(), "without contexts")
	require.True(t, cls.Closed())
	require.EqualValues(t, 3, p.closed.Load())
	require.EqualValues(t, 3, p.opened.Load())
}

func TestDriver(t *testing.T) {
	var asked []time.Duration
	p := &fakePlugin{drive: func(f *fakeCarrier, timeout time.Duration, ready func() bool) bool {
		asked = append(asked, timeout)
		e := f.e
		e.Lock()
		for o := e.receivers.head; o != nil; o = e.receivers.head {
			e.finishOpLocked(o, Result{})
		}
		e.Unlock()
		return ready()
	}}
	cls, err := Open("fake://here", Config{Plugins: []Plugin{p}})
	require.NoError(t, err)
	c, err := cls.NewContext()
	require.NoError(t, err)
	require.ErrorIs(t, c.Progress(7), ErrTimeout)
	ran := 0
	require.NoError(t, c.RecvUnexpected(c.NewOp(func(*Op, Result) { ran++ })))
	require.NoError(t, c.Progress(8))
	require.Equal(t, []time.Duration{7, 8}, asked)
	require.Equal(t, 1, c.Trigger(0))
	c.Wake()
	require.NoError(t, c.Progress(9))
	require.Len(t, asked, 2, "a wake-up needs no driving")
	require.NoError(t, c.RecvUnexpected(c.NewOp(func(*Op, Result) { ran++ })))
	require.NoError(t, cls.Close())
	require.NoError(t, c.Shutdown(context.Background()))
	require.ErrorIs(t, c.Progress(0), ErrClosed)
	require.Equal(t, 2, ran)
}

// TestCloseRace races starts with Close: each accepted operation ends, no refused one does, and the
// context is given back.
func TestCloseRace(t *testing.T) {
	for range long.Or(15, 50) {
		p := &fakePlugin{}
		cls, err := Open("fake://here", Config{Plugins: []Plugin{p}})
		require.NoError(t, err)
		c, err := cls.NewContext()
		require.NoError(t, err)
		var accepted, ended atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					err := c.RecvUnexpected(c.NewOp(func(*Op, Result) { ended.Add(1) }))
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Errorf("start: %v", err)
						}
						return
					}
					accepted.Add(1)
				}
			})
		}
		wg.Go(func() {
			for !c.Closed() {
				_ = c.Progress(time.Millisecond)
				c.Trigger(0)
			}
		})
		eventually(t, "some are started", func() bool { return accepted.Load() > 20 })
		require.NoError(t, cls.Close())
		wg.Wait()
		for c.Trigger(0) > 0 {
		}
		require.True(t, cls.Closed())
		require.Equal(t, accepted.Load(), ended.Load())
		require.EqualValues(t, 1, p.closed.Load())
	}
}

// TestLingering checks that a context whose endpoint has frames left to send is polled, and not
// given back before they are sent.
func TestLingering(t *testing.T) {
	t.Parallel()
	c, f := newFake(t, Config{})
	f.lingers.Store(true)
	c.Close()
	for range 10 {
		_ = c.Progress(0)
		c.Trigger(0)
	}
	polled := f.polls.Load()
	require.Positive(t, polled)
	require.False(t, c.Closed())
	require.Zero(t, f.released.Load())
	f.lingers.Store(false)
	_ = c.Progress(0)
	require.True(t, c.Closed())
	require.EqualValues(t, 1, f.released.Load())
}

// TestTriggerDoesNotWaitForDisk checks that Trigger does not wait for memory that is being read from a
// slow disk: callbacks of other operations run, and that of the canceled operation runs when the
// read has ended.
func TestTriggerDoesNotWaitForDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newFakeOf(t, &fakePlugin{drive: func(_ *fakeCarrier, _ time.Duration, ready func() bool) bool { return ready() }}, Config{})
		var ended, others int
		op := c.NewOp(func(*Op, Result) { ended++ })
		tk, err := op.beginLife(kindPut, Addr{})
		require.NoError(t, err)
		require.True(t, tk.hold())
		disk, read := make(chan struct{}), make(chan struct{})
		spin := sync.OnceFunc(func() { close(disk) })
		t.Cleanup(spin)
		go func() { // reads the memory
			<-disk
			tk.release()
			close(read)
		}()
		op.Cancel()
		require.True(t, tk.finish(Result{Err: ErrCanceled}))
		other := c.NewOp(func(*Op, Result) { others++ })
		begun := time.Now() // of the bubble: it belongs to the blocked goroutine only
		for range 20 {
			tk, err := other.beginLife(kindPost, Addr{})
			require.NoError(t, err)
			require.True(t, tk.finish(Result{}))
			c.Trigger(0)
			require.Less(t, time.Since(begun), 100*time.Millisecond, "slept in Trigger")
		}
		require.Equal(t, 20, others)
		require.Zero(t, ended, "the memory is still being read")
		require.Error(t, c.Progress(0))
		spin()
		<-read
		require.NoError(t, c.Progress(0))
		require.Equal(t, 1, c.Trigger(0))
		require.Equal(t, 1, ended)
		c.Close()
		c.Trigger(0)
		require.True(t, c.Closed())
	})
}
