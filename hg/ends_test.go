package hg_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// requireErrorFacts requires that err has all facts that a user needs without the code: operation, RPC, peer,
// elapsed time, fate, and cause.
func requireErrorFacts(t *testing.T, err error, op, rpc string, peer na.Addr, why na.Code, fate na.Fate) {
	t.Helper()
	var e *hg.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, why, codeOf(err))
	require.Equal(t, hg.Error{Op: op, RPC: rpc, Peer: peer, Took: e.Took, Fate: fate, Err: e.Err}, *e)
	require.Positive(t, e.Took)
	require.Less(t, e.Took, 10*time.Minute)
	text := err.Error()
	want := "hg: " + op + " " + rpc
	if !peer.IsZero() {
		want += " to " + peer.Label()
	}
	want += ": " + e.Err.Error() + " ("
	if op != "lookup" { // which has no request
		want += fate.String() + ", "
	}
	require.Regexp(t, "^"+regexp.QuoteMeta(want)+`after [0-9.]+[mnµ]?s\)$`, text)
}

// TestErrorFactsOfCalls checks for every way in which a call can end with an error that the
// error has all the facts.
func TestErrorFactsOfCalls(t *testing.T) {
	var m silentTarget
	kept := func(p *pair) { p.Until(func() bool { return len(m.kept) == 1 }) }
	withdraw := func(p *pair, h *hg.Handle) {
		reported := false
		require.NoError(p.t, h.Withdraw(0, func(*hg.Handle, hg.WithdrawResult) { reported = true }))
		p.triggerOriginUntil(func() bool { return reported })
	}
	for _, c := range []struct {
		name    string
		handler hg.Handler // none: the RPC is registered at the origin only
		size    int        // of the input
		timeout time.Duration
		then    func(p *pair, h *hg.Handle) // when it was forwarded
		why     na.Code
		fate    na.Fate
	}{
		{"canceled", m.handler, 8, 0, func(p *pair, h *hg.Handle) { kept(p); h.Cancel() }, hg.ErrCanceled, na.MaybeRan},
		{"abandoned", m.handler, 8, 0, func(p *pair, h *hg.Handle) { kept(p); h.Abandon() }, hg.ErrCanceled, na.MaybeRan},
		{"withdrawn", m.handler, 8, 0, withdraw, hg.ErrCanceled, na.NotRun},
		{"deadline", m.handler, 8, time.Microsecond, nil, hg.ErrTimeout, na.NotRun},
		{"closed", m.handler, 8, 0, func(p *pair, h *hg.Handle) { kept(p); p.octx.Close() }, hg.ErrClosed, na.MaybeRan},
		{"peer lost", m.handler, 8, 0, func(p *pair, h *hg.Handle) { kept(p); require.NoError(p.t, p.target.Close()) }, hg.ErrPeerLost, na.MaybeRan},
		{"no entry", nil, 8, 0, nil, hg.ErrNoMethod, na.NotRun},
		{"no response", func(hg.Request) error { return nil }, 8, 0, nil, na.ErrNoResponse, na.Ran},
		{"panic", func(hg.Request) error { panic("oops") }, 8, 0, nil, hg.ErrPanic, na.Ran},
		{"handler error", func(hg.Request) error { return errors.New("disk on fire") }, 8, 0, nil, hg.ErrHandler, na.Ran},
		{"denied", func(h hg.Request) error { return h.RespondError(na.WithText(na.ErrPermission, "not you"), nil) }, 8, 0, nil, na.ErrPermission, na.Ran},
		{"input overflow", m.handler, 200_000, 0, nil, hg.ErrOverflow, na.NotRun},
		{"output overflow", func(h hg.Request) error { return h.RespondRaw(make([]byte, 300_000), nil) }, 8, 0, nil, hg.ErrOverflow, na.Ran},
		{"output budget", func(h hg.Request) error { return h.RespondRaw(make([]byte, 100_000), nil) }, 8, 0, nil, hg.ErrAgain, na.Ran},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				m.kept = nil
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{MaxInput: 150_000})
				p.origin, p.octx = n.Origin(hg.Config{MaxOutput: 200_000, MaxPulled: 50_000})
				id, err := p.origin.Register("math/sum", nil)
				require.NoError(t, err)
				if c.handler != nil {
					_, err = p.target.Register("math/sum", c.handler)
					require.NoError(t, err)
				}
				h := p.handle(id)
				h.SetTimeout(c.timeout)
				var o outcome
				require.NoError(t, h.ForwardRaw(make([]byte, c.size), o.cb))
				if c.then != nil {
					c.then(p, h)
				}
				n.Until(func() bool { return o.calls == 1 })
				requireErrorFacts(t, o.err, "forward", "math/sum", p.target.Addr(), c.why, c.fate)
				h.Close()
				for _, h := range m.kept {
					releaseUnanswered(h)
				}
			})
		})
	}
}

func TestErrorFactsOfOthers(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("echo", echo)

		gone, gctx := n.Target(hg.Config{})
		require.NoError(t, gone.Close())
		n.Until(gctx.NA().Closed)
		n.Undriven(gctx)
		h, err := p.octx.Create(gone.Addr(), id)
		require.NoError(t, err)
		requireErrorFacts(t, p.call(h, "x"), "forward", "echo", gone.Addr(), hg.ErrUnreachable, na.NotRun)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = h.Call(ctx, "x", nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, na.NotRun, hg.FateOf(err), "a context that has ended before sends nothing")
		h.Close()

		var failed error
		if slow := n.SlowName(); slow != "" {
			l, err := p.octx.Lookup(slow, func(_ na.Addr, err error) { failed = err })
			require.NoError(t, err)
			l.Cancel()
			n.Until(func() bool { return failed != nil || n.Sim })
			if failed != nil {
				requireErrorFacts(t, failed, "lookup", slow, na.Addr{}, hg.ErrCanceled, na.NotRun)
			}
		}

		var m silentTarget
		h = p.handle(p.rpc("mute", m.handler))
		require.NoError(t, h.Forward(nil, nil))
		n.Until(func() bool { return len(m.kept) == 1 })
		s, peer := m.kept[0], m.kept[0].Peer()
		failed = nil
		h.Cancel()
		n.Until(func() bool { return p.octx.Stats().NA.Outstanding == 0 })
		p.tctx.Close()
		err = s.Respond("x", func(_ hg.Request, err error) { failed = err })
		require.ErrorIs(t, err, hg.ErrClosed)
		require.ErrorContains(t, err, "hg: respond mute to "+peer.Label())
		h.Close()
	})
}

// TestErrorFactsOfResponse checks that a response that is not sent reports that to its
// responder.
func TestErrorFactsOfResponse(t *testing.T) {
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h, s, o := p.forwardUnanswered()
		defer h.Close()
		var failed error
		require.True(t, p.tctx.NA().Upper().Cork()) // it does not leave, as it is long
		peer := s.Peer()
		require.NoError(t, s.Respond(strings.Repeat("first", 4000), func(r hg.Request, err error) {
			failed = err
			require.NoError(t, r.Respond("second", nil))
		}))
		s.Cancel()
		p.tctx.NA().Upper().Uncork()
		n.Until(func() bool { return failed != nil })
		requireErrorFacts(t, failed, "respond", "mute", peer, hg.ErrCanceled, na.Ran)
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
	})
}

// faultyCodec is a codec that drops the bytes to which it should append, or panics.
type faultyCodec struct {
	codec.Codec
	forgets, panics bool
}

func (c *faultyCodec) Append(b []byte, v any) ([]byte, error) {
	switch {
	case c.panics:
		panic("odd")
	case c.forgets:
		b = nil
	}
	return c.Codec.Append(b, v)
}

// TestCodecDropsBytes checks that a codec that does not append to the bytes it is given causes an
// error that states it, and no panic; handle and request are as before.
func TestCodecDropsBytes(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		c := &faultyCodec{Codec: codec.Msgpack}
		p := newPair(t, n, hg.Config{Codec: c})
		var refused error
		h := p.handle(p.rpc("x", func(h hg.Request) error {
			c.forgets = true
			refused = h.Respond("x", nil)
			c.forgets = false
			return h.Respond("y", nil)
		}))
		defer h.Close()
		c.forgets = true
		err := h.Forward("x", nil)
		c.forgets = false
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorContains(t, err, "codec msgpack: Append with 24 bytes returned 2")
		require.NoError(t, p.call(h, "x"))
		require.ErrorIs(t, refused, hg.ErrInvalid)
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, "y", out)
		p.requireClean(1)
	})
}

// TestCallThatPanics checks that a Call that the codec ends by a panic does not leave its
// permission to wait to the next Forward.
func TestCallThatPanics(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		c := &faultyCodec{Codec: codec.Msgpack}
		p := newPair(t, n, hg.Config{Codec: c, NA: na.Config{Envelopes: 2, OnNoCredit: na.Fail}})
		var m silentTarget
		id := p.rpc("mute", m.handler)
		h := p.handle(id)
		defer h.Close()
		c.panics = true
		require.PanicsWithValue(t, "odd", func() { _ = h.Call(context.Background(), "x", nil) })
		c.panics = false
		first := p.handle(p.rpc("echo", echo))
		defer first.Close()
		require.NoError(t, p.call(first, "the session is there"))
		n.Undriven(p.tctx) // and so it accepts nothing
		var o, last outcome
		for range 2 {
			other := p.handle(id)
			defer other.Close()
			require.NoError(t, other.Forward("x", o.cb))
		}
		if err := h.Forward("x", last.cb); err == nil {
			n.Until(func() bool { return last.calls > 0 })
			require.ErrorIs(t, last.err, hg.ErrNoCredit)
		} else {
			require.ErrorIs(t, err, hg.ErrNoCredit)
		}
	})
}

// closingCodec is a codec that closes a handle while it encodes.
type closingCodec struct {
	codec.Codec
	h   *hg.Handle
	err error
}

func (c *closingCodec) Append(b []byte, v any) ([]byte, error) {
	if c.h != nil {
		c.h.Close()
	}
	if c.err != nil {
		return b, c.err
	}
	return c.Codec.Append(b, v)
}

// TestCloseInsideForward checks that Close is legal at any time, also while the codec is running
// inside Forward: then Forward is refused, and the handle is given back once.
func TestCloseInsideForward(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		c := &closingCodec{Codec: codec.Msgpack}
		p := newPair(t, n, hg.Config{Codec: c})
		id := p.rpc("echo", echo)
		for range 2 {
			c.h, c.err = p.handle(id), nil
			var o outcome
			require.ErrorIs(t, c.h.Forward("x", o.cb), hg.ErrClosed)
			require.Zero(t, p.octx.Stats().Handles)
			require.ErrorIs(t, c.h.ForwardRaw(nil, nil), hg.ErrClosed)
			p.Until(func() bool { return p.octx.Stats().Queued == 0 })
			require.Zero(t, o.calls)
			require.Zero(t, p.octx.Stats().Handles)
		}
		c.h, c.err = p.handle(id), errors.New("cannot be encoded")
		require.ErrorIs(t, c.h.Forward("x", nil), c.err)
		require.Zero(t, p.octx.Stats().Handles)

		c.h = nil
		a, b := p.handle(id), p.handle(id) // of two slots
		c.err = nil
		var one, two outcome
		require.NoError(t, a.Forward("a", one.cb))
		require.NoError(t, b.Forward("b", two.cb))
		p.Until(func() bool { return one.calls > 0 && two.calls > 0 })
		var got string
		require.NoError(t, a.Output(&got))
		require.Equal(t, "a", got)
		require.NoError(t, b.Output(&got))
		require.Equal(t, "b", got)
		a.Close()
		b.Close()
		p.requireClean(0)
	})
}

// TestAnswerCannotBeSent checks that a target that cannot send anything to its origin, though the
// session is up, ends the session: the origin must get an outcome, and the target must not try for
// ever.
func TestAnswerCannotBeSent(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		h := p.handle(p.rpc("x", func(hg.Request) error { ran++; return errors.New("no") }))
		defer h.Close()
		require.Error(t, p.call(h, nil), "the session is up")
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		n.World.SetFaults(sim.Faults{Again: 1})
		p.Until(func() bool { return o.calls > 0 })
		require.ErrorIs(t, o.err, hg.ErrPeerLost)
		require.Equal(t, 2, ran)
		n.World.SetFaults(sim.Faults{})
		var remote *hg.RemoteError
		require.ErrorAs(t, p.call(h, nil), &remote, "a new session")
		p.requireClean(1)
	})
}
