package hg_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// TestWaitReturnsAtItsEnd checks that a wait returns at its own end, however much is queued behind
// it: for a call, for a condition, and when its context ends.
func TestWaitReturnsAtItsEnd(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Origin(hg.Config{})
		n.Undriven(hctx)
		const queued = 1000
		for _, at := range []int{0, 10} {
			ran, over := 0, false
			for i := range queued {
				require.NoError(t, hctx.Post(func() {
					ran++
					over = over || i == at
				}))
			}
			require.NoError(t, hctx.Wait(t.Context(), func() bool { return over }))
			require.Equal(t, at+1, ran)
			hctx.Trigger(0)
			require.Equal(t, queued, ran)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ran := 0
		for range queued {
			require.NoError(t, hctx.Post(func() {
				ran++
				cancel()
			}))
		}
		require.ErrorIs(t, hctx.Wait(ctx, func() bool { return false }), context.Canceled)
		require.Less(t, ran, queued)
		hctx.Trigger(0)
	})
}

// TestSharedClassOnSim checks that coroutines of a simulated world that share a request.Class wait
// in virtual time, each for its own.
func TestSharedClassOnSim(t *testing.T) {
	const callers, calls = 8, 50
	w := sim.NewWorld(sim.Config{Seed: 7})
	open := func(addr string) (*hg.Class, *hg.Context) {
		cls, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}})
		require.NoError(t, err)
		hctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, hctx
	}
	over, left, answers := false, callers, 0
	w.Go("server", func() {
		cls, hctx := open("sim://server")
		_, err := cls.Register("echo", echo)
		require.NoError(t, err)
		for !over {
			_ = hctx.Progress(10 * time.Millisecond)
			hctx.Trigger(0)
		}
		require.NoError(t, cls.Shutdown(context.Background()))
	})
	w.Go("client", func() {
		cls, hctx := open("sim://")
		id, err := cls.Register("echo", nil)
		require.NoError(t, err)
		addr, err := na.ParseAddr("sim://server")
		require.NoError(t, err)
		class := request.NewClass(hctx)
		for range callers {
			w.Go("client", func() {
				h, err := hctx.Create(addr, id)
				require.NoError(t, err)
				for range calls {
					r := class.Create(h.Cancel)
					require.NoError(t, h.ForwardRaw([]byte("x"), func(_ *hg.Handle, err error) { r.Complete(err) }))
					require.True(t, r.Wait(time.Second))
					require.NoError(t, r.Err())
					answers++
				}
				h.Close()
				left--
				hctx.Wake()
			})
		}
		require.NoError(t, hctx.Wait(context.Background(), func() bool { return left == 0 }))
		require.False(t, class.Create(nil).Wait(time.Second), "time passes")
		require.NoError(t, cls.Shutdown(context.Background()))
		over = true
	})
	require.NoError(t, w.Run(time.Minute))
	require.Equal(t, callers*calls, answers)
}

// TestNothingAfterTheEnd checks that an operation with a callback in a context that is closed and
// drained is refused, and Closed stays true.
func TestNothingAfterTheEnd(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		require.NoError(t, p.call(h, "x"))
		b, err := bulk.Create(p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 8))
		require.NoError(t, err)
		require.NoError(t, p.origin.Close())
		n.Until(p.octx.NA().Closed)
		late := func() { t.Error("a callback runs after the end") }
		require.ErrorIs(t, h.Withdraw(0, func(*hg.Handle, hg.WithdrawResult) { late() }), hg.ErrClosed)
		require.ErrorIs(t, b.CloseFunc(func(error) { late() }), hg.ErrClosed)
		require.ErrorIs(t, p.octx.Post(late), hg.ErrClosed)
		require.ErrorIs(t, p.octx.Wait(t.Context(), func() bool { return false }), hg.ErrClosed)
		require.True(t, p.octx.NA().Closed())
		require.Zero(t, p.octx.Trigger(0))
		require.Panics(t, func() { _ = p.octx.Post(nil) })
		h.Close()
	})
}

// TestClosedAfterTheLastCallback checks that Closed is true, and Shutdown returns, when the last
// callback has run, also where a late one starts another and the goroutines that drive are slow
// between Progress and Trigger.
func TestClosedAfterTheLastCallback(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		if n.Sim {
			return // the goroutine that drives it is not slow
		}
		rounds := shareOfRounds(n, 200, 4)
		for round := range rounds {
			cls, hctx := n.Origin(hg.Config{})
			n.Undriven(hctx)
			b, err := bulk.Create(hctx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 8))
			require.NoError(t, err)
			var begun, ended atomic.Int32
			require.NoError(t, hctx.Post(func() {
				begun.Add(1)
				assert.NoError(t, b.CloseFunc(func(error) { ended.Add(1) }))
			}))
			var slow sync.WaitGroup
			slow.Go(func() {
				for hctx.Progress(time.Millisecond) != hg.ErrClosed {
					for range 100 {
						runtime.Gosched()
					}
					hctx.Trigger(0)
				}
			})
			if round%2 == 0 {
				require.NoError(t, cls.Close())
				for !hctx.NA().Closed() {
					runtime.Gosched()
				}
			} else {
				_ = cls.Shutdown(t.Context())
			}
			require.Equal(t, [2]int32{1, 1}, [2]int32{begun.Load(), ended.Load()}, "callbacks that have run, round %d", round)
			slow.Wait()
		}
	})
}

// TestOtherCallbackPanicsInWait checks that a callback of another operation that panics in a wait ends
// that wait; the call continues, and its handle can be used again.
func TestOtherCallbackPanicsInWait(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		defer h.Close()
		require.NoError(t, p.octx.Post(func() { panic("ouch") }))
		require.PanicsWithValue(t, "ouch", func() { _, _ = h.CallRaw(t.Context(), []byte("x")) })
		n.Until(func() bool { return !isInFlight(h) })
		require.NoError(t, p.call(h, "again"))
		p.requireClean(1)
	})
}
