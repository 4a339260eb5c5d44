package hg_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// until drives on goroutines of its own, which callbacks end by a panic or by runtime.Goexit, until done reports true.
func (p *pair) until(done func() bool) {
	p.t.Helper()
	for over := false; !over && !p.t.Failed(); {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			p.Until(done)
			over = true
		}()
		<-ended
	}
}

// leaves are the ways in which a callback may not return.
var leaves = map[string]func(){"panic": func() { panic("ouch") }, "goexit": runtime.Goexit}

// TestForwardCallbackThatPanics checks that a callback that panics keeps no reference of its
// handle.
func TestForwardCallbackThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		for _, leave := range leaves {
			h := p.handle(id)
			calls := 0
			require.NoError(t, h.Forward(nil, func(h *hg.Handle, err error) {
				calls++
				assert.NoError(t, err)
				h.Close()
				leave()
			}))
			p.until(func() bool { return calls > 0 })
			require.Equal(t, 1, calls)
			p.requireClean(0)
		}
	})
}

// TestRespondCallbackThatPanics checks that a callback of a response that panics keeps no room of
// another handler.
func TestRespondCallbackThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		for name, leave := range leaves {
			calls := 0
			h := p.handle(p.rpc(name, func(h hg.Request) error {
				return h.Respond(nil, func(hg.Request, error) { calls++; leave() })
			}))
			var o outcome
			require.NoError(t, h.Forward(nil, o.cb))
			p.until(func() bool { return o.calls > 0 && calls > 0 })
			require.NoError(t, o.err)
			require.Zero(t, p.tctx.Stats().Active)
			h.Close()
			p.requireClean(0)
		}
	})
}

// TestWithdrawCallbackThatPanics checks that after a callback of a withdrawal panics the other
// callbacks of the same call run.
func TestWithdrawCallbackThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		for _, leave := range leaves {
			h := p.handle(id)
			var o outcome
			calls := 0
			require.NoError(t, h.Forward(nil, o.cb))
			for range 3 {
				require.NoError(t, h.Withdraw(0, func(*hg.Handle, hg.WithdrawResult) { calls++; leave() }))
			}
			h.Close()
			p.until(func() bool { return o.calls > 0 && calls == 3 })
			p.requireClean(0)
		}
	})
}

// TestHandlerErrorThatPanics checks that a handler that returns an error whose Error panics, as
// that of a nil pointer may, is answered.
func TestHandlerErrorThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("bad", func(hg.Request) error { return (*badError)(nil) }))
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		p.until(func() bool { return o.calls > 0 })
		require.ErrorIs(t, o.err, hg.ErrPanic)
		h.Close()
		p.requireClean(0)
	})
}

// TestFaultFuncThatPanics checks that after a function of OnFault panics the later ones are called:
// those of the user, and the one that ends the contexts of handlers.
func TestFaultFuncThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for name, leave := range leaves {
			p := newPair(t, n, hg.Config{})
			calls := 0
			for range 2 {
				p.tctx.OnFault(func(na.Addr, error) { calls++; leave() })
			}
			var m silentTarget
			h := p.handle(p.rpc(name, m.handler))
			require.NoError(t, h.Forward(nil, nil))
			h.Close()
			p.Until(func() bool { return len(m.kept) > 0 })
			defer releaseUnanswered(m.kept[0])
			ctx := m.kept[0].Context()
			p.octx.Close()
			p.until(func() bool { return calls == 2 && ctx.Err() != nil })
			require.ErrorIs(t, context.Cause(ctx), hg.ErrPeerLost)
		}
	})
}
