package hg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// lingerConfig returns a Config whose Shutdown waits for d.
func lingerConfig(d time.Duration) hg.Config { return hg.Config{NA: na.Config{Linger: d}} }

// shutdownError returns the error of a Shutdown as its type.
func shutdownError(t *testing.T, err error) *hg.ShutdownError {
	t.Helper()
	var e *hg.ShutdownError
	require.ErrorAs(t, err, &e)
	return e
}

// TestShutdownDrains checks that a handler that runs may end and answer; requests that have no
// handler yet, new requests and new peers are refused.
func TestShutdownDrains(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cfg := lingerConfig(20 * time.Second)
		cfg.MaxActive = 1
		p := newPair(t, n, cfg)
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		type end struct {
			who int
			err error
		}
		ends := make(chan end, 4)
		var refused atomic.Int32
		heard := func(who int) hg.ForwardFunc {
			return func(_ *hg.Handle, err error) {
				ends <- end{who, err}
				if err != nil && refused.Add(1) == 3 { // not before all of them
					p.tctx.Post(k.answer)
				}
			}
		}
		handles := []*hg.Handle{p.handle(id), p.handle(id), p.handle(id)}
		for i, h := range handles[:2] {
			require.NoError(t, h.Forward(i, heard(i)))
		}
		n.Until(func() bool { return len(k.kept) == 1 && p.tctx.Stats().Waiting == 1 })

		other, octx := n.Origin(hg.Config{})
		_, err := other.Register("keep", nil)
		require.NoError(t, err)
		otherPeer, err := octx.Create(p.target.Addr(), id)
		require.NoError(t, err)
		n.Serve(p.octx, 1)
		n.Serve(octx, 1)
		p.tctx.Post(func() { // inside Shutdown
			assert.True(t, p.tctx.NA().Draining())
			assert.NoError(t, handles[2].Forward(2, func(h *hg.Handle, err error) {
				heard(2)(h, err)
				assert.NoError(t, otherPeer.Forward(nil, heard(3)))
			}))
		})
		require.NoError(t, p.target.Shutdown(context.Background()))
		require.True(t, p.target.NA().Closed())
		errs := map[int]error{}
		for range 4 {
			e := <-ends
			errs[e.who] = e.err
		}
		require.Len(t, errs, 4)
		require.NoError(t, errs[0], "the handler that ran")
		requireCode(t, errs[1], hg.ErrDraining)
		requireCode(t, errs[2], hg.ErrDraining)
		require.ErrorIs(t, errs[3], hg.ErrUnreachable, "the peer that connected")
		for _, err := range errs {
			if err != nil {
				require.ErrorContains(t, err, "shutting down")
				require.Equal(t, na.NotRun, hg.FateOf(err))
			}
		}
		for _, h := range append(handles, otherPeer) {
			h.Close()
		}
	})
}

// TestShutdownOfOneContext checks that one context may shut down in order while the others of its
// class stay open.
func TestShutdownOfOneContext(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cfg := lingerConfig(20 * time.Second)
		cfg.MaxActive = 1
		p := newPair(t, n, cfg)
		other := n.Context(p.target)
		var k holdingTarget
		keep, id := p.rpc("keep", k.handler), p.rpc("echo", echo)
		mem, err := p.target.NA().Register(na.ReadOnly, make([]byte, 8))
		require.NoError(t, err)
		var outs [2]outcome
		handles := []*hg.Handle{p.handle(keep), p.handle(keep)}
		for i, h := range handles {
			require.NoError(t, h.ForwardRaw(nil, outs[i].cb))
		}
		n.Until(func() bool { return len(k.kept) == 1 && p.tctx.Stats().Waiting == 1 })
		p.tctx.Post(func() { // inside Shutdown
			assert.True(t, p.tctx.NA().Draining())
			assert.False(t, other.NA().Draining())
			assert.ErrorIs(t, p.tctx.Shutdown(context.Background()), na.ErrBusy)
			k.answer()
		})
		require.NoError(t, p.tctx.Shutdown(context.Background()))
		require.True(t, p.tctx.NA().Closed())
		n.Until(func() bool { return outs[0].calls == 1 && outs[1].calls == 1 })
		require.NoError(t, outs[0].err, "the handler that ran")
		requireCode(t, outs[1].err, hg.ErrDraining)

		h, err := p.octx.Create(other.Self(), id)
		require.NoError(t, err)
		require.NoError(t, p.call(h, "x"), "the other context")
		require.NoError(t, other.NA().Deregister(other.NA().NewOp(func(*na.Op, na.Result) {}), mem))
		require.NoError(t, p.target.Shutdown(context.Background()), "the class, with what is left of it")
		for _, h := range append(handles, h) {
			h.Close()
		}
	})
}

// TestShutdownLingers checks that with calls without an answer Shutdown ends after Linger, every
// callback has run, and its error has what was left (F50, F14).
func TestShutdownLingers(t *testing.T) {
	t.Parallel()
	t.Run("virtual", func(t *testing.T) {
		transports.Virtual(t, func(t *testing.T, n *transports.Net) { shutdownLingers(t, n, 0) })
	})
	transports.Each(t, func(t *testing.T, n *transports.Net) { shutdownLingers(t, n, 50*time.Millisecond) })
}

func shutdownLingers(t *testing.T, n *transports.Net, linger time.Duration) {
	p := newPair(t, n, lingerConfig(linger))
	var k holdingTarget
	var ctxs []context.Context
	id := p.rpc("keep", func(h hg.Request) error {
		ctxs = append(ctxs, h.Context())
		return k.handler(h)
	})
	const calls = 20
	outs := make([]outcome, calls)
	for i := range outs {
		h := p.handle(id)
		require.NoError(t, h.Forward(i, outs[i].cb))
		h.Close()
	}
	n.Until(func() bool { return len(k.kept) == calls })
	bounded := func(shutdown func(context.Context) error) error {
		begun := p.octx.Now()
		err := shutdown(context.Background())
		if linger == 0 { // virtual time is exact
			require.GreaterOrEqual(t, p.octx.Now()-begun, 2*time.Second)
			require.LessOrEqual(t, p.octx.Now()-begun, 2500*time.Millisecond)
		}
		require.ErrorIs(t, err, hg.ErrTimeout)
		return err
	}
	e := shutdownError(t, bounded(p.origin.Shutdown))
	require.Equal(t, calls, e.Calls)
	require.Zero(t, e.Handles+e.Handlers)
	require.True(t, p.origin.NA().Closed())
	for i := range outs {
		require.Equal(t, 1, outs[i].calls)
		require.ErrorIs(t, outs[i].err, hg.ErrClosed)
	}
	p.Undriven(p.octx)

	n.Until(func() bool { return p.tctx.Stats().Handles == 0 })
	require.NoError(t, p.target.Shutdown(context.Background()), "the requests have ended with their session")
	require.True(t, p.target.NA().Closed())
	for _, ctx := range ctxs {
		require.ErrorIs(t, context.Cause(ctx), hg.ErrPeerLost, "the origin was faster")
	}
}

// TestShutdownAtOnce checks that Shutdown with a context that has ended cancels at once.
func TestShutdownAtOnce(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(time.Hour))
		var k holdingTarget
		h := p.handle(p.rpc("keep", k.handler))
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		h.Close()
		n.Until(func() bool { return len(k.kept) == 1 })
		cause := errors.New("in a hurry")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		err := p.origin.Shutdown(ctx)
		require.ErrorIs(t, err, cause)
		require.Equal(t, 1, shutdownError(t, err).Calls)
		require.Equal(t, 1, o.calls)
		require.ErrorIs(t, o.err, hg.ErrClosed)
		require.True(t, p.origin.NA().Closed())
		k.answer()
		n.Until(func() bool { return p.tctx.Stats().Handles == 0 && p.tctx.NA().Live() == 0 })
		require.NoError(t, p.target.Shutdown(ctx), "nothing is left to cancel")
	})
}

// TestShutdownEndsHandlers checks that the context of a handler ends when the wait is over, and its
// answer then still arrives.
func TestShutdownEndsHandlers(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(time.Hour))
		var cause error
		begun := false
		id := p.rpc("wait", func(h hg.Request) error {
			detach(h)
			begun = true
			context.AfterFunc(h.Context(), func() {
				cause = context.Cause(h.Context())
				assert.NoError(t, h.RespondError(na.WithText(hg.ErrAgain, "ask another"), nil))
			})
			return nil
		})
		h := p.handle(id)
		defer h.Close()
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		n.Until(func() bool { return begun })
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, p.target.Shutdown(ctx), context.Canceled)
		require.ErrorIs(t, cause, hg.ErrClosed)
		n.Until(func() bool { return o.calls == 1 })
		requireCode(t, o.err, hg.ErrAgain)
		require.ErrorContains(t, o.err, "ask another")
	})
}

// TestShutdownRefusesNew checks that callbacks that start calls during a Shutdown are refused, and
// that it ends (F51).
func TestShutdownRefusesNew(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(20*time.Millisecond))
		var k holdingTarget
		keep, other := p.rpc("keep", k.handler), p.rpc("echo", echo)
		const calls = 50
		ran := 0
		var again hg.ForwardFunc
		again = func(h *hg.Handle, err error) {
			ran++
			assert.ErrorIs(t, err, hg.ErrClosed)
			assert.ErrorIs(t, h.Forward(nil, again), hg.ErrClosed)
			fresh, err := p.octx.Create(p.target.Addr(), other)
			assert.NoError(t, err)
			assert.ErrorIs(t, fresh.Forward(nil, again), hg.ErrClosed)
			assert.Equal(t, na.NotRun, hg.FateOf(fresh.Forward(nil, again)))
			fresh.Close()
			h.Close()
		}
		for range calls {
			require.NoError(t, p.handle(keep).Forward(nil, again))
		}
		n.Until(func() bool { return len(k.kept) > 0 })
		require.Equal(t, calls, shutdownError(t, p.origin.Shutdown(context.Background())).Calls)
		require.Equal(t, calls, ran)
		require.True(t, p.origin.NA().Closed())
		_, err := p.origin.NewContext()
		require.ErrorIs(t, err, hg.ErrClosed)
		for _, h := range k.kept {
			releaseUnanswered(h)
		}
	})
}

// TestHandleNeverClosed checks that handles that the program has not closed are counted and named,
// with their place where that is configured (F52).
func TestHandleNeverClosed(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Origin(hg.Config{Trace: true})
		id := p.rpc("echo", echo)
		var handles []*hg.Handle
		for range 100 {
			h := p.handle(id)
			handles = append(handles, h)
		}
		require.NoError(t, p.call(handles[0], "x"))
		e := shutdownError(t, p.origin.Shutdown(context.Background()))
		require.Equal(t, 100, e.Handles)
		require.Len(t, e.Open, 32)
		require.Contains(t, e.Open[0], "handle of echo is not closed, made at ")
		require.Contains(t, e.Open[0], "helpers_test.go:")
		require.ErrorIs(t, e, na.ErrBusy)
		require.True(t, p.origin.NA().Closed())
		for _, h := range handles {
			h.Close()
		}
		require.NoError(t, p.origin.Shutdown(context.Background()))
		require.NoError(t, p.target.Shutdown(context.Background()))
	})
}

// TestShutdownBothSides shuts both sides down at once, with calls both ways that have no answer
// (F53).
func TestShutdownBothSides(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cfg := lingerConfig(50 * time.Millisecond)
		a, actx := n.Target(cfg)
		b, bctx := n.Target(cfg)
		var mu sync.Mutex
		var kept []hg.Request
		keep := func(h hg.Request) error {
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, detach(h))
			return nil
		}
		for _, cls := range []*hg.Class{a, b} {
			_, err := cls.Register("keep", keep)
			require.NoError(t, err)
		}
		const calls = 10
		var ended atomic.Int32
		for i := range 2 * calls {
			from, to := actx, b
			if i%2 == 0 {
				from, to = bctx, a
			}
			h, err := from.Create(to.Addr(), hg.HashName("keep"))
			require.NoError(t, err)
			require.NoError(t, h.Forward(i, func(_ *hg.Handle, err error) {
				assert.Error(t, err)
				ended.Add(1)
			}))
			h.Close()
		}
		n.Until(func() bool { return len(kept) == 2*calls })
		errs := make(chan error)
		for _, cls := range []*hg.Class{a, b} {
			go func() { errs <- cls.Shutdown(context.Background()) }()
		}
		for range 2 {
			require.Equal(t, calls, shutdownError(t, <-errs).Handlers)
		}
		require.EqualValues(t, 2*calls, ended.Load())
		require.True(t, a.NA().Closed())
		require.True(t, b.NA().Closed())
		for _, h := range kept {
			releaseUnanswered(h)
		}
	})
}

// TestUnknownRPCThenShutdown checks that a request for an RPC that is not registered does not keep
// either side from ending (F54).
func TestUnknownRPCThenShutdown(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(time.Minute))
		for _, c := range []struct {
			name   string
			oneWay bool
			size   int
		}{{"small", false, 1}, {"large", false, 1 << 20}, {"one way", true, 1}, {"large one way", true, 1 << 20}} {
			id, err := p.origin.RegisterRPC(hg.RPC{Name: c.name, OneWay: c.oneWay})
			require.NoError(t, err)
			h := p.handle(id)
			switch err := p.call(h, make([]byte, c.size)); {
			case !c.oneWay:
				requireCode(t, err, hg.ErrNoMethod)
				require.Equal(t, na.NotRun, hg.FateOf(err))
			case c.size == 1:
				require.NoError(t, err)
			}
			h.Close()
		}
		require.NoError(t, p.target.Shutdown(context.Background()))
		require.NoError(t, p.origin.Shutdown(context.Background()))
	})
}

// TestShutdownSendsAnswers checks that the last answers arrive before the connections are cut, also
// when there is no time for anything else.
func TestShutdownSendsAnswers(t *testing.T) {
	t.Run("virtual", func(t *testing.T) {
		transports.Virtual(t, func(t *testing.T, n *transports.Net) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			shutdownSendsAnswers(t, n, ctx)
		})
	})
	transports.Each(t, func(t *testing.T, n *transports.Net) { shutdownSendsAnswers(t, n, context.Background()) })
}

func shutdownSendsAnswers(t *testing.T, n *transports.Net, ctx context.Context) {
	cfg := lingerConfig(time.Minute)
	cfg.NA.Envelopes, cfg.NA.Eager = 256, 16<<10
	p := newPair(t, n, cfg)
	var k holdingTarget
	id := p.rpc("keep", k.handler)
	const calls = 128
	outs := make([]outcome, calls)
	for i := range outs {
		h := p.handle(id)
		require.NoError(t, h.Forward(i, outs[i].cb))
		h.Close()
	}
	n.Until(func() bool { return len(k.kept) == calls })
	p.tctx.Post(func() { // inside Shutdown
		for _, h := range k.kept {
			assert.NoError(t, h.RespondRaw(make([]byte, 15<<10), nil))
		}
	})
	_ = p.target.Shutdown(ctx)
	require.True(t, p.target.NA().Closed())
	n.Until(func() bool { return outs[calls-1].calls == 1 })
	for i := range outs {
		require.Equal(t, 1, outs[i].calls)
		require.NoError(t, outs[i].err, "call %d", i)
	}
}

// TestH17 checks that with a thousand calls in flight every callback has returned, with ErrClosed,
// before the class reports that it is closed, although several goroutines run them (H17).
func TestH17(t *testing.T) {
	const calls = 1000
	for _, how := range []struct {
		name string
		end  func(cls *hg.Class) error
	}{
		{"Close", func(cls *hg.Class) error { return cls.Close() }},
		{"Shutdown", func(cls *hg.Class) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := cls.Shutdown(ctx); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("got %w, want context canceled", err)
			}
			return nil
		}},
	} {
		t.Run(how.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{})
				var k holdingTarget
				id := p.rpc("keep", k.handler)
				var entered, returned atomic.Int32
				for i := range calls {
					h := p.handle(id)
					require.NoError(t, h.Forward(i, func(h *hg.Handle, err error) {
						entered.Add(1)
						assert.ErrorIs(t, err, hg.ErrClosed)
						for range 100 { // others continue meanwhile
							_ = p.octx.Stats()
						}
						h.Close()
						returned.Add(1)
					}))
				}
				n.Until(func() bool { return len(k.kept) > 0 })
				n.Serve(p.octx, 4)
				require.NoError(t, how.end(p.origin))
				n.Until(p.origin.NA().Closed)
				require.EqualValues(t, calls, entered.Load(), "callbacks that have begun when all is closed")
				require.EqualValues(t, calls, returned.Load(), "callbacks that have returned")
				require.Zero(t, p.octx.Stats().Handles)
				for _, h := range k.kept {
					releaseUnanswered(h)
				}
			})
		})
	}
}

// TestH17CallbackStillToRun checks that a class is not closed while the callback of a call that its
// Close has ended is still to run (H17).
func TestH17CallbackStillToRun(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		n.Undriven(p.octx)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		require.NoError(t, p.origin.Close())
		require.False(t, p.origin.NA().Closed(), "closed before the callback has run")
		require.Zero(t, o.calls)
		h.Close()
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls)
		require.ErrorIs(t, o.err, hg.ErrClosed)
		n.Until(p.origin.NA().Closed) // by the leader, if there is one
	})
}

// TestClosedWaitsForCallbacks checks that a callback that another goroutine runs counts as long as
// it has not returned.
func TestClosedWaitsForCallbacks(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, hctx := n.Origin(hg.Config{})
		n.Undriven(hctx)
		inside, leave, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		hctx.Post(func() {
			close(inside)
			<-leave
		})
		go func() {
			hctx.Trigger(1)
			close(ended)
		}()
		<-inside
		require.NoError(t, cls.Close())
		err := cls.Shutdown(context.Background())
		require.False(t, cls.NA().Closed())
		require.EqualValues(t, 1, shutdownError(t, err).Callbacks)
		close(leave)
		<-ended
		require.NoError(t, cls.Shutdown(context.Background()))
		require.True(t, cls.NA().Closed())
	})
}

// TestShutdownRunsWhatCallbacksPost checks that functions that callbacks post run before Shutdown
// returns, also when everything else has been given back by then.
func TestShutdownRunsWhatCallbacksPost(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, hctx := n.Origin(hg.Config{})
		n.Undriven(hctx)
		ran := 0
		var again func()
		again = func() {
			if ran++; ran < 5 {
				hctx.Post(again)
			}
		}
		hctx.Post(again)
		require.NoError(t, cls.Close())
		require.NoError(t, cls.Shutdown(context.Background()))
		require.Equal(t, 5, ran)
		require.True(t, cls.NA().Closed())
	})
}

// TestShutdownWithFaultsQueued checks that a report of a lost session that waits for an OnFault
// callback is not work that Shutdown cuts off.
func TestShutdownWithFaultsQueued(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		other := n.Context(p.target) // driven after tctx
		var peer na.Addr
		h := p.handle(p.rpc("who", func(r hg.Request) error { peer = r.Peer(); return r.Respond(nil, nil) }))
		require.NoError(t, p.call(h, nil))
		require.NoError(t, h.Close())
		p.requireClean(0)
		lost := 0
		p.tctx.OnFault(func(na.Addr, error) { lost++ })
		require.NoError(t, other.Post(func() { p.tctx.NA().Disconnect(peer, hg.ErrPeerLost) })) // inside Shutdown
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, p.target.Shutdown(ctx))
		require.Equal(t, 1, lost)
	})
}

// TestTriggersDuringCancelAndClose runs several goroutines in Trigger while calls are canceled and
// their handles closed: each callback runs once (F55).
func TestTriggersDuringCancelAndClose(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		n.Serve(p.octx, 4)
		n.Serve(p.tctx, 2)
		const calls = 300
		ran := make([]atomic.Int32, calls)
		var ended atomic.Int32
		var cancels sync.WaitGroup
		for i := range calls {
			h := p.handle(id)
			require.NoError(t, h.Forward(i, func(h *hg.Handle, err error) {
				if err != nil {
					assert.ErrorIs(t, err, hg.ErrCanceled)
				}
				ran[i].Add(1)
				ended.Add(1)
			}))
			h.Close()
			cancels.Add(1)
			go func() {
				defer cancels.Done()
				if i%3 != 0 {
					h.Cancel()
				}
				h.Close()
			}()
			h.Close()
		}
		cancels.Wait()
		n.Until(func() bool { return ended.Load() == calls })
		require.NoError(t, p.origin.Shutdown(context.Background()))
		for i := range ran {
			require.EqualValues(t, 1, ran[i].Load(), "callbacks of call %d", i)
		}
	})
}

// TestTargetNotDriven checks that a target that no goroutine drives is alive all the same;
// the call ends by its deadline only (F56).
func TestTargetNotDriven(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, n *transports.Net, silence, timeout time.Duration) {
		p := newPair(t, n, hg.Config{NA: na.Config{PeerTimeout: silence}})
		id := p.rpc("echo", echo)
		h := p.handle(id)
		defer h.Close()
		require.NoError(t, p.call(h, "x"))
		n.Undriven(p.tctx)
		h.SetTimeout(timeout)
		err := p.call(h, "y")
		require.ErrorIs(t, err, hg.ErrTimeout)
		require.NotErrorIs(t, err, hg.ErrPeerLost)
		require.Zero(t, p.octx.Stats().NA.PeersLost)
		for p.tctx.Progress(0) == nil {
			p.tctx.Trigger(0)
		}
	}
	t.Run("virtual", func(t *testing.T) {
		transports.Virtual(t, func(t *testing.T, n *transports.Net) { check(t, n, time.Second, 30*time.Second) })
	})
	transports.Each(t, func(t *testing.T, n *transports.Net) { check(t, n, 500*time.Millisecond, 1200*time.Millisecond) })
}

// TestShutdownOfAnotherClassInside checks that a callback or handler may shut down another class,
// at any depth: that does not wait for itself. It may not shut down its own class, nor one that
// runs it further up, and that refuses without an effect.
func TestShutdownOfAnotherClassInside(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, dispatched := range []bool{false, true} {
			var cfg hg.Config
			var given []hg.Request
			if dispatched {
				cfg.Dispatch = func(r hg.Request) { given = append(given, r) }
			}
			p := &pair{Net: n, t: t}
			p.target, p.tctx = n.Target(cfg)
			p.origin, p.octx = n.Origin(hg.Config{})
			other, xctx := n.Origin(hg.Config{})
			third, _ := n.Origin(hg.Config{})
			own, nested, outer, free := errors.New("not called"), errors.New("not called"), errors.New("not called"), errors.New("not called")
			h := p.handle(p.rpc("x", func(r hg.Request) error {
				own = p.target.Shutdown(t.Context())
				require.NoError(t, xctx.Post(func() { // runs in Trigger of another class, which the handler calls
					outer = p.tctx.Shutdown(t.Context())
					nested = other.Shutdown(t.Context())
				}))
				xctx.Trigger(0)
				free = errors.Join(other.Shutdown(t.Context()), third.Shutdown(t.Context()))
				return r.RespondRaw(nil, nil)
			}))
			var o outcome
			require.NoError(t, h.Forward(nil, o.cb))
			n.Until(func() bool {
				if len(given) > 0 {
					require.NoError(t, given[0].Run())
					given = nil
				}
				return o.calls > 0
			})
			require.NoError(t, o.err)
			require.ErrorIs(t, own, na.ErrBusy)
			require.ErrorIs(t, outer, na.ErrBusy)
			require.ErrorIs(t, nested, na.ErrBusy)
			require.NoError(t, free)
			require.True(t, other.NA().Closed())
			require.True(t, third.NA().Closed())
			require.False(t, p.tctx.NA().Draining(), "a Shutdown that refuses does nothing")
			require.NoError(t, h.Close())
		}
	})
}
