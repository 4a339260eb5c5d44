package na

import (
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// pipeFDs returns a pipe ; the test closes its ends.
func pipeFDs(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
	})
	return p[0], p[1]
}

// readyFunc is a Pollable.
type readyFunc func(readable, writable bool)

func (f readyFunc) Ready(readable, writable bool) { f(readable, writable) }

func TestPoller(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	r, w := pipeFDs(t)
	n := 0
	id, err := p.Add(r, readyFunc(func(readable, writable bool) {
		require.True(t, readable)
		require.False(t, writable)
		n++
	}))
	require.NoError(t, err)
	p.wait(0)
	require.Zero(t, n)
	_, err = unix.Write(w, []byte("x"))
	require.NoError(t, err)
	p.wait(-1)
	require.Equal(t, 1, n)
	require.NoError(t, p.Watch(r, id, false, false))
	p.wait(0)
	require.Equal(t, 1, n, "no readiness is of interest")
	require.NoError(t, p.Watch(r, id, true, false))
	p.wait(0)
	require.Equal(t, 2, n)

	wrote := 0
	wid, err := p.Add(w, readyFunc(func(_, writable bool) {
		if writable {
			wrote++
		}
	}))
	require.NoError(t, err)
	require.NoError(t, p.Watch(w, wid, false, true))
	p.wait(0)
	require.Equal(t, 1, wrote)
	p.Remove(w, wid)
	p.Remove(r, id)
	p.wait(0)
	require.Equal(t, 3, n)
	require.Equal(t, 1, wrote)

	_, err = p.Add(-1, nil)
	require.Error(t, err)
	again, err := p.Add(r, readyFunc(func(bool, bool) { n += 100 })) // in the slot of a former owner
	require.NoError(t, err)
	require.NotEqual(t, id, again)
	p.Remove(r, id) // a second time, by the former owner: it takes away nothing of the new one
	p.wait(0)
	require.Equal(t, 3, n, "its descriptor is not watched any more")
	require.NotNil(t, p.owner(again))
}

// TestPollerOwnersChange checks that while a leader polls, descriptors may be added, in slots of
// their own and in those of earlier ones, and removed. Each is ready from the beginning and is
// reported once, so its owner must be there when the leader finds it.
func TestPollerOwnersChange(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	const many = 500
	called := make(chan int)
	var stop atomic.Bool
	var leader sync.WaitGroup
	leader.Go(func() {
		for !stop.Load() {
			p.wait(0)
		}
	})
	for i := range many {
		fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(t, err)
		id, err := p.AddEdge(fd, readyFunc(func(bool, bool) { called <- i }))
		require.NoError(t, err)
		select {
		case got := <-called:
			require.Equal(t, i, got)
		case <-time.After(30 * time.Second):
			t.Fatalf("descriptor %d was not reported", i)
		}
		if i%3 != 0 { // the others stay
			p.Remove(fd, id)
			require.Nil(t, p.owner(id))
		}
		defer unix.Close(fd)
	}
	require.Equal(t, (many+2)/3/eventsAtOnce+1, p.waitRounds())
	stop.Store(true)
	leader.Wait()
}

// TestPollerLateEvent checks that two descriptors are ready at once, and the first one's owner
// removes the second: its event is dropped.
func TestPollerLateEvent(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	var fds [2]int
	var ids [2]carrier.PollID
	calls := 0
	for i := range fds {
		r, w := pipeFDs(t)
		fds[i] = r
		ids[i], err = p.Add(r, readyFunc(func(bool, bool) {
			calls++
			p.Remove(fds[1-i], ids[1-i])
		}))
		require.NoError(t, err)
		_, err = unix.Write(w, []byte("x"))
		require.NoError(t, err)
	}
	p.wait(0)
	require.Equal(t, 1, calls)
}

func TestPollerWake(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	for range 100 {
		done := make(chan struct{})
		go func() { p.wait(-1); close(done) }()
		p.wake()
		p.wake()
		receiveWithin(t, done, "a wait that is woken")
	}
	begin := time.Now()
	p.wait(0)
	p.wait(10 * time.Millisecond)
	require.GreaterOrEqual(t, time.Since(begin), 10*time.Millisecond, "a wake-up counts once")
	p.close()
	p.wake() // after the end: the number may be that of another descriptor
}

// peekable is a Pollable that can be peeked at.
type peekable struct{ readied, peeked int }

func (p *peekable) Ready(bool, bool) { p.readied++ }
func (p *peekable) Peek() bool       { p.peeked++; return p.peeked%2 == 0 }

// TestPollerPeeks checks that the descriptor that was readable last is polled directly, until it is
// removed.
func TestPollerPeeks(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	_, asked := p.peek()
	require.False(t, asked, "nothing was readable yet")
	r, w := pipeFDs(t)
	hot := &peekable{}
	id, err := p.Add(r, hot)
	require.NoError(t, err)
	_, err = unix.Write(w, []byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, p.wait(-1))
	require.Equal(t, 1, hot.readied)
	for i := range 4 {
		came, asked := p.peek()
		require.True(t, asked)
		require.Equal(t, i%2 == 1, came)
	}
	p.Remove(r, id)
	_, asked = p.peek()
	require.False(t, asked, "it may be closed by now")
	require.Equal(t, 4, hot.peeked)
}

// A panicker is a Pollable that panics when it is ready, and is notified that it has to end.
type panicker struct{ cut error }

func (p *panicker) Ready(_, _ bool) { panic("a defect") }
func (p *panicker) Cut(err error)   { p.cut = err }

// TestOwnerPanics checks that a panic of a descriptor's owner removes that descriptor only: the
// others that were ready with it are called, and the panic is counted.
func TestOwnerPanics(t *testing.T) {
	c, _ := newFake(t, Config{Logger: slog.New(slog.DiscardHandler)})
	c.background.stop()
	var bad panicker
	called := make([]int, 4)
	for i := range 5 {
		r, w := pipeFDs(t)
		var to carrier.Pollable = &bad
		if i != 2 {
			at := i - i/3
			to = readyFunc(func(bool, bool) { called[at]++ })
		}
		id, err := c.poller.Add(r, to)
		require.NoError(t, err)
		defer c.poller.Remove(r, id)
		_, err = unix.Write(w, []byte("x"))
		require.NoError(t, err)
	}
	require.ErrorIs(t, c.Progress(0), os.ErrDeadlineExceeded)
	require.Equal(t, []int{1, 1, 1, 1}, called)
	require.ErrorIs(t, bad.cut, ErrIO)
	require.ErrorContains(t, bad.cut, "a defect")
	require.EqualValues(t, 1, c.Stats().Panics)
}

// TestAssist checks that the background poller takes in bytes that arrive while no goroutine
// drives, and stops when the user drives again or closes.
func TestAssist(t *testing.T) {
	c, f := newFake(t, Config{})
	r, w := pipeFDs(t)
	var got atomic.Int32
	id, err := c.poller.Add(r, readyFunc(func(bool, bool) {
		var b [1]byte
		if n, _ := unix.Read(r, b[:]); n == 1 {
			got.Add(1)
		}
	}))
	require.NoError(t, err)
	defer c.poller.Remove(r, id)
	for i := range int32(20) {
		if i == 10 { // in between the user drives
			done := startProgress(t, c, time.Hour)
			c.Wake()
			require.NoError(t, receiveWithin(t, done, "Progress"))
		}
		_, err = unix.Write(w, []byte("x"))
		require.NoError(t, err)
		eventually(t, "the background poller takes the byte", func() bool { return got.Load() == i+1 })
	}
	require.Positive(t, f.polls.Load())

	// It runs no callback.
	op := c.NewOp(func(*Op, Result) { t.Error("a callback ran outside of Trigger") })
	require.NoError(t, c.RecvUnexpected(op))
	poll := func(time.Duration) {
		f.end(op, Result{})
	}
	f.onPoll.Store(&poll)
	_, err = unix.Write(w, []byte("x"))
	require.NoError(t, err)
	eventually(t, "the operation ends", func() bool { return c.Upper().Queued() == 1 })
	require.True(t, op.Busy())
	op.step = func(*Op, Result) int { return 1 }
	require.Equal(t, 1, c.Trigger(0))

	// An idle context costs nothing.
	f.onPoll.Store(nil)
	var polls int32
	eventually(t, "the background poller rests", func() bool {
		before := polls
		polls = f.polls.Load()
		return before == polls
	})
	time.AfterFunc(30*time.Millisecond, c.Wake)
	before := f.polls.Load()
	require.NoError(t, c.Progress(-1))
	require.LessOrEqual(t, f.polls.Load()-before, int32(4))
}

// TestAssistTakesOver checks that while a leader is blocked in Progress the background poller does
// nothing, and takes over when the leader is in user code.
func TestAssistTakesOver(t *testing.T) {
	c, _ := newFake(t, Config{})
	r, w := pipeFDs(t)
	var got atomic.Int32
	op := c.NewOp(func(*Op, Result) {})
	id, err := c.poller.Add(r, readyFunc(func(bool, bool) {
		var b [1]byte
		if n, _ := unix.Read(r, b[:]); n == 1 {
			got.Add(1)
			if op.Busy() {
				fakeOf(c).end(op, Result{})
			}
		}
	}))
	require.NoError(t, err)
	defer c.poller.Remove(r, id)
	for i := range int32(10) {
		require.NoError(t, c.RecvUnexpected(op))
		done := startProgress(t, c, -1)
		_, err = unix.Write(w, []byte("x"))
		require.NoError(t, err)
		require.NoError(t, receiveWithin(t, done, "the leader gets the byte"))
		require.Equal(t, 1, c.Trigger(0))
		_, err = unix.Write(w, []byte("x")) // no goroutine is blocked now
		require.NoError(t, err)
		eventually(t, "the background poller takes the byte", func() bool { return got.Load() == 2*i+2 })
	}
}

func TestAssistTimer(t *testing.T) {
	c, f := newFake(t, Config{})
	r, w := pipeFDs(t)
	id, err := c.poller.Add(r, readyFunc(func(bool, bool) {
		var b [1]byte
		if n, _ := unix.Read(r, b[:]); n == 1 {
			f.timer.Store(int64(c.Now() + 20*time.Millisecond)) // the bytes that arrived must be taken in
		}
	}))
	require.NoError(t, err)
	defer c.poller.Remove(r, id)
	var fired atomic.Bool
	poll := func(now time.Duration) {
		if at := f.timer.Load(); at != 0 && int64(now) >= at {
			f.timer.Store(0)
			fired.Store(true)
		}
	}
	f.onPoll.Store(&poll)
	_, err = unix.Write(w, []byte("x"))
	require.NoError(t, err)
	eventually(t, "a timer of a context that nobody drives", fired.Load)
}

// TestWakeNotLost checks that a wake between the two steps with which the poller clears an
// earlier one is not lost. It left the poller marked as woken for good.
func TestWakeNotLost(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	var quit atomic.Bool
	defer quit.Store(true)
	for range 2 {
		wg.Go(func() {
			for !quit.Load() {
				p.wake()
			}
		})
	}
	for range long.Or(50_000, 200_000) {
		p.wait(0)
	}
	quit.Store(true)
	wg.Wait()
	p.wait(0)
	p.wake()
	require.Equal(t, 1, p.wait(0), "a wake after all these")
}
