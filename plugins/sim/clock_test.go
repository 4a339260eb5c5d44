package sim_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestWithTimeout checks that a context of the world ends at its virtual time, with those below it,
// and not before; a wait with it returns then.
func TestWithTimeout(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	p := openTestNode(t, w, "sim://a")
	type key struct{}
	w.Go("a", func() {
		parent, stop := context.WithCancelCause(context.WithValue(context.Background(), key{}, 7))
		begun := w.Now()
		ctx, cancel := w.WithTimeout(parent, time.Hour)
		defer cancel()
		below, stopBelow := context.WithCancel(ctx)
		defer stopBelow()
		require.Equal(t, 7, below.Value(key{}))
		left, err := w.Until(deadlineOf(t, below))
		require.NoError(t, err)
		require.Equal(t, time.Hour, left)
		require.ErrorIs(t, driveUntilEnd(below, p.nctx), context.DeadlineExceeded)
		require.Equal(t, time.Hour, w.Now()-begun)
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
		require.Equal(t, context.DeadlineExceeded, below.Err())
		require.Equal(t, context.DeadlineExceeded, context.Cause(below))

		outer, cancelOuter := w.WithTimeout(parent, time.Minute)
		defer cancelOuter()
		inner, cancelInner := w.WithTimeout(outer, time.Hour)
		defer cancelInner()
		require.Equal(t, deadlineOf(t, outer), deadlineOf(t, inner))
		require.ErrorIs(t, driveUntilEnd(inner, p.nctx), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, w.Now()-begun)

		canceled, cancelNow := w.WithTimeout(parent, time.Hour)
		cancelNow()
		require.Equal(t, context.Canceled, canceled.Err())
		<-canceled.Done()

		why := fmt.Errorf("enough")
		mine, cancelMine := w.WithTimeout(parent, time.Hour)
		defer cancelMine()
		w.Spawn(func() {
			w.Sleep(time.Second)
			stop(why)
		})
		begun = w.Now()
		require.ErrorIs(t, driveUntilEnd(mine, p.nctx), why)
		require.Equal(t, time.Second, w.Now()-begun)
		require.Equal(t, context.Canceled, mine.Err())
		past, cancelPast := w.WithTimeout(context.Background(), -1)
		defer cancelPast()
		require.Equal(t, context.DeadlineExceeded, past.Err())
	})
	require.NoError(t, w.Run(0))
	p.close()
}

// driveUntilEnd drives nctx until ctx ends, and returns the cause of that.
func driveUntilEnd(ctx context.Context, nctx *na.Context) error {
	return nctx.Upper().Loop().Wait(ctx, -1, func() bool { return false })
}

func deadlineOf(t testing.TB, ctx context.Context) time.Time {
	t.Helper()
	at, ok := ctx.Deadline()
	require.True(t, ok)
	return at
}

// TestCancelReplays checks that a coroutine gets the end of a context by another one at the same
// point of the trace in each run, although package context notifies goroutines.
func TestCancelReplays(t *testing.T) {
	t.Parallel()
	run := func() uint64 {
		w := sim.NewWorld(sim.Config{Seed: *seedFlag, Latency: time.Millisecond})
		p := openTestNode(t, w, "sim://a")
		for range 20 {
			ctx, cancel := context.WithCancel(context.Background())
			w.Go("a", func() {
				require.ErrorIs(t, driveUntilEnd(ctx, p.nctx), context.Canceled)
				w.Note("ended", uint64(w.Now()), 0)
				w.Sleep(time.Microsecond)
			})
			w.Go("b", func() {
				w.Sleep(time.Millisecond)
				cancel()
				w.Note("canceled", uint64(w.Now()), 0)
			})
		}
		require.NoError(t, w.Run(time.Minute))
		p.close()
		return w.Hash()
	}
	want := run()
	for range 20 {
		require.Equal(t, want, run())
	}
}

// TestRealDeadlineRefused checks that a deadline in real time is refused in a coroutine; one below
// a virtual one is that of the virtual one.
func TestRealDeadlineRefused(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	w.Go("server", func() {
		ctx := openHG(t, w, "sim://server", func(r hg.Request) error {
			left, err := w.Until(deadlineOf(t, r.Context()))
			require.NoError(t, err)
			return r.Respond(left, nil)
		})
		w.Spawn(func() {
			w.Sleep(time.Minute)
			ctx.Close()
		})
		_ = ctx.Wait(context.Background(), func() bool { return false })
	})
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		hctx := openHG(t, w, "sim://", nil)
		defer hctx.Close()
		to, id := addrOf(t, "sim://server"), hg.HashName("left")
		realTime, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		h, err := hctx.Create(to, id)
		require.NoError(t, err)
		defer h.Close()
		err = h.Call(realTime, nil, nil)
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorContains(t, err, "WithTimeout")
		require.Equal(t, hg.NotRun, hg.FateOf(err))
		never := func() bool { return false }
		for name, wait := range map[string]func() error{
			"Sleep":   func() error { return hctx.Sleep(realTime, time.Second) },
			"Wait":    func() error { return hctx.Wait(realTime, never) },
			"WaitFor": func() error { return hctx.WaitFor(realTime, time.Second, never) },
		} {
			begun := w.Now()
			err := wait()
			require.ErrorIs(t, err, hg.ErrInvalid, name)
			require.ErrorContains(t, err, "has a deadline in real time; create it with sim.World.WithTimeout", name)
			require.Equal(t, begun, w.Now(), name)
		}
		virtual, cancelVirtual := w.WithTimeout(context.Background(), time.Second)
		defer cancelVirtual()
		below, cancelBelow := context.WithTimeout(virtual, time.Hour)
		defer cancelBelow()
		var left time.Duration
		require.NoError(t, h.Call(below, nil, &left))
		require.InDelta(t, time.Second, left, float64(10*time.Millisecond))
		require.NoError(t, hctx.Sleep(below, time.Millisecond))
	})
	require.NoError(t, w.Run(time.Hour))
}

func openHG(t testing.TB, w *sim.World, addr string, handler hg.Handler) *hg.Context {
	t.Helper()
	cls, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}})
	require.NoError(t, err)
	_, err = cls.Register("left", handler)
	require.NoError(t, err)
	hctx, err := cls.NewContext()
	require.NoError(t, err)
	return hctx
}

// TestWatchdog checks that a coroutine that waits for another on a channel is named, with its
// stack.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	var reported bytes.Buffer
	var once sync.Once
	release := make(chan struct{})
	w := sim.NewWorld(sim.Config{Seed: 17, Patience: 5 * time.Millisecond, Log: writerFunc(func(b []byte) (int, error) {
		defer once.Do(func() { close(release) })
		return reported.Write(b)
	})})
	w.Go("innocent", func() { w.Sleep(time.Second) })
	w.Go("client", func() { waitOnChannel(release) })
	require.NoError(t, w.Run(time.Minute))
	require.Contains(t, reported.String(), "seed 17: coroutine client has not yielded")
	require.Contains(t, reported.String(), "waitOnChannel")
}

// TestEndlessTimeout checks that a timeout beyond the range of virtual time has no effect.
func TestEndlessTimeout(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	openTestNode(t, w, "sim://a")
	w.Go("a", func() {
		w.Sleep(time.Hour)
		for _, d := range []time.Duration{math.MaxInt64, 30 * 365 * 24 * time.Hour} {
			ctx, cancel := w.WithTimeout(context.Background(), d)
			left, err := w.Until(deadlineOf(t, ctx))
			require.NoError(t, err, "%v", d)
			require.Greater(t, left, 19*365*24*time.Hour, "%v", d)
			require.NoError(t, ctx.Err())
			cancel()
		}
	})
	require.NoError(t, w.Run(2*time.Hour))
}

//go:noinline
func waitOnChannel(c chan struct{}) { <-c }

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestSpawn checks that spawn puts a coroutine on the node of its caller; outside of coroutines
// there is none.
func TestSpawn(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: *seedFlag})
	require.PanicsWithValue(t, "sim: Spawn called outside a coroutine of the world; use World.Go", func() { w.Spawn(func() {}) })
	ran := false
	w.Go("node", func() {
		w.Spawn(func() {
			w.Sleep(time.Second)
			ran = true
		})
		w.Spawn(func() { w.Node("node").Crash() })
	})
	require.NoError(t, w.Run(time.Minute))
	require.False(t, ran, "a spawned coroutine goes with its node")
}
