package hg_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// An endedContext is a context that has ended, and wakes no waiter, like one that ends between the answer
// and the check of it.
type endedContext struct {
	context.Context
	err atomic.Pointer[error]
}

func (l *endedContext) end(err error) { l.err.Store(&err) }

func (l *endedContext) Err() error {
	if p := l.err.Load(); p != nil {
		return *p
	}
	return nil
}

// TestAnswerAfterTheContext checks that whatever the handler answers when ctx has ended, the error
// of Call is that of ctx and the fate is the handler's, and success wins. A ctx that has not ended
// changes nothing.
func TestAnswerAfterTheContext(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var ctx *endedContext
		var ends, says error
		h := p.selfHandle(p.rpc("x", func(r hg.Request) error {
			if ends != nil {
				ctx.end(ends)
			}
			if says == nil {
				return r.RespondRaw(nil, nil)
			}
			return says
		}))
		for _, ends = range []error{context.DeadlineExceeded, context.Canceled, nil} {
			for _, says = range []error{context.DeadlineExceeded, context.Canceled, hg.Errorf(hg.ErrNotFound, "no"), hg.Refuse(hg.ErrNotReady), hg.ErrTimeout, nil} {
				ctx = &endedContext{Context: t.Context()}
				err := h.Call(ctx, nil, nil)
				switch {
				case says == nil:
					require.NoError(t, err)
					continue
				case ends == nil:
					require.ErrorIs(t, err, hg.ErrRemote)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, context.Canceled)
				default:
					late := ends == context.DeadlineExceeded
					require.ErrorIs(t, err, ends)
					for code := range hg.Code(255) {
						require.Equal(t, late && code == hg.ErrTimeout || !late && code == hg.ErrCanceled, errors.Is(err, code), "%v is code %d", err, code)
					}
				}
				remote, ok := hg.RemoteOf(err)
				require.True(t, ok, "its error is not lost: %v; %v, %v", err, ends, says)
				require.ErrorContains(t, err, remote.Text)
				want := hg.Ran
				if remote.Refused {
					want = hg.NotRun
				}
				require.Equal(t, want, hg.FateOf(err), "%v", err)
			}
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestAnswerAfterTheEnd checks the same for calls with callbacks that are canceled or whose time is
// up when the answer is there: sim has one clock.
func TestAnswerAfterTheEnd(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for name, end := range map[string]func(h *hg.Handle, hctx *hg.Context){
			"cancel":  func(h *hg.Handle, _ *hg.Context) { h.Cancel() },
			"abandon": func(h *hg.Handle, _ *hg.Context) { h.Abandon() },
			"timeout": func(_ *hg.Handle, hctx *hg.Context) {
				_ = hctx.WaitFor(context.Background(), 60*time.Millisecond, func() bool { return false })
			},
		} {
			p := newPair(t, n, hg.Config{})
			var h *hg.Handle
			h = p.handle(p.rpc(name, func(r hg.Request) error {
				end(h, r.HG())
				return hg.Errorf(hg.ErrNotFound, "no")
			}))
			want := hg.ErrCanceled
			if name == "timeout" {
				h.SetTimeout(50 * time.Millisecond)
				want = hg.ErrTimeout
			}
			err := p.call(h, nil)
			require.ErrorIs(t, err, want, name)
			require.NotErrorIs(t, err, hg.ErrNotFound, name)
			h.Close()
			p.requireClean(0)
		}
	})
}

// TestForbid checks that Forbid reaches a call that has not been forwarded yet, and no other.
func TestForbid(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		id := p.rpc("x", func(r hg.Request) error { ran++; return echo(r) })
		h := p.selfHandle(id)
		require.True(t, hghook.Forbid(h))
		for range 2 {
			for _, err := range []error{h.Call(t.Context(), nil, nil), h.ForwardRaw(nil, func(*hg.Handle, error) { t.Error("a callback of a call that was refused") })} {
				require.ErrorIs(t, err, hg.ErrCanceled)
				require.Equal(t, hg.NotRun, hg.FateOf(err))
			}
		}
		require.NoError(t, h.Reset(p.target.Addr(), id))
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		require.False(t, hghook.Forbid(h), "a call is under way")
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		require.NoError(t, h.Call(t.Context(), nil, nil))
		require.Equal(t, 2, ran)
		h.Close()
		p.requireClean(0)
	})
}

// selfHandle returns a handle for calls of the target to itself: Call drives both sides.
func (p *pair) selfHandle(id hg.ID) *hg.Handle {
	h, err := p.tctx.Create(p.tctx.Self(), id)
	require.NoError(p.t, err)
	return h
}
