package hg_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestRequestNeedsNoClose checks that a Request needs no close, and has no count: closing one twice
// does not compile.
func TestRequestNeedsNoClose(t *testing.T) {
	for _, name := range []string{"Close", "Ref", "Release", "Free"} {
		_, has := reflect.TypeFor[*hg.Request]().MethodByName(name)
		require.False(t, has, name)
	}
}

// requireEnded requires that nothing can be done any more with a request.
func requireEnded(t *testing.T, r hg.Request) {
	t.Helper()
	require.ErrorIs(t, r.Respond("late", nil), na.ErrAnswered)
	require.ErrorIs(t, r.RespondRaw([]byte("late"), nil), na.ErrAnswered)
	require.ErrorIs(t, r.RespondError(errors.New("late"), nil), na.ErrAnswered)
	require.ErrorIs(t, r.Detach(), na.ErrAnswered)
	require.ErrorIs(t, r.SetOutputMeta(hg.Metadata{}), na.ErrAnswered)
	require.ErrorIs(t, r.Input(new(string)), na.ErrAnswered)
	_, err := r.InputRaw()
	require.ErrorIs(t, err, na.ErrAnswered)
	require.True(t, r.Peer().IsZero())
	require.Zero(t, r.Caller())
	require.Empty(t, r.Name())
	require.Zero(t, r.ID())
	require.Equal(t, hg.Metadata{}, r.Meta())
	_, ok := r.TimeLeft()
	require.False(t, ok)
	require.ErrorIs(t, r.Context().Err(), context.Canceled)
	r.SetData("stale")
	require.Nil(t, r.Data())
	r.Cancel()
}

// TestKeptUntilAnother checks that a request that has ended is identified by its number: a kept
// reference reaches nothing, also when its record serves another.
func TestKeptUntilAnother(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var kept []hg.Request
		id := p.rpc("keep", func(r hg.Request) error {
			if kept = append(kept, r); len(kept) > 1 {
				r.SetData("mine")
				return r.Detach()
			}
			return nil
		})
		first, second := p.handle(id), p.handle(id)
		require.ErrorIs(t, p.call(first, "first"), na.ErrNoResponse)
		p.requireClean(2)
		requireEnded(t, kept[0])
		requireEnded(t, hg.Request{})
		var o outcome
		require.NoError(t, second.Forward("second", o.cb))
		n.Until(func() bool { return len(kept) == 2 && p.tctx.Stats().Queued == 0 })
		requireEnded(t, kept[0])
		var in string
		require.NoError(t, kept[1].Input(&in))
		require.Equal(t, "second", in)
		require.Equal(t, "mine", kept[1].Data())
		require.NoError(t, kept[1].Respond("for the second", nil))
		requireEnded(t, kept[0])
		n.Until(func() bool { return o.calls > 0 })
		require.NoError(t, o.err)
		require.NoError(t, second.Output(&in))
		require.Equal(t, "for the second", in)
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
		p.requireClean(0)
		requireEnded(t, kept[1])
	})
}

// TestAnswerOfAnotherGoroutine checks that another goroutine may answer while the handler runs;
// without Detach not later, and a late answer is not sent.
func TestAnswerOfAnotherGoroutine(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		let, said := make(chan bool), make(chan error)
		id := p.rpc("spawn", func(r hg.Request) error {
			late := make(chan bool)
			if in, err := r.InputRaw(); err != nil || len(in) > 0 {
				late = let
			} else {
				close(late)
			}
			go func() {
				<-late
				said <- r.RespondRaw([]byte("x"), nil)
			}()
			if late != let {
				return <-said
			}
			return nil
		})
		h := p.handle(id)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		require.NoError(t, h.ForwardRaw([]byte("late"), o.cb))
		n.Until(func() bool { return o.calls == 2 })
		require.ErrorIs(t, o.err, na.ErrNoResponse)
		close(let)
		require.ErrorIs(t, <-said, na.ErrAnswered)
		require.NoError(t, h.Close())
		p.requireClean(0)
	})
}

// TestAnsweredTwice checks that a second answer is refused, by any goroutine, and an error after
// the answer is counted.
func TestAnsweredTwice(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("twice", func(r hg.Request) error {
			require.NoError(t, r.RespondRaw([]byte("first"), nil))
			require.ErrorIs(t, r.Detach(), na.ErrAnswered)
			require.ErrorIs(t, r.RespondRaw([]byte("second"), nil), na.ErrAnswered)
			_, err := r.InputRaw()
			require.ErrorIs(t, err, na.ErrAnswered)
			return errors.New("third")
		}))
		require.NoError(t, p.call(h, "x"))
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Equal(t, "first", string(out))
		require.NoError(t, h.Close())
		require.EqualValues(t, 1, p.tctx.Stats().Late)
		p.requireClean(0)
	})
}

// TestClosedHandleStaysClosed checks that a handle that is closed stays closed.
func TestClosedHandleStaysClosed(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		require.NoError(t, p.call(h, "x"))
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.Close(), hg.ErrClosed)
		never := func(*hg.Handle, error) { t.Error("called back") }
		require.ErrorIs(t, h.Forward("x", never), hg.ErrClosed)
		require.ErrorIs(t, h.ForwardRaw(nil, never), hg.ErrClosed)
		require.ErrorIs(t, h.Reset(p.target.Addr(), h.ID()), hg.ErrClosed)
		_, err := h.OutputRaw()
		require.ErrorIs(t, err, hg.ErrClosed)
		require.ErrorIs(t, h.Withdraw(time.Second, func(*hg.Handle, hg.WithdrawResult) { t.Error("called back") }), hg.ErrClosed)
		h.Cancel()
		h.Abandon()
		p.roundTrip()
		p.requireClean(0)
	})
}

// TestTraceOverwritesInput checks that Config.Trace overwrites input that a handler has kept.
func TestTraceOverwritesInput(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{Trace: true})
		var kept []byte
		h := p.handle(p.rpc("keep", func(r hg.Request) (err error) {
			if kept, err = r.InputRaw(); err != nil {
				return err
			}
			require.Equal(t, "secret", string(kept))
			return r.RespondRaw(kept, nil)
		}))
		var o outcome
		require.NoError(t, h.ForwardRaw([]byte("secret"), o.cb))
		n.Until(func() bool { return o.calls == 1 })
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Equal(t, "secret", string(out))
		require.Equal(t, "\xdb\xdb\xdb\xdb\xdb\xdb", string(kept))
		require.NoError(t, h.Close())
		p.requireClean(0)
	})
}

// TestDetachedWithoutAnswer checks that a detached request without an answer ends: at its deadline,
// with its session, and when the class is shut down or closed.
func TestDetachedWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(p *pair, h *hg.Handle)
		code hg.Code
	}{
		"Deadline": {func(p *pair, h *hg.Handle) { h.Cancel() }, hg.ErrCanceled}, // the target's own clock ends it
		"Session":  {func(p *pair, h *hg.Handle) { require.NoError(p.t, p.origin.Close()) }, hg.ErrClosed},
		"Close":    {func(p *pair, h *hg.Handle) { require.NoError(p.t, p.target.Close()) }, hg.ErrPeerLost},
		"Shutdown": {func(p *pair, h *hg.Handle) {
			ctx, cancel := context.WithCancel(p.t.Context())
			cancel()
			var left *hg.ShutdownError
			require.ErrorAs(p.t, p.target.Shutdown(ctx), &left)
			require.Equal(p.t, 1, left.Handlers)
			require.Equal(p.t, []string{"handler of forget has not answered"}, left.Open)
		}, na.ErrNoResponse},
	} {
		t.Run(name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{})
				var kept hg.Request
				h := p.handle(p.rpc("forget", func(r hg.Request) error { kept = r; return r.Detach() }))
				var o outcome
				for limit := 250 * time.Millisecond; ; limit *= 2 { // on a busy machine it may pass before the handler begins
					if name == "Deadline" {
						h.SetTimeout(limit)
					}
					o = outcome{}
					require.NoError(t, h.Forward("x", o.cb))
					n.Until(func() bool { return p.tctx.Stats().Active == 1 || o.calls == 1 })
					if o.calls == 0 {
						break
					}
					require.ErrorIs(t, o.err, hg.ErrTimeout)
				}
				ctx := kept.Context()
				require.NoError(t, ctx.Err())
				c.end(p, h)
				n.Until(func() bool { return o.calls == 1 })
				require.Equal(t, c.code, codeOf(o.err))
				n.Until(func() bool { return p.tctx.Stats().Handles == 0 && p.tctx.Stats().Active == 0 })
				require.Error(t, ctx.Err())
				requireEnded(t, kept)
				require.NoError(t, h.Close())
			})
		})
	}
}

// TestDetachedDeadlineIsAnswered checks the answer of a detached request at its deadline, where the
// origin still waits for it.
func TestDetachedDeadlineIsAnswered(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var kept hg.Request
		ran := false
		h := p.handle(p.rpc("forget", func(r hg.Request) error { kept, ran = r, true; return r.Detach() }))
		h.SetTimeout(300 * time.Millisecond) // a busy machine takes its time until the handler runs
		var o outcome
		require.NoError(t, h.Forward("x", o.cb))
		p.triggerTargetUntil(func() bool { return ran })
		p.triggerTargetUntil(func() bool { return p.tctx.Stats().Active == 0 })
		requireEnded(t, kept)
		n.Until(func() bool { return o.calls == 1 })
		require.Equal(t, hg.ErrTimeout, codeOf(o.err))
		require.NoError(t, h.Close())
		p.requireClean(0)
	})
}

// TestDetachedIsLogged checks that a detached request without an answer is logged each minute.
func TestDetachedIsLogged(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		var log bytes.Buffer
		p := newPair(t, n, hg.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		var kept hg.Request
		h := p.handle(p.rpc("forget", func(r hg.Request) error { kept = r; return r.Detach() }))
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		n.Until(func() bool { return p.tctx.Stats().Active == 1 })
		begun := p.tctx.Now()
		for minutes := range 4 {
			for p.tctx.Now() < begun+time.Duration(minutes)*61*time.Second {
				n.World.Sleep(time.Second)
				p.tctx.Trigger(0)
				p.octx.Trigger(0)
			}
			require.Equal(t, minutes, strings.Count(log.String(), "rpc=forget"), "%s", log.String())
		}
		require.NoError(t, kept.RespondRaw(nil, nil))
		n.Until(func() bool { return o.calls == 1 })
		n.World.Sleep(2 * time.Minute)
		p.tctx.Trigger(0)
		require.Equal(t, 3, strings.Count(log.String(), "rpc=forget"))
		require.NoError(t, h.Close())
	})
}
