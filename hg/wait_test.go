package hg_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// serve drives the target by itself until the test ends.
func (p *pair) serve() {
	p.Undriven(p.tctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for p.tctx.Progress(-1) == nil {
			p.tctx.Trigger(0)
		}
		p.tctx.Trigger(0)
	}()
	p.t.Cleanup(func() {
		require.NoError(p.t, p.target.Close())
		<-over
	})
}

// TestCall checks that a call that waits has its output when it returns, for any number of reads;
// its context ends it, and so does Close.
func TestCall(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		silent := p.rpc("silent", func(h hg.Request) error { detach(h); return nil })
		p.serve()
		h := p.handle(id)
		defer h.Close()
		for _, in := range []string{"one", "two"} {
			require.NoError(t, h.Call(context.Background(), in, nil))
			var out string
			require.NoError(t, h.Output(&out))
			require.Equal(t, in, out)
			_, err := h.CallRaw(context.Background(), []byte(in))
			require.NoError(t, err)
			raw, err := h.OutputRaw()
			require.NoError(t, err)
			require.Equal(t, in, string(raw))
		}
		require.NoError(t, h.Reset(h.Peer(), silent))
		ctx, cancel := context.WithCancelCause(context.Background())
		boom := errors.New("boom")
		cancel(boom)
		err := h.Call(ctx, nil, nil)
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.ErrorIs(t, err, boom)

		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		require.ErrorIs(t, h.Call(context.Background(), nil, nil), na.ErrBusy)
		h.Cancel()
		p.Until(func() bool { return o.calls == 1 })
		require.ErrorContains(t, h.Call(context.Background(), make(chan int), nil), "chan int", "it cannot be encoded")
		p.octx.Post(func() { _ = p.origin.Close() })
		require.ErrorIs(t, h.Call(context.Background(), nil, nil), hg.ErrClosed)
	})
}

// TestCallWaitsForEnvelope checks that where the target has no envelope, a call that does not wait
// fails under Block, and one that does is sent when it may (G16).
func TestCallWaitsForEnvelope(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxActive: 1, NA: na.Config{Envelopes: 1}})
		p.origin, p.octx = n.Origin(hg.Config{NA: na.Config{OnNoCredit: na.Block}})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		active, held, refused, waits := p.handle(id), p.handle(id), p.handle(id), p.handle(id)
		var first, second, third outcome
		require.NoError(t, active.ForwardRaw(nil, first.cb))
		p.Until(func() bool { return len(k.kept) == 1 && p.octx.NA().Peers()[0].Free == 1 })
		require.NoError(t, held.ForwardRaw(nil, second.cb)) // it stays in the only envelope
		p.Until(func() bool { return p.tctx.Stats().Waiting == 1 })
		require.Error(t, refused.Call(context.Background(), make(chan int), nil), "it cannot be encoded")
		require.NoError(t, refused.ForwardRaw(nil, third.cb), "and that it would have waited is forgotten")
		p.Until(func() bool { return third.calls == 1 })
		require.ErrorIs(t, third.err, hg.ErrNoCredit)
		requireFate(t, na.NotRun, third.err)

		answered := 0
		p.Undriven(p.tctx, p.octx)
		over := make(chan struct{})
		go func() { // the target continues once the call waits
			defer close(over)
			for answered < 3 {
				if p.octx.Stats().NA.Queued == 1 || answered > 0 {
					for len(k.kept) > 0 {
						k.answer()
						answered++
					}
				}
				_ = p.tctx.Progress(1e6)
				p.tctx.Trigger(0)
			}
			p.tctx.Trigger(0)
		}()
		_, err := waits.CallRaw(context.Background(), nil)
		require.NoError(t, err)
		<-over
		require.NoError(t, first.err)
		require.NoError(t, second.err)
		for _, h := range []*hg.Handle{active, held, refused, waits} {
			h.Close()
		}
	})
}

// A delayedContext is one that ends at some later look at it: its Done is never found closed.
type delayedContext struct {
	context.Context
	polls int
	end   func()
}

func (c *delayedContext) Done() <-chan struct{} { return nil }

func (c *delayedContext) Err() error {
	if c.polls--; c.polls < 0 {
		c.end()
	}
	return c.Context.Err()
}

// TestWaitReturnsCause checks that a context that ends in the moment in which the time of a wait is
// over gives its cause, or the wait returns the error of its timeout: nothing else, whatever the
// cause matches.
func TestWaitReturnsCause(t *testing.T) {
	transports.Fast(t, func(t *testing.T, n *transports.Net) {
		testWaitReturnsCause(t, newPair(t, n, hg.Config{}))
	})
}

func testWaitReturnsCause(t *testing.T, p *pair) {
	for _, cause := range []error{errors.New("boom"), os.ErrDeadlineExceeded, hg.ErrTimeout} {
		for looks := range 4 {
			inner, end := context.WithCancelCause(context.Background())
			late := func() *delayedContext { return &delayedContext{inner, looks, func() { end(cause) }} }
			if err := p.octx.Sleep(late(), time.Millisecond); err != nil {
				require.Equal(t, cause, err, looks)
			}
			err := p.octx.WaitFor(late(), 0, func() bool { return false })
			if inner.Err() == nil {
				require.Equal(t, hg.ErrTimeout, err, looks)
			} else {
				require.Equal(t, cause, err, looks)
			}
			end(nil)
		}
	}
}
