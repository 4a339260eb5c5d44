package hg_test

// The RPC cases of C Mercury's own unit tests (Testing/unit/hg/test_rpc.c), each under a name that matches, over every
// transport.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

type openIn struct {
	Path   string
	Cookie uint64
}

type openOut struct {
	Status int32
	Event  uint64
}

func openHandler(h hg.Request) error {
	var in openIn
	if err := h.Input(&in); err != nil {
		return err
	}
	return h.Respond(&openOut{Status: 0, Event: in.Cookie}, nil)
}

func TestMercuryRPC(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		test func(t *testing.T, n *transports.Net)
	}{
		{"UnregisteredIDLocal", mercuryUnregistered},
		{"NullRPC", mercuryNull},
		{"RPCWithResponse", mercuryResponse},
		{"LookupStorm", mercuryLookupStorm},
		{"OneWay", mercuryOneWay},
		{"NotRegisteredAtServer", mercuryNotRegistered},
		{"InputOverflow", mercuryInputOverflow},
		{"OneWayInputOverflow", mercuryOneWayOverflow},
		{"OutputOverflow", mercuryOutputOverflow},
		{"Cancel", mercuryCancel},
		{"Multi", mercuryMulti},
		{"MultiConcurrent", mercuryMultiConcurrent},
		{"ConcurrentProgress", mercuryConcurrentProgress},
		{"ConcurrentProgressCreate", mercuryConcurrentCreate},
		{"MultiContextTarget", mercuryMultiContext},
		{"Self", mercurySelf},
	} {
		t.Run(c.name, func(t *testing.T) { transports.Each(t, c.test) })
	}
}

func mercuryUnregistered(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	h := p.handle(id)
	defer h.Close()
	require.ErrorIs(t, h.Reset(p.target.Addr(), id+1), hg.ErrNoEntry)
	_, err := p.octx.Create(p.target.Addr(), id+1)
	require.ErrorIs(t, err, hg.ErrNoEntry)
	require.NoError(t, p.call(h, &openIn{"/x", 1}), "the handle must still be usable")
}

func mercuryNull(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	var inSize atomic.Int64
	inSize.Store(-1)
	h := p.handle(p.rpc("null", func(h hg.Request) error {
		in, err := h.InputRaw()
		if err != nil {
			return err
		}
		inSize.Store(int64(len(in)))
		return h.Respond(nil, nil)
	}))
	defer h.Close()
	require.NoError(t, p.call(h, nil))
	out, err := h.OutputRaw()
	require.NoError(t, err)
	require.Empty(t, out)
	require.Zero(t, inSize.Load())
	p.requireClean(1)
}

func mercuryResponse(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	h := p.handle(p.rpc("open", openHandler))
	defer h.Close()
	require.NoError(t, p.call(h, &openIn{"/test", 100}))
	var out openOut
	require.NoError(t, h.Output(&out))
	require.Equal(t, openOut{Status: 0, Event: 100}, out)
	raw, err := h.OutputRaw()
	require.NoError(t, err)
	want, err := codec.Msgpack.Append(nil, &out)
	require.NoError(t, err)
	require.Equal(t, want, raw, "the payload is the encoding and nothing else")
}

func mercuryLookupStorm(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	for i := range uint64(32) {
		var addr na.Addr
		_, err := p.octx.Lookup(p.target.Addr().String(), func(a na.Addr, err error) {
			assert.NoError(t, err)
			addr = a
		})
		require.NoError(t, err)
		n.Until(func() bool { return !addr.IsZero() })
		h, err := p.octx.Create(addr, id)
		require.NoError(t, err)
		require.NoError(t, p.call(h, &openIn{"/x", i}))
		h.Close()
	}
	require.Equal(t, 1, p.octx.Stats().NA.Peers)
}

func mercuryOneWay(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	var got []string
	h := p.handle(p.oneWay("note", func(h hg.Request) error {
		in, err := h.InputRaw()
		got = append(got, string(in))
		assert.ErrorIs(t, h.RespondRaw(nil, nil), hg.ErrUnsupported)
		return err
	}))
	defer h.Close()
	var o outcome
	require.NoError(t, h.ForwardRaw([]byte("hello"), o.cb))
	n.Until(func() bool { return o.calls == 1 && len(got) == 1 })
	require.NoError(t, o.err)
	require.Equal(t, []string{"hello"}, got)
	p.requireClean(1)
}

func mercuryNotRegistered(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{Reflect: true})
	p.rpc("open", openHandler)
	id, err := p.origin.Register("opne", nil)
	require.NoError(t, err)
	h := p.handle(id)
	defer h.Close()
	err = p.call(h, &openIn{"/x", 1})
	requireCode(t, err, hg.ErrNoMethod)
	require.ErrorIs(t, err, hg.ErrRefused)
	require.Contains(t, err.Error(), "open", "the answer names what there is")
	require.Equal(t, na.NotRun, hg.FateOf(err))
	p.requireClean(1)
}

// oversizeString is a string of twice the eager size.
func oversizeString(p *pair) string {
	return strings.Repeat("0123456789abcdef", 2*p.octx.NA().Limits().MaxUnexpected/16)
}

func mercuryInputOverflow(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	var got string
	h := p.handle(p.rpc("take", func(h hg.Request) error {
		if err := h.Input(&got); err != nil {
			return err
		}
		return h.Respond(len(got), nil)
	}))
	defer h.Close()
	big := oversizeString(p)
	require.NoError(t, p.call(h, big))
	require.Equal(t, big, got)
	p.requireClean(1)
}

func mercuryOneWayOverflow(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	var got string
	h := p.handle(p.oneWay("take", func(h hg.Request) error { return h.Input(&got) }))
	defer h.Close()
	big := oversizeString(p)
	require.NoError(t, p.call(h, big))
	n.Until(func() bool { return got != "" })
	require.Equal(t, big, got)
	p.requireClean(1)
}

func mercuryOutputOverflow(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	big := oversizeString(p)
	h := p.handle(p.rpc("give", func(h hg.Request) error { return h.Respond(big, nil) }))
	defer h.Close()
	require.NoError(t, p.call(h, nil))
	var out string
	require.NoError(t, h.Output(&out))
	require.Equal(t, big, out)
	p.requireClean(1)
}

func mercuryCancel(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	h := p.handle(p.rpc("mute", func(h hg.Request) error { return nil }))
	defer h.Close()
	var o outcome
	require.NoError(t, h.Forward(nil, o.cb))
	h.Cancel() // before any progress
	p.octx.Trigger(0)
	require.Equal(t, 1, o.calls, "Trigger right after Cancel runs the callback")
	require.ErrorIs(t, o.err, hg.ErrCanceled)
	require.ErrorIs(t, o.err, context.Canceled)
	p.requireClean(1)
	require.Equal(t, 1, o.calls)
}

func mercuryMulti(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	done := 0
	for i := range uint64(32) {
		h := p.handle(id)
		require.NoError(t, h.Forward(&openIn{"/x", i}, func(h *hg.Handle, err error) {
			var out openOut
			assert.NoError(t, err)
			assert.NoError(t, h.Output(&out))
			assert.Equal(t, i, out.Event)
			done++
			h.Close()
		}))
	}
	n.Until(func() bool { return done == 32 })
	p.requireClean(0)
}

// runConcurrently runs f in goroutines and waits for all.
func runConcurrently(goroutines int, f func(g int)) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}

// driveUntil drives hctx until done, whatever other goroutines do to it.
func driveUntil(hctx *hg.Context, done func() bool) error {
	end := time.Now().Add(time.Minute)
	for !done() {
		hctx.Trigger(1)
		if done() {
			break
		}
		if err := hctx.Progress(10 * time.Millisecond); err != nil && codeOf(err) != hg.ErrTimeout {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing happened for a minute: %+v", hctx.Stats())
		}
	}
	return nil
}

func mercuryMultiConcurrent(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	n.Serve(p.tctx, 1)
	n.Serve(p.octx, 1) // one owner of progress; the others only forward
	var done atomic.Int64
	all := make(chan struct{})
	runConcurrently(8, func(g int) {
		for i := range 4 {
			h, err := p.octx.Create(p.target.Addr(), id)
			if !assert.NoError(t, err) {
				return
			}
			want := uint64(g*4 + i)
			assert.NoError(t, h.Forward(&openIn{"/x", want}, func(h *hg.Handle, err error) {
				var out openOut
				assert.NoError(t, err)
				assert.NoError(t, h.Output(&out))
				assert.Equal(t, want, out.Event)
				h.Close()
				if done.Add(1) == 32 {
					close(all)
				}
			}))
		}
	})
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatalf("%d of 32 calls ended: %+v", done.Load(), p.octx.Stats())
	}
}

func mercuryConcurrentProgress(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	n.Serve(p.tctx, 2)
	runConcurrently(4, func(g int) {
		h, err := p.octx.Create(p.target.Addr(), id)
		if !assert.NoError(t, err) {
			return
		}
		defer h.Close()
		for i := range 100 {
			var calls atomic.Int64
			want := uint64(g*1000 + i)
			assert.NoError(t, h.Forward(&openIn{"/x", want}, func(h *hg.Handle, err error) {
				var out openOut
				assert.NoError(t, err)
				assert.NoError(t, h.Output(&out))
				assert.Equal(t, want, out.Event)
				calls.Add(1)
				p.octx.Wake()
			}))
			if !assert.NoError(t, driveUntil(p.octx, func() bool { return calls.Load() > 0 && !isInFlight(h) })) {
				return
			}
			assert.EqualValues(t, 1, calls.Load())
		}
	})
}

// isInFlight reports whether the handle's call has not ended.
func isInFlight(h *hg.Handle) bool {
	_, err := h.OutputRaw()
	return codeOf(err) == na.ErrBusy
}

func mercuryConcurrentCreate(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("open", openHandler)
	n.Serve(p.tctx, 2)
	var done atomic.Int64
	const chains, links = 4, 50
	var next func(left int) hg.ForwardFunc
	next = func(left int) hg.ForwardFunc {
		return func(h *hg.Handle, err error) {
			assert.NoError(t, err)
			h.Close()
			if left == 0 {
				done.Add(1)
				return
			}
			h2, err := p.octx.Create(p.target.Addr(), id)
			assert.NoError(t, err)
			assert.NoError(t, h2.Forward(&openIn{"/x", 1}, next(left-1)))
		}
	}
	for range chains {
		require.NoError(t, p.handle(id).Forward(&openIn{"/x", 1}, next(links)))
	}
	runConcurrently(4, func(int) {
		assert.NoError(t, driveUntil(p.octx, func() bool { return done.Load() == chains }))
	})
	require.Zero(t, p.octx.Stats().Handles)
}

func mercuryMultiContext(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("who", func(h hg.Request) error { return h.Respond(h.HG().ID(), nil) })
	n.Context(p.target)
	n.Context(p.target)
	second := n.Context(p.origin)
	for _, from := range []*hg.Context{p.octx, second} {
		h, err := from.Create(p.target.Addr(), id)
		require.NoError(t, err)
		for _, target := range []int{0, 1, 2, 1} {
			require.NoError(t, h.SetTarget(target))
			require.NoError(t, p.call(h, nil))
			var who int
			require.NoError(t, h.Output(&who))
			require.Equal(t, target, who)
		}
		require.NoError(t, h.SetTarget(7))
		err = p.call(h, nil)
		require.ErrorIs(t, err, hg.ErrUnreachable)
		require.Regexp(t, `context:? 7`, err.Error())
		require.Equal(t, na.NotRun, hg.FateOf(err))
		h.Close()
	}
}

// mercurySelf runs the tests that the C suite runs with --self, and the cancel that it leaves out
// there.
func mercurySelf(t *testing.T, n *transports.Net) {
	p := newPair(t, n, hg.Config{})
	id := p.rpc("echo", echo)
	mute := p.rpc("mute", func(h hg.Request) error { return nil })
	h, err := p.tctx.Create(p.tctx.Self(), id)
	require.NoError(t, err)
	require.NoError(t, p.call(h, "self"))
	big := oversizeString(p)
	require.NoError(t, p.call(h, big))
	var out string
	require.NoError(t, h.Output(&out))
	require.Equal(t, big, out)
	require.NoError(t, h.Reset(p.tctx.Self(), mute))
	var o outcome
	require.NoError(t, h.Forward(nil, o.cb))
	h.Cancel()
	p.tctx.Trigger(0)
	require.Equal(t, 1, o.calls)
	require.ErrorIs(t, o.err, hg.ErrCanceled)
	h.Close()
}
