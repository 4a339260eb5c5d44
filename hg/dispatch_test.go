package hg_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// withDispatch runs f with a pair whose target appends its requests to given, until f runs them.
func withDispatch(t *testing.T, f func(t *testing.T, p *pair, given *[]hg.Request), cfg hg.Config) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		given := []hg.Request{}
		cfg := cfg
		cfg.Dispatch = func(r hg.Request) { given = append(given, r) }
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(cfg)
		p.origin, p.octx = n.Origin(hg.Config{})
		f(t, p, &given)
	})
}

// runOnWorker runs r on a goroutine of its own, which may be ended.
func runOnWorker(r hg.Request) (err error) {
	ended := make(chan struct{})
	err = errors.New("the goroutine was ended")
	go func() {
		defer close(ended)
		err = r.Run()
	}()
	<-ended
	return err
}

// TestDispatchedHandlerIsAnswered checks that a request is answered as in Trigger, whatever its
// handler does.
func TestDispatchedHandlerIsAnswered(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler hg.Handler
		want    hg.Code
	}{
		{"Echo", echo, na.OK},
		{"Error", func(hg.Request) error { return hg.Errorf(hg.ErrNotFound, "none") }, hg.ErrNotFound},
		{"Panic", func(hg.Request) error { panic("oops") }, hg.ErrPanic},
		{"EndsItsGoroutine", func(hg.Request) error { runtime.Goexit(); return nil }, hg.ErrPanic},
		{"Silence", func(hg.Request) error { return nil }, na.ErrNoResponse},
	} {
		t.Run(c.name, func(t *testing.T) {
			withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
				ran := 0
				h := p.handle(p.rpc("x", func(r hg.Request) error { ran++; return c.handler(r) }))
				defer h.Close()
				for i, size := range []int{1, 1 << 20} {
					var o outcome
					require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
					p.Until(func() bool { return len(*given) > i })
					require.Equal(t, i, ran, "the handler does not run in Trigger")
					r := (*given)[i]
					_ = runOnWorker(r)
					require.Equal(t, i+1, ran)
					require.ErrorIs(t, runOnWorker(r), hg.ErrInvalid, "a second Run")
					p.Until(func() bool { return o.calls == 1 })
					if c.want == na.OK {
						require.NoError(t, o.err)
					} else {
						requireCode(t, o.err, c.want)
						require.Equal(t, na.Ran, hg.FateOf(o.err))
					}
					require.ErrorIs(t, runOnWorker(r), hg.ErrInvalid, "it has ended")
				}
				require.Equal(t, 2, ran)
				p.requireClean(1)
			}, hg.Config{})
		})
	}
	require.ErrorIs(t, hg.Request{}.Run(), hg.ErrInvalid)
}

// TestDispatchedWithdrawFreesPlace checks that a request that is withdrawn before Run gives its place to
// the next one, which need not wait for Run of the first.
func TestDispatchedWithdrawFreesPlace(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		id := p.rpc("x", echo)
		outs := make([]outcome, 3)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw([]byte{byte(i)}, outs[i].cb))
			p.Until(func() bool { return len(*given)+int(p.tctx.Stats().Waiting) == i+1 })
		}
		require.Len(t, *given, 1)
		handles[0].Abandon()
		p.Until(func() bool { return len(*given) == 2 })
		var w withdrawOutcome
		require.NoError(t, handles[1].Withdraw(0, w.cb))
		p.Until(func() bool { return len(*given) == 3 && w.n == 1 })
		require.Equal(t, hg.Withdrawn, w.r)
		for _, r := range (*given)[:2] {
			require.ErrorIs(t, r.Run(), hg.ErrInvalid, "it has ended")
		}
		require.NoError(t, (*given)[2].Run())
		p.Until(func() bool { return outs[0].calls+outs[1].calls+outs[2].calls == 3 })
		require.NoError(t, outs[2].err)
		require.Equal(t, hg.NotRun, hg.FateOf(outs[1].err))
		for _, h := range handles {
			h.Close()
		}
		p.requireClean(0)
	}, hg.Config{MaxActive: 1})
}

// TestDispatchedBeforeRun checks that until it is run a request gives its caller, and no more.
func TestDispatchedBeforeRun(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		h := p.handle(p.rpc("x", echo))
		defer h.Close()
		var o outcome
		require.NoError(t, h.ForwardRaw([]byte("in"), o.cb))
		p.Until(func() bool { return len(*given) == 1 })
		r := (*given)[0]
		_, err := r.InputRaw()
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorIs(t, r.Respond(nil, nil), hg.ErrInvalid)
		require.ErrorIs(t, r.RespondError(hg.ErrAgain, nil), hg.ErrInvalid)
		require.ErrorIs(t, r.Detach(), hg.ErrInvalid)
		r.Cancel()
		require.Equal(t, "x", r.Name())
		require.False(t, r.Peer().IsZero())
		ctx := r.Context()
		require.NoError(t, ctx.Err())
		require.NoError(t, r.Run())
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		p.Until(func() bool { return ctx.Err() != nil }) // the answer may arrive before its sending has ended
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		p.requireClean(1)
	}, hg.Config{})
}

// TestDispatchedForTheAuthorizer checks that the authorizer runs in Run; an input that is fetched
// once it has agreed is dispatched again, as another Request.
func TestDispatchedForTheAuthorizer(t *testing.T) {
	asked, deny := 0, false
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		asked, deny = 0, false
		ran := 0
		h := p.handle(p.rpc("x", func(r hg.Request) error { ran++; return echo(r) }))
		defer h.Close()
		var o outcome
		require.NoError(t, h.ForwardRaw(make([]byte, 1<<20), o.cb))
		p.Until(func() bool { return len(*given) == 1 })
		require.Zero(t, asked, "not in Trigger")
		require.NoError(t, (*given)[0].Run())
		require.Equal(t, 1, asked)
		require.Zero(t, ran)
		require.ErrorIs(t, (*given)[0].Run(), hg.ErrInvalid)
		p.Until(func() bool { return len(*given) == 2 })
		require.ErrorIs(t, (*given)[0].Run(), hg.ErrInvalid, "it is that of the first dispatch")
		require.NoError(t, (*given)[1].Run())
		require.Equal(t, 1, ran)
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		deny = true
		require.NoError(t, h.ForwardRaw(make([]byte, 1<<20), o.cb))
		p.Until(func() bool { return len(*given) == 3 })
		require.NoError(t, (*given)[2].Run())
		p.Until(func() bool { return o.calls == 2 })
		requireCode(t, o.err, hg.ErrPermission)
		require.Equal(t, na.NotRun, hg.FateOf(o.err))
		require.Equal(t, []int{1, 2, 3}, []int{ran, asked, len(*given)})
		p.requireClean(1)
	}, hg.Config{Authorize: func(context.Context, hg.Caller, *hg.RPC) error {
		if asked++; deny {
			return errors.New("no")
		}
		return nil
	}})
}

// TestInlineUnderAnAuthorizer checks that an authorizer that blocks holds no Trigger up, for an
// Inline RPC either: that is dispatched, unless the authorizer is declared quick.
func TestInlineUnderAnAuthorizer(t *testing.T) {
	for _, quick := range []bool{false, true} {
		t.Run(fmt.Sprintf("Quick=%t", quick), func(t *testing.T) {
			asked := 0
			withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
				asked = 0
				_, err := p.target.RegisterRPC(hg.RPC{Name: "in", Handler: echo, Inline: true})
				require.NoError(t, err)
				id, err := p.origin.Register("in", nil)
				require.NoError(t, err)
				h := p.handle(id)
				defer h.Close()
				for i, n := range []int{10, 1 << 20} { // the second is fetched after the authorizer has agreed
					var o outcome
					require.NoError(t, h.ForwardRaw(make([]byte, n), o.cb))
					for ran := 0; o.calls == 0; {
						p.Until(func() bool { return o.calls == 1 || len(*given) > ran })
						for ; ran < len(*given); ran++ {
							_ = (*given)[ran].Run()
						}
					}
					require.NoError(t, o.err)
					require.Equal(t, i+1, asked)
				}
				require.Equal(t, quick, len(*given) == 0, "%d requests were dispatched", len(*given))
				p.requireClean(1)
			}, hg.Config{AuthorizeQuick: quick, Authorize: func(context.Context, hg.Caller, *hg.RPC) error { asked++; return nil }})
		})
	}
}

// TestDispatchedAndNeverRun checks that a request that is never run ends at its deadline, with a
// shutdown, and with its session; a later Run runs nothing.
func TestDispatchedAndNeverRun(t *testing.T) {
	never := func(hg.Request) error { panic("it runs") }
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		id := p.rpc("x", never)
		h := p.handle(id)
		defer h.Close()
		h.SetTimeout(20 * time.Millisecond)
		var o outcome
		for len(*given) == 0 { // it may expire in flight
			calls := o.calls
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			p.Until(func() bool { return o.calls > calls })
			require.ErrorIs(t, o.err, hg.ErrTimeout)
		}
		p.requireClean(1)
		require.ErrorIs(t, (*given)[0].Run(), hg.ErrInvalid)

		h.SetTimeout(0)
		calls := o.calls
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(*given) == 2 })
		ctx := (*given)[1].Context()
		require.NoError(t, p.target.Shutdown(t.Context()), "nothing was cut off")
		p.Until(func() bool { return o.calls > calls })
		requireCode(t, o.err, hg.ErrDraining)
		require.Equal(t, na.NotRun, hg.FateOf(o.err))
		require.Error(t, ctx.Err())
		require.ErrorIs(t, (*given)[1].Run(), hg.ErrInvalid)
	}, hg.Config{})
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		h := p.handle(p.rpc("x", never))
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(*given) == 1 })
		ctx := (*given)[0].Context()
		h.Close()
		require.NoError(t, p.origin.Close())
		p.Until(func() bool { return p.tctx.Stats().Handles == 0 })
		require.ErrorIs(t, context.Cause(ctx), hg.ErrPeerLost)
		require.ErrorIs(t, (*given)[0].Run(), hg.ErrInvalid)
	}, hg.Config{})
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		h := p.handle(p.rpc("x", never))
		defer h.Close()
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(*given) == 1 })
		require.NoError(t, p.target.Close())
		p.Until(func() bool { return o.calls == 1 && p.target.NA().Closed() })
		require.Error(t, o.err)
		require.ErrorIs(t, (*given)[0].Run(), hg.ErrInvalid)
	}, hg.Config{})
}

// TestDispatchedWithdraw checks that the origin may take a request back until it is run.
func TestDispatchedWithdraw(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		id := p.rpc("x", func(hg.Request) error { panic("it runs") })
		h := p.handle(id)
		defer h.Close()
		var o outcome
		for i, back := range []func(){
			func() {
				var result hg.WithdrawResult
				reported := false
				require.NoError(t, h.Withdraw(time.Minute, func(_ *hg.Handle, r hg.WithdrawResult) { reported, result = true, r }))
				p.Until(func() bool { return reported })
				require.Equal(t, hg.Withdrawn, result)
			},
			h.Abandon,
		} {
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			p.Until(func() bool { return len(*given) == i+1 })
			back()
			p.Until(func() bool { return o.calls == i+1 && p.tctx.Stats().NA.Envelopes == 0 })
			require.ErrorIs(t, o.err, hg.ErrCanceled)
			p.requireClean(1)
			require.ErrorIs(t, (*given)[i].Run(), hg.ErrInvalid, "it has ended")
		}
	}, hg.Config{})
}

// TestDispatchedCountAsActive checks that requests count as active from their dispatch on.
func TestDispatchedCountAsActive(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		const calls = 5
		id := p.rpc("x", echo)
		var o outcome
		for range calls {
			h := p.handle(id)
			defer h.Close()
			require.NoError(t, h.ForwardRaw(nil, o.cb))
		}
		p.Until(func() bool { return p.tctx.Stats().Waiting == calls-2 })
		for i := range calls {
			p.Until(func() bool { return len(*given) > i })
			require.LessOrEqual(t, len(*given), i+2)
			require.LessOrEqual(t, p.tctx.Stats().Active, int64(2))
			require.NoError(t, (*given)[i].Run())
		}
		p.Until(func() bool { return o.calls == calls })
		require.NoError(t, o.err)
		p.requireClean(calls)
	}, hg.Config{MaxActive: 2})
}

// TestInline checks that a handler that is Inline runs in Trigger, in a wait too; others run in
// none. A slow one is logged once.
func TestInline(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		inline, slow := 0, time.Duration(0)
		handler := func(r hg.Request) error {
			inline++
			if slow > 0 { // virtual time moves only in Progress
				begun := r.HG().Now()
				for r.HG().Now()-begun < slow {
					_ = r.HG().Progress(slow)
				}
			}
			return echo(r)
		}
		inlined := func(name string) *hg.Handle {
			_, err := p.target.RegisterRPC(hg.RPC{Name: name, Inline: true, Handler: handler})
			require.NoError(t, err)
			id, err := p.origin.Register(name, nil)
			require.NoError(t, err)
			return p.handle(id)
		}
		other, quick, own := p.handle(p.rpc("other", echo)), inlined("inline"), inlined("qs/own")
		defer other.Close()
		defer quick.Close()
		defer own.Close()
		var a, b outcome
		require.NoError(t, other.ForwardRaw(nil, a.cb))
		p.Until(func() bool { return len(*given) == 1 })
		require.NoError(t, quick.ForwardRaw(nil, b.cb))
		p.Until(func() bool {
			_ = p.tctx.WaitFor(t.Context(), 0, func() bool { return inline == 1 })
			return b.calls == 1
		})
		require.Zero(t, a.calls)
		require.NoError(t, (*given)[0].Run())
		p.Until(func() bool { return a.calls == 1 })

		var log bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(old)
		slow = 15 * time.Millisecond
		for range 2 {
			require.NoError(t, p.call(quick, nil))
		}
		require.Equal(t, 1, strings.Count(log.String(), "rpc=inline"), "%s", log.String())
		require.NoError(t, p.call(own, nil))
		require.NotContains(t, log.String(), "rpc=qs/own", "Inline of the library's own RPCs cannot be removed")
		require.Len(t, *given, 1)
		p.requireClean(3)
	}, hg.Config{})
}

// TestCyclicCalls has a handler of A call B, whose handler calls A: one goroutine drives each,
// and runs the handlers, too, unless others do.
func TestCyclicCalls(t *testing.T) {
	t.Run("Inline", func(t *testing.T) { testCyclicCalls(t, hg.Config{}) })
	t.Run("Dispatched", func(t *testing.T) {
		var workers sync.WaitGroup
		testCyclicCalls(t, hg.Config{Dispatch: func(r hg.Request) { workers.Go(func() { _ = r.Run() }) }})
		workers.Wait()
	})
}

func testCyclicCalls(t *testing.T, cfg hg.Config) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const calls = 20
		a, actx := n.Target(cfg)
		b, bctx := n.Target(cfg)
		onward := func(to *hg.Class, name string) hg.Handler {
			return func(r hg.Request) error {
				var in, out string
				if err := r.Input(&in); err != nil {
					return err
				}
				if err := callOnce(r.Context(), r.HG(), to.Addr(), hg.HashName(name), in, &out); err != nil {
					return err
				}
				return r.Respond(out+"!", nil)
			}
		}
		for _, cls := range []*hg.Class{a, b} {
			for name, handler := range map[string]hg.Handler{
				"first": onward(b, "second"), "second": onward(a, "third"), "third": echo,
			} {
				_, err := cls.Register(name, handler)
				require.NoError(t, err)
			}
		}
		_ = actx
		_, octx := n.Origin(hg.Config{})
		_, err := octx.Class().Register("first", nil)
		require.NoError(t, err)
		n.Undriven(actx, bctx)
		stop := make(chan struct{})
		var drivers sync.WaitGroup
		for _, hctx := range []*hg.Context{actx, bctx} {
			drivers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_ = hctx.Progress(time.Millisecond)
						hctx.Trigger(0)
					}
				}
			})
		}
		done := 0
		for range calls {
			h, err := octx.Create(a.Addr(), hg.HashName("first"))
			require.NoError(t, err)
			defer h.Close()
			require.NoError(t, h.Forward("x", func(h *hg.Handle, err error) {
				var out string
				if err == nil && h.Output(&out) == nil && out == "x!!" {
					done++
				}
			}))
		}
		n.Until(func() bool { return done == calls })
		close(stop)
		drivers.Wait()
	})
}

// TestBuiltInIsInline checks that the RPCs of the package itself need no worker.
func TestBuiltInIsInline(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		h := p.handle(hg.HashName(hg.PingRPC))
		defer h.Close()
		require.NoError(t, p.call(h, nil))
		require.Empty(t, *given)
	}, hg.Config{})
}

// TestShutdownWaitsForWorkers checks that a shutdown waits for handlers on workers; inside one it
// is refused, for it would wait for itself.
func TestShutdownWaitsForWorkers(t *testing.T) {
	withDispatch(t, func(t *testing.T, p *pair, given *[]hg.Request) {
		began, goOn, ended := make(chan error), make(chan struct{}), make(chan error)
		h := p.handle(p.rpc("x", func(r hg.Request) error {
			began <- r.HG().Class().Shutdown(context.Background())
			<-goOn
			return echo(r)
		}))
		defer h.Close()
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(*given) == 1 })
		go func() { ended <- (*given)[0].Run() }()
		require.ErrorIs(t, <-began, na.ErrBusy)
		require.NoError(t, p.target.Close())
		p.Until(func() bool { return o.calls == 1 })
		for range 3 {
			_ = p.tctx.Progress(0)
			p.tctx.Trigger(0)
		}
		require.False(t, p.target.NA().Closed(), "a handler runs")
		close(goOn)
		require.NoError(t, <-ended)
		p.Until(p.target.NA().Closed)
	}, hg.Config{})
}
