package hg_test

// Every two-way request is answered, with any outcome at the target.

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

func TestEveryRequestIsAnswered(t *testing.T) {
	var late hg.Request
	for _, c := range []struct {
		name    string
		handler hg.Handler
		after   func()
		code    na.Code
		text    string
	}{
		{"HandlerError", func(hg.Request) error { return errors.New("disk on fire") }, nil, hg.ErrHandler, "disk on fire"},
		{"HandlerPanic", func(hg.Request) error { panic("oops") }, nil, hg.ErrPanic, "in the target's log"},
		{"NoResponse", func(hg.Request) error { return nil }, nil, na.ErrNoResponse, ""},
		{"NoResponseLater", func(h hg.Request) error { late = detach(h); return nil }, func() { releaseUnanswered(late) }, na.ErrNoResponse, ""},
		{"RefusedOutputLater", func(h hg.Request) error { late = detach(h); return nil }, func() {
			require.ErrorIs(t, late.RespondRaw(make([]byte, 2<<20), nil), hg.ErrOverflow)
			require.ErrorIs(t, late.RespondRaw(nil, nil), na.ErrAnswered)
		}, hg.ErrOverflow, "MaxOutput"},
		{"RefusedOutputBefore", func(h hg.Request) error {
			require.Error(t, detach(h).Respond(make(chan int), nil), "what the codec cannot encode")
			return nil
		}, nil, hg.ErrHandler, "chan int"},
		{"RefusedThenDetached", func(h hg.Request) error {
			require.ErrorIs(t, h.RespondRaw(make([]byte, 2<<20), nil), hg.ErrOverflow)
			late = detach(h)
			return nil
		}, func() { require.NoError(t, late.RespondError(hg.ErrNotFound, nil)) }, hg.ErrNotFound, ""},
		{"UndecodableInput", func(h hg.Request) error { return h.Input(new(map[string]int)) }, nil, hg.ErrBadInput, "input of"},
		{"OutputTooLarge", func(h hg.Request) error { return h.RespondRaw(make([]byte, 2<<20), nil) }, nil, hg.ErrOverflow, "MaxOutput"},
		{"OwnOverflow", func(hg.Request) error { return hg.Errorf(hg.ErrOverflow, "a limit of the handler") }, nil, hg.ErrOverflow, "a limit"},
		{"OwnTextForOverflow", func(h hg.Request) error { return fmt.Errorf("mine: %w", h.RespondRaw(make([]byte, 2<<20), nil)) }, nil, hg.ErrOverflow, "mine"},
		{"OwnCode", func(h hg.Request) error { return h.RespondError(na.WithText(na.ErrExists, "there is one"), nil) }, nil, na.ErrExists, "there is one"},
		{"LongText", func(hg.Request) error { return errors.New(strings.Repeat("x", 1<<20)) }, nil, hg.ErrHandler, "xxx"},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{MaxOutput: 1 << 20})
				ran := 0
				h := p.handle(p.rpc("x", func(h hg.Request) error { ran++; return c.handler(h) }))
				defer h.Close()
				var o outcome
				require.NoError(t, h.Forward("not a map", o.cb))
				n.Until(func() bool { return ran == 1 })
				if c.after != nil {
					c.after()
				}
				n.Until(func() bool { return o.calls == 1 })
				requireCode(t, o.err, c.code)
				var remote *hg.RemoteError
				require.ErrorAs(t, o.err, &remote)
				require.Contains(t, o.err.Error(), c.text)
				require.Equal(t, na.Ran, hg.FateOf(o.err))
				// ErrOverflow matches only if the library found the output too large.
				byLibrary := c.code == hg.ErrOverflow && c.text == "MaxOutput"
				require.Equal(t, byLibrary, errors.Is(o.err, hg.ErrOverflow))
				require.ErrorIs(t, o.err, hg.ErrRemote)
				require.NotErrorIs(t, o.err, hg.ErrRefused)
				if byLibrary {
					require.Equal(t, hg.ErrOverflow, hg.CodeOf(o.err))
					require.Contains(t, o.err.Error(), "output of 2097152 bytes exceeds the target's hg.Config.MaxOutput of 1048576; use a qs.Sink or a bulk.Handle")
				}
				require.NoError(t, h.Reset(p.target.Addr(), p.rpc("echo", echo)))
				require.NoError(t, p.call(h, "still here"))
				p.requireClean(1)
			})
		})
	}
}

// TestRefusedRequests checks that a request that the target refuses before the handler did not run.
func TestRefusedRequests(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxInput: 64 << 10})
		p.origin, p.octx = n.Origin(hg.Config{})
		ran := 0
		id := p.rpc("x", func(h hg.Request) error { ran++; return h.Respond(nil, nil) })
		h := p.handle(id)
		defer h.Close()
		err := p.call(h, make([]byte, 65<<10))
		requireCode(t, err, hg.ErrOverflow)
		require.ErrorContains(t, err, "exceeds the target's hg.Config.MaxInput of 65536; use a qs.Source or a bulk.Handle")
		require.Equal(t, na.NotRun, hg.FateOf(err))

		oneWay, err := p.origin.RegisterRPC(hg.RPC{Name: "y", OneWay: true})
		require.NoError(t, err)
		_, err = p.target.Register("y", echo)
		require.NoError(t, err)
		require.NoError(t, h.Reset(p.target.Addr(), oneWay))
		require.NoError(t, p.call(h, "one-way on one side only"))
		n.Until(func() bool { return p.tctx.Stats().Dropped == 1 })
		require.Zero(t, ran)
		p.requireClean(1)
	})
}

func TestOriginRefusesAtOnce(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxInput: 1 << 10})
		var m silentTarget
		h := p.handle(p.rpc("mute", m.handler))
		defer h.Close()
		never := func(*hg.Handle, error) { t.Error("a refused Forward ran its callback") }
		tooLarge := h.ForwardRaw(make([]byte, 1<<10+1), never)
		require.ErrorIs(t, tooLarge, hg.ErrOverflow)
		require.ErrorContains(t, tooLarge, "input of 1025 bytes exceeds this process's hg.Config.MaxInput of 1024; use a qs.Source or a bulk.Handle")
		require.Error(t, h.Forward(make(chan int), never), "what the codec cannot encode")
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		require.ErrorIs(t, h.Forward(nil, never), na.ErrBusy)
		require.ErrorIs(t, h.Reset(p.target.Addr(), h.ID()), na.ErrBusy)
		require.ErrorIs(t, h.Output(nil), na.ErrBusy)
		n.Until(func() bool { return len(m.kept) == 1 })
		m.answer(t, nil)
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		bad, err := p.octx.Create(na.Addr{}, h.ID())
		require.NoError(t, err)
		require.ErrorIs(t, bad.Forward(nil, never), hg.ErrInvalid)
		bad.Close()
		p.requireClean(1)
	})
}

func TestUnreachable(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)
		gone, gctx := n.Target(hg.Config{})
		addr := gone.Addr()
		require.NoError(t, gone.Close())
		n.Until(func() bool { return gctx.NA().Closed() })
		n.Undriven(gctx)
		h, err := p.octx.Create(addr, id)
		require.NoError(t, err)
		defer h.Close()
		err = p.call(h, "x")
		require.ErrorIs(t, err, hg.ErrUnreachable)
		require.Equal(t, na.NotRun, hg.FateOf(err))
		require.Contains(t, err.Error(), addr.String())
	})
}

// TestPeerLost checks that a target that exits ends every call to it, and OnFault reports it.
func TestPeerLost(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		id := p.rpc("mute", m.handler)
		var faults []na.Addr
		p.octx.OnFault(func(peer na.Addr, err error) {
			assert.ErrorIs(t, err, hg.ErrPeerLost)
			faults = append(faults, peer.Named())
		})
		const calls = 100
		outs := make([]outcome, calls)
		handles := make([]*hg.Handle, calls)
		for i := range outs {
			handles[i] = p.handle(id)
			require.NoError(t, handles[i].Forward(i, outs[i].cb))
		}
		n.Until(func() bool { return len(m.kept) >= 32 })
		n.Undriven(p.tctx)
		require.NoError(t, p.target.Close())
		ended := func() bool {
			for i := range outs {
				if outs[i].calls == 0 {
					return false
				}
			}
			return true
		}
		n.Until(ended)
		for i := range outs {
			require.Equal(t, 1, outs[i].calls)
			require.ErrorIs(t, outs[i].err, hg.ErrPeerLost, "call %d", i)
		}
		n.Until(func() bool { return len(faults) == 1 })
		require.Equal(t, p.target.Addr(), faults[0])
		for _, h := range handles {
			h.Close()
		}
		for _, h := range m.kept {
			assert.Error(t, h.Respond(nil, nil))
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		id := p.rpc("mute", m.handler)
		const calls = 1000
		done := 0
		for i := range calls {
			h := p.handle(id)
			require.NoError(t, h.Forward(i, func(h *hg.Handle, err error) {
				assert.ErrorIs(t, err, hg.ErrClosed)
				assert.ErrorIs(t, h.Forward(nil, nil), hg.ErrClosed, "new calls are refused inside callbacks too")
				h.Close()
				done++
			}))
		}
		require.NoError(t, p.origin.Close())
		n.Until(p.origin.NA().Closed)
		require.Equal(t, calls, done)
		require.ErrorIs(t, p.octx.Progress(0), hg.ErrClosed)
		require.Zero(t, p.octx.Stats().Handles)
		for _, h := range m.kept {
			releaseUnanswered(h)
		}
	})
}

func TestCloseInsideCallback(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		var shutdown error
		require.NoError(t, h.Forward(nil, func(h *hg.Handle, err error) {
			shutdown = p.origin.Shutdown(t.Context())
			assert.NoError(t, p.origin.Close())
			h.Close()
		}))
		n.Until(p.origin.NA().Closed)
		require.ErrorIs(t, shutdown, na.ErrBusy, "Shutdown inside a callback returns that error")
	})
}

func TestRegister(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, _ := n.Origin(hg.Config{})
		id, err := cls.Register("a", nil)
		require.NoError(t, err)
		require.Equal(t, hg.HashName("a"), id)
		_, err = cls.Register("a", nil)
		require.ErrorIs(t, err, na.ErrExists)
		for _, name := range []string{"", strings.Repeat("x", 256)} {
			_, err = cls.Register(name, nil)
			require.ErrorIs(t, err, hg.ErrInvalid)
		}
		_, err = cls.RegisterRPC(hg.RPC{Name: "b", MaxActive: -1})
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorContains(t, err, "MaxActive is -1")
		_, err = cls.Register(strings.Repeat("x", 255), nil)
		require.NoError(t, err)
		rpc, ok := cls.Registered("a")
		require.True(t, ok)
		require.Equal(t, "a", rpc.Name)
		require.NoError(t, cls.Deregister(id))
		require.ErrorIs(t, cls.Deregister(id), hg.ErrNoEntry)
		_, ok = cls.Registered("a")
		require.False(t, ok)
	})
}

// TestNested checks that a handler may keep its handle and answer when another call has ended, or
// wait for that inside.
func TestNested(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		back, bctx := n.Target(hg.Config{})
		_ = bctx
		_, err := back.Register("echo", echo)
		require.NoError(t, err)
		id := p.rpc("via", func(h hg.Request) error {
			in, err := h.InputRaw()
			if err != nil {
				return err
			}
			inner, err := h.HG().Create(back.Addr(), hg.HashName("echo"))
			if err != nil {
				return err
			}
			detach(h)
			return inner.ForwardRaw(in, func(inner *hg.Handle, err error) {
				assert.NoError(t, err)
				out, err := inner.OutputRaw()
				assert.NoError(t, err)
				assert.NoError(t, h.RespondRaw(out, nil))
				inner.Close()
				releaseUnanswered(h)
			})
		})
		_, err = p.target.Register("echo", nil)
		require.NoError(t, err)
		h := p.handle(id)
		defer h.Close()
		for i := range 20 {
			require.NoError(t, p.call(h, fmt.Sprint(i)))
			var out string
			require.NoError(t, h.Output(&out))
			require.Equal(t, fmt.Sprint(i), out)
		}
		p.requireClean(1)
	})
}
