package hg_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// newAuthorizedPair returns a pair whose target calls an authorizer for each request.
func newAuthorizedPair(t *testing.T, n *transports.Net, ask hg.Authorizer) *pair {
	p := &pair{Net: n, t: t}
	p.target, p.tctx = n.Target(hg.Config{Authorize: ask})
	p.origin, p.octx = n.Origin(hg.Config{})
	return p
}

// TestAuthorizerDenies checks that anything but a nil error denies the request (F86).
func TestAuthorizerDenies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		code       hg.Code
		ask        func() error
	}{
		{"Error", "not you", hg.ErrPermission, func() error { return errors.New("not you") }},
		{"CodeOfOurs", "its own time", hg.ErrPermission, func() error { return hg.Errorf(hg.ErrTimeout, "its own time") }},
		{"Denied", "not you", hg.ErrDenied, func() error { return hg.Errorf(hg.ErrDenied, "not you") }},
		{"Program", "quota", 200, func() error { return hg.Errorf(200, "quota") }},
		{"Panic", "the authorizer panicked; see the target's log", hg.ErrPermission, func() error { panic("oops") }},
		{"NilPanic", "the authorizer panicked", hg.ErrPermission, func() error { panic(nil) }},
		{"EndsItsGoroutine", "the authorizer called runtime.Goexit", hg.ErrPermission, func() error { runtime.Goexit(); return nil }},
		{"ErrorThatPanics", "the authorizer panicked; see the target's log", hg.ErrPermission, func() error { return (*badError)(nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				deny := true
				p := newAuthorizedPair(t, n, func(context.Context, hg.Caller, *hg.RPC) error {
					if deny {
						return c.ask()
					}
					return nil
				})
				n.Undriven(p.tctx) // by hand: it may end its goroutine
				ran := 0
				id := p.rpc("x", func(h hg.Request) error { ran++; return echo(h) })
				oneWay := p.oneWay("y", func(hg.Request) error { ran++; return nil })
				drive := func(done func() bool) {
					n.Until(func() bool {
						ended := make(chan struct{})
						go func() {
							defer close(ended)
							_ = p.tctx.Progress(0)
							p.tctx.Trigger(0)
						}()
						<-ended
						return done()
					})
				}
				h := p.handle(id)
				defer h.Close()
				for _, size := range []int{1, 1 << 20} { // the second is not fetched
					var o outcome
					require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
					drive(func() bool { return o.calls == 1 })
					requireCode(t, o.err, c.code)
					require.ErrorIs(t, o.err, c.code)
					require.ErrorIs(t, o.err, hg.ErrRefused)
					require.Equal(t, c.code == hg.ErrPermission, errors.Is(o.err, fs.ErrPermission))
					require.ErrorContains(t, o.err, c.text)
					require.Equal(t, na.NotRun, hg.FateOf(o.err))
				}
				require.NoError(t, h.Reset(p.target.Addr(), oneWay))
				for i, size := range []int{1, 1 << 20} {
					var o outcome
					require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
					drive(func() bool { return o.calls == 1 && p.tctx.Stats().Dropped == int64(i+1) })
				}
				require.Zero(t, ran)
				require.EqualValues(t, 4, p.tctx.Stats().Denied)
				deny = false
				require.NoError(t, h.Reset(p.target.Addr(), id))
				var o outcome
				require.NoError(t, h.ForwardRaw(make([]byte, 1<<20), o.cb))
				drive(func() bool { return o.calls == 1 })
				require.NoError(t, o.err)
				drive(func() bool {
					s := p.tctx.Stats()
					return s.Handles == 0 && s.Pulled == 0 && s.NA.Envelopes == 0 && p.octx.Stats().Lent == 0 &&
						p.octx.Stats().NA.Regions == 0
				})
			})
		})
	}
}

type badError struct{ text string }

func (e *badError) Error() string { return e.text } // of nil: it panics

// TestAuthorizerArguments checks that the authorizer gets the caller and the entry: that one runs,
// whatever is registered meanwhile. Input larger than a message stays with the origin until the
// authorizer has agreed.
func TestAuthorizerArguments(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var p *pair
		var from hg.Caller
		asked, ran := 0, ""
		p = newAuthorizedPair(t, n, func(ctx context.Context, caller hg.Caller, rpc *hg.RPC) error {
			asked++
			from = caller
			assert.NoError(t, ctx.Err())
			assert.Equal(t, "x", rpc.Name)
			assert.Zero(t, p.octx.NA().Upper().Underway().Reached, "input was fetched before the authorizer has agreed")
			assert.Zero(t, p.tctx.Stats().Active)
			assert.NoError(t, p.target.Deregister(hg.HashName("x")))
			_, err := p.target.Register("x", func(h hg.Request) error { ran = "another"; return echo(h) })
			assert.NoError(t, err)
			return nil
		})
		var addr na.Addr
		id := p.rpc("x", func(h hg.Request) error {
			ran, addr = "what was authorized", h.Peer()
			who, ok := p.tctx.NA().Identity(h.Peer())
			assert.True(t, ok)
			assert.Equal(t, from.Identity, who)
			assert.Equal(t, from, h.Caller())
			err := echo(h)
			assert.Equal(t, hg.Caller{Addr: h.Peer()}, h.Caller())
			return err
		})
		h := p.handle(id)
		defer h.Close()
		in := make([]byte, 1<<20)
		in[1<<19] = 7
		require.NoError(t, p.call(h, in))
		require.Equal(t, "what was authorized", ran)
		require.Equal(t, 1, asked)
		require.Equal(t, addr, from.Addr)
		require.NotZero(t, from.Addr.Session())
		require.NotZero(t, from.Incarnation)
		require.NotEmpty(t, from.Remote)
		require.Equal(t, n.TLS, from.Secure)
		require.Equal(t, n.TLS, from.Name != "")
		var out []byte
		require.NoError(t, h.Output(&out))
		require.Equal(t, in, out)
		_, ok := p.tctx.NA().Identity(p.origin.Addr())
		require.False(t, ok, "an address that is bound to no session")
		p.requireClean(1)
	})
}

// TestAuthorizerBlocks checks that an authorizer that blocks holds up the Trigger that runs it, and
// no other (F86).
func TestAuthorizerBlocks(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var entered atomic.Int32
		decide := make(chan error)
		p := newAuthorizedPair(t, n, func(_ context.Context, _ hg.Caller, rpc *hg.RPC) error {
			if rpc.Name == "slow" {
				entered.Add(1)
				return <-decide
			}
			return nil
		})
		slow, quick := p.rpc("slow", echo), p.rpc("quick", echo)
		n.Serve(p.tctx, 3)
		outs := make([]outcome, 2)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(slow))
			require.NoError(t, handles[i].Forward(i, outs[i].cb))
		}
		n.Until(func() bool { return entered.Load() == 2 })
		h := p.handle(quick)
		for range 10 {
			require.NoError(t, p.call(h, "x"))
		}
		require.Zero(t, outs[0].calls+outs[1].calls)
		decide <- nil
		decide <- errors.New("no")
		n.Until(func() bool { return outs[0].calls == 1 && outs[1].calls == 1 })
		require.NotEqual(t, outs[0].err == nil, outs[1].err == nil)
		for _, h := range append(handles, h) {
			h.Close()
		}
		p.requireClean(0)
	})
}

// TestAuthorizerContextEndsOnAbandon checks that the context of an authorizer that blocks ends when the
// origin abandons the call.
func TestAuthorizerContextEndsOnAbandon(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var entered, ended atomic.Int32
		p := newAuthorizedPair(t, n, func(ctx context.Context, _ hg.Caller, _ *hg.RPC) error {
			entered.Add(1)
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), hg.ErrCanceled) {
				ended.Add(1)
			}
			return nil
		})
		var ran atomic.Int32
		id := p.rpc("x", func(h hg.Request) error { ran.Add(1); return echo(h) })
		n.Serve(p.tctx, 2)
		var o outcome
		var w withdrawOutcome
		h := p.handle(id)
		for i, end := range []func(){h.Abandon, func() { assert.NoError(t, h.Withdraw(0, w.cb)) }} {
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return int(entered.Load()) == i+1 })
			require.EqualValues(t, i, ended.Load())
			end()
			n.Until(func() bool { return int(ended.Load()) == i+1 && o.calls == i+1 })
			require.ErrorIs(t, o.err, hg.ErrCanceled)
		}
		n.Until(func() bool { return w.n == 1 })
		require.Equal(t, hg.Withdrawn, w.r)
		require.Zero(t, ran.Load())
		h.Close()
		p.requireClean(0)
	})
}

// TestAuthorizerSkippedAfterWithdraw checks that the authorizer is not called for a request that was
// withdrawn before its turn.
func TestAuthorizerSkippedAfterWithdraw(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var p *pair
		var first, second *hg.Handle
		asked := 0
		p = newAuthorizedPair(t, n, func(context.Context, hg.Caller, *hg.RPC) error {
			if asked++; asked == 1 { // both have been taken out of their envelopes' queue
				second.Abandon()
				p.triggerOriginUntil(func() bool { return p.tctx.Stats().NA.Withdrawn == 1 })
			}
			return nil
		})
		id := p.rpc("x", echo)
		first, second = p.handle(id), p.handle(id)
		var a, b outcome
		require.NoError(t, first.ForwardRaw(nil, a.cb))
		require.NoError(t, second.ForwardRaw(nil, b.cb))
		p.waitForRequests(2)
		require.Equal(t, 2, p.tctx.Trigger(0), "both are dispatched")
		require.Equal(t, 1, asked)
		p.Until(func() bool { return a.calls == 1 && b.calls == 1 })
		require.NoError(t, a.err)
		require.ErrorIs(t, b.err, hg.ErrCanceled)
		first.Close()
		second.Close()
		p.requireClean(0)
	})
}

// TestAuthorizerSkippedAfterRefusal checks that the authorizer is not called for a request that is refused
// for another reason.
func TestAuthorizerSkippedAfterRefusal(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		asked := 0
		p := newAuthorizedPair(t, n, func(context.Context, hg.Caller, *hg.RPC) error { asked++; return nil })
		id, err := p.origin.Register("unknown", nil)
		require.NoError(t, err)
		h := p.handle(id)
		defer h.Close()
		_, err = p.target.Register("secret", echo)
		require.NoError(t, err)
		err = p.call(h, "x")
		requireCode(t, err, hg.ErrNoMethod)
		require.NotContains(t, err.Error(), "secret", "names are only for authorized callers")
		require.NoError(t, h.Reset(p.target.Addr(), p.rpc("x", echo)))
		var o outcome
		require.NoError(t, h.Forward("waits for its handler", o.cb))
		n.Undriven(p.tctx)
		n.Until(func() bool {
			_ = p.tctx.Progress(0)
			return p.tctx.Stats().Queued > 0
		})
		p.tctx.NA().Drain()
		n.Until(func() bool {
			_ = p.tctx.Progress(0)
			p.tctx.Trigger(0)
			return o.calls == 1
		})
		requireCode(t, o.err, hg.ErrDraining)
		n.Serve(p.tctx, 1)
		err = p.call(h, make([]byte, 1<<20))
		requireCode(t, err, hg.ErrDraining)
		require.Equal(t, na.NotRun, hg.FateOf(err))
		require.Zero(t, asked)
		p.requireClean(1)
	})
}

// TestDeniedIsLogged checks that denied requests are visible at the target: a counter, and a line
// in the log, one a second.
func TestDeniedIsLogged(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var mu sync.Mutex
		var log bytes.Buffer
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{
			Authorize: func(context.Context, hg.Caller, *hg.RPC) error { return hg.Errorf(hg.ErrDenied, "not you") },
			Logger:    slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil)),
		})
		p.origin, p.octx = n.Origin(hg.Config{})
		h := p.handle(p.rpc("x", echo))
		defer h.Close()
		for range 3 {
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return o.calls == 1 })
			require.ErrorIs(t, o.err, hg.ErrDenied)
		}
		require.EqualValues(t, 3, p.tctx.Stats().Denied)
		mu.Lock()
		defer mu.Unlock()
		require.Contains(t, log.String(), "request denied")
		require.Contains(t, log.String(), "not you")
	})
}

// A lockedWriter writes under a lock.
type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
