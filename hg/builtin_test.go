package hg_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// callBuiltIn calls a built-in RPC and returns its output.
func (p *pair) callBuiltIn(name string, in []byte) ([]byte, error) {
	p.t.Helper()
	h := p.handle(hg.HashName(name))
	defer h.Close()
	done := false
	require.NoError(p.t, h.ForwardRaw(in, func(*hg.Handle, error) { done = true }))
	p.Until(func() bool { return done })
	out, err := h.OutputRaw()
	return bytes.Clone(out), err
}

func TestBuiltIns(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{Reflect: true})
		_, err := p.target.RegisterRPC(hg.RPC{Name: "sum", Handler: echo, Shape: "[]int -> int"})
		require.NoError(t, err)
		_, err = p.target.Register("only called", nil)
		require.NoError(t, err)

		big := bytes.Repeat([]byte("x"), 100_000)
		out, err := p.callBuiltIn(hg.PingRPC, big)
		require.NoError(t, err)
		require.Equal(t, big, out)

		out, err = p.callBuiltIn(inspect.RPCsRPC, nil)
		require.NoError(t, err)
		all, err := inspect.DecodeRPCs(out)
		require.NoError(t, err)
		require.Equal(t, []inspect.RPC{{Name: "hg/health", Codec: "msgpack"}, {Name: "hg/ping", Codec: "msgpack"},
			{Name: "hg/rpcs", Codec: "msgpack"}, {Name: "sum", Codec: "msgpack", Shape: "[]int -> int"}}, all)

		for _, ready := range []bool{true, false, true} {
			p.target.SetReady(ready)
			_, err = p.callBuiltIn(hg.HealthRPC, nil)
			if ready {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, hg.ErrNotReady)
			}
		}
	})
}

// TestHealthWhileDraining checks that without Config.Reflect a peer gets no names, and that
// hg/health answers while the class drains, when everything else is refused.
func TestHealthWhileDraining(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, authorize := range []hg.Authorizer{nil, func(context.Context, hg.Caller, *hg.RPC) error { return nil }} {
			p := newPair(t, n, hg.Config{Authorize: authorize})
			p.rpc("secret", echo)
			_, err := p.origin.Register("secrets", nil)
			require.NoError(t, err)
			for _, name := range []string{"secrets", inspect.RPCsRPC} {
				_, err = p.callBuiltIn(name, nil)
				require.Equal(t, hg.ErrNoMethod, localCode(err))
				require.NotContains(t, err.Error(), "registered:")
			}
			p.target.NA().Drain()
			_, err = p.callBuiltIn("secret", nil)
			require.Equal(t, hg.ErrDraining, localCode(err))
			_, err = p.callBuiltIn(hg.HealthRPC, nil)
			require.ErrorIs(t, err, hg.ErrDraining)
			require.ErrorContains(t, err, "the target is shutting down")
		}
	})
}

func localCode(err error) hg.Code {
	if remote, ok := hg.RemoteOf(err); ok {
		return remote.Code
	}
	return 0
}

func TestBuiltInsAreAuthorized(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var asked []string
		p := newPair(t, n, hg.Config{Reflect: true, Authorize: func(_ context.Context, _ hg.Caller, rpc *hg.RPC) error {
			asked = append(asked, rpc.Name)
			return hg.ErrDenied
		}})
		all := []string{hg.PingRPC, hg.HealthRPC, inspect.RPCsRPC}
		for _, name := range all {
			_, err := p.callBuiltIn(name, nil)
			require.Equal(t, hg.ErrDenied, localCode(err), name)
		}
		p.target.NA().Drain()
		_, err := p.callBuiltIn(hg.HealthRPC, nil)
		require.Equal(t, hg.ErrDenied, localCode(err), "while draining, too")
		require.Equal(t, append(all, hg.HealthRPC), asked)
	})
}

// TestObserve checks that every call and request is observed once, with its outcome.
func TestObserve(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var mu sync.Mutex // a blocking call is notified on a goroutine of its own
		var all []inspect.Event
		p := newPair(t, n, hg.Config{Observe: func(e *inspect.Event) {
			mu.Lock()
			all = append(all, *e)
			mu.Unlock()
		}})
		events := func() []inspect.Event {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		p.rpc("echo", echo)
		p.rpc("fails", func(hg.Request) error { return hg.Errorf(hg.ErrNotFound, "no such thing") })
		silent := p.rpc("silent", func(r hg.Request) error { return r.Detach() })
		look := func(want ...inspect.Event) {
			t.Helper()
			p.Until(func() bool { return len(events()) >= len(want) })
			seen := events()
			for i := range seen {
				e := &seen[i]
				require.Positive(t, e.Took)
				require.Equal(t, e.Kind == inspect.EventTarget && e.Fate == hg.Ran, e.Queued > 0)
				require.Equal(t, e.Kind == inspect.EventOrigin, e.Peer.Named() == p.target.Addr().Named())
				e.Took, e.Queued, e.Peer = 0, 0, hg.Addr{}
			}
			slices.SortFunc(seen, func(a, b inspect.Event) int { return int(a.Kind) - int(b.Kind) })
			require.Equal(t, want, seen)
			mu.Lock()
			all = nil
			mu.Unlock()
		}
		_, err := p.callBuiltIn("echo", make([]byte, 100))
		require.NoError(t, err)
		look(inspect.Event{Kind: inspect.EventOrigin, RPC: "echo", Fate: hg.Ran, Sent: 100, Received: 100},
			inspect.Event{Kind: inspect.EventTarget, RPC: "echo", Fate: hg.Ran, Sent: 100, Received: 100})
		_, err = p.callBuiltIn("fails", nil)
		require.ErrorIs(t, err, hg.ErrNotFound)
		look(inspect.Event{Kind: inspect.EventOrigin, RPC: "fails", Code: hg.ErrNotFound, Text: "no such thing", Remote: true, Fate: hg.Ran, Received: 0},
			inspect.Event{Kind: inspect.EventTarget, RPC: "fails", Code: hg.ErrNotFound, Text: "no such thing", Fate: hg.Ran, Sent: int64(2 + len("no such thing"))})
		// The trace of a call is observed by both sides; an invalid one is not.
		traced := p.handle(hg.HashName("echo"))
		defer traced.Close()
		for text, want := range map[string]string{
			"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "0af7651916cd43dd8448eb211c80319c",
			"00-0af7651916cd43dd8448eb211c8031_c-b7ad6b7169203331-01": "", "00-0af7651916cd43dd8448eb211c80319c": "", "": "",
		} {
			var m hg.Metadata
			m, err = m.With("tracestate", "x")
			require.NoError(t, err)
			m, err = m.With("traceparent", text)
			require.NoError(t, err)
			require.NoError(t, traced.SetMeta(m))
			require.NoError(t, p.call(traced, nil))
			p.Until(func() bool { return len(events()) == 2 })
			for _, e := range events() {
				require.Equal(t, want, e.Trace.String(), "%q", text)
			}
			mu.Lock()
			all = nil
			mu.Unlock()
		}
		h := p.handle(silent)
		defer h.Close()
		done := false
		require.NoError(t, h.Forward(nil, func(*hg.Handle, error) { done = true }))
		h.Cancel()
		p.Until(func() bool { return done })
		fate, text, before := events()[0].Fate, events()[0].Text, int64(0)
		require.Contains(t, text, hg.ErrCanceled.Error())
		if fate != hg.NotRun { // it is in flight, and detached when it arrives
			before = 1
		}
		look(inspect.Event{Kind: inspect.EventOrigin, RPC: "silent", Code: hg.ErrCanceled, Text: text, Fate: fate})

		called := make(chan error)
		go func() {
			called <- callOnce(t.Context(), p.octx, p.target.Addr(), hg.HashName("echo"), make([]byte, 7), nil)
		}()
		over := false
		p.Until(func() bool {
			select {
			case err = <-called:
				over = true
			default:
			}
			return over
		})
		require.NoError(t, err)
		in := int64(9) // encoded
		look(inspect.Event{Kind: inspect.EventOrigin, RPC: "echo", Fate: hg.Ran, Sent: in, Received: in},
			inspect.Event{Kind: inspect.EventTarget, RPC: "echo", Fate: hg.Ran, Sent: in, Received: in})

		// A request that cannot be answered, because its context is closed.
		done = false
		require.NoError(t, h.Forward(nil, func(*hg.Handle, error) { done = true }))
		p.Until(func() bool { return p.tctx.Stats().Active == before+1 })
		require.NoError(t, p.target.Close())
		p.Until(func() bool { return done && len(events()) == 2+int(before) })
		seen := events()
		slices.SortFunc(seen, func(a, b inspect.Event) int { return int(a.Kind) - int(b.Kind) })
		require.Equal(t, hg.ErrPeerLost, seen[0].Code)
		require.Equal(t, inspect.EventTarget, seen[1].Kind)
		require.Equal(t, hg.ErrClosed, seen[1].Code)
	})
}

// TestLogger checks that the messages of the library go to the class's own logger.
func TestLogger(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		var log bytes.Buffer
		p := newPair(t, n, hg.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		p.rpc("panics", func(hg.Request) error { panic("ouch") })
		_, err := p.callBuiltIn("panics", nil)
		require.ErrorIs(t, err, hg.ErrPanic)
		require.Contains(t, log.String(), `msg="handler panicked" rpc=panics`)
		require.Contains(t, log.String(), "panic=ouch")
	})
}
