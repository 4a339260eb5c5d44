package hg_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestContextTravels checks that the end of the context of a call reaches the handler: it has the
// deadline beforehand, and its own context ends.
func TestContextTravels(t *testing.T) {
	t.Parallel()
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		type seen struct {
			left time.Duration
			ok   bool
			ctx  context.Context
		}
		begun := make(chan seen, 1)
		id := p.rpc("wait", func(r hg.Request) error {
			left, ok := r.TimeLeft()
			begun <- seen{left, ok, r.Context()}
			return r.Detach()
		})
		echoID := p.rpc("echo", echo)
		p.serve()
		h := p.handle(id)
		defer h.Close()
		// timesOut makes calls that end at a deadline until one has begun before that: on a busy machine it may not.
		timesOut := func(call func(limit time.Duration) error) {
			for limit := 100 * time.Millisecond; ; limit *= 2 {
				err := call(limit)
				require.ErrorIs(t, err, hg.ErrTimeout)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, hg.ErrCanceled)
				require.NotErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, hg.ErrRemote)
				require.NoError(t, callOnce(t.Context(), p.octx, p.target.Addr(), echoID, nil, nil)) // an earlier request has begun, or never does
				select {
				case at := <-begun:
					require.True(t, at.ok)
					require.LessOrEqual(t, at.left, limit)
					waitForEnd(t, at.ctx)
					return
				default:
					require.Less(t, limit, time.Minute, "no call begins")
				}
			}
		}
		timesOut(func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return h.Call(ctx, nil, nil)
		})
		timesOut(func(limit time.Duration) error { // the sooner counts
			h.SetTimeout(limit)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			return h.Call(ctx, nil, nil)
		})
		h.SetTimeout(0)

		why := errors.New("no need")
		stop, end := context.WithCancelCause(t.Context())
		var at seen
		go func() {
			at = <-begun
			end(why)
		}()
		err := h.Call(stop, nil, nil)
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		require.NotErrorIs(t, err, hg.ErrTimeout)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		waitForEnd(t, at.ctx)
		require.ErrorIs(t, context.Cause(at.ctx), context.Canceled, "the target was notified")

		past, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		defer cancel()
		err = h.Call(past, nil, nil)
		require.ErrorIs(t, err, hg.ErrTimeout)
		require.Equal(t, hg.NotRun, hg.FateOf(err))
	})
}

// waitForEnd waits for the end of a context.
func waitForEnd(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		require.Fail(t, "the context of a handler does not end")
	}
}

// callOnce makes a call with a handle of its own.
func callOnce(ctx context.Context, hctx *hg.Context, to hg.Addr, id hg.ID, in, out any) error {
	h, err := hctx.Create(to, id)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Call(ctx, in, out)
}

// TestCallDecodes checks that Call decodes the output, and the detail of an error; nothing is open
// afterwards.
func TestCallDecodes(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		double := p.rpc("double", func(r hg.Request) error {
			var in int
			if err := r.Input(&in); err != nil {
				return err
			}
			if in < 0 {
				return hg.WithDetail(hg.Errorf(hg.ErrNotFound, "nothing below zero"), in)
			}
			return r.Respond(2*in, nil)
		})
		triple := p.rpc("triple", func(r hg.Request) error { return r.Respond("no number", nil) })
		p.serve()
		var out int
		for i := range 10 {
			require.NoError(t, callOnce(t.Context(), p.octx, p.target.Addr(), double, i, &out))
			require.Equal(t, 2*i, out)
			err := callOnce(t.Context(), p.octx, p.target.Addr(), double, -i-1, &out)
			require.ErrorIs(t, err, hg.ErrNotFound)
			remote, _ := hg.RemoteOf(err)
			require.NoError(t, remote.Detail(&out))
			require.Equal(t, -i-1, out)
			require.Error(t, callOnce(t.Context(), p.octx, p.target.Addr(), triple, i, &out))
			require.NoError(t, callOnce(t.Context(), p.octx, p.target.Addr(), triple, i, nil))
		}
		require.ErrorIs(t, callOnce(t.Context(), p.octx, p.target.Addr(), 12345, nil, nil), hg.ErrNoEntry)
		require.Zero(t, p.octx.Stats().Handles)
		require.NoError(t, p.origin.Shutdown(t.Context()))
	})
}

// TestCallsKeepNoLargeBodies checks that a call that has ended keeps no large input, and a handle
// that is closed no large output, which cannot be read any more.
func TestCallsKeepNoLargeBodies(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		const size = 48 << 20
		p := newPair(t, n, hg.Config{})
		take := p.rpc("take", func(r hg.Request) error { return r.RespondRaw(nil, nil) })
		give := p.rpc("give", func(r hg.Request) error { return r.RespondRaw(make([]byte, size), nil) })
		p.serve()
		used := func() uint64 {
			n.Until(func() bool { return p.tctx.Stats().Handles == 0 }) // the target has its memory back a little later
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		h := p.handle(take)
		defer h.Close()
		_, err := h.CallRaw(t.Context(), nil)
		require.NoError(t, err)
		before := used()
		_, err = h.CallRaw(t.Context(), make([]byte, size))
		require.NoError(t, err)
		gone := func() bool { return used() < before+size/2 }
		require.NoError(t, callOnce(t.Context(), p.octx, p.target.Addr(), give, nil, nil))
		require.Eventually(t, gone, time.Minute, 100*time.Millisecond) // pools keep it for a moment
	})
}

// TestClosedWhileCalled checks that a handle that is closed while a Call waits gives its output to
// that Call.
func TestClosedWhileCalled(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		for _, raw := range []bool{true, false} {
			h := p.handle(id)
			ended := make(chan error)
			var out []byte
			go func() {
				var err error
				if raw {
					out, err = h.CallRaw(t.Context(), []byte("question"))
				} else {
					err = h.Call(t.Context(), []byte("question"), &out)
				}
				ended <- err
			}()
			n.Until(func() bool { return len(k.kept) == 1 })
			require.NoError(t, h.Close())
			in, err := k.kept[0].InputRaw()
			require.NoError(t, err)
			require.NoError(t, k.kept[0].RespondRaw(in, nil))
			k.kept = nil
			over := false
			n.Until(func() bool {
				select {
				case err = <-ended:
					over = true
				default:
				}
				return over
			})
			require.NoError(t, err)
			require.Equal(t, "question", string(out))
			p.requireClean(0)
		}
	})
}
