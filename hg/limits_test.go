package hg_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Input and output of exactly the limit travel; one byte more fails, with the limit in the error, and the next call works.
func TestBodyLimits(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = 9000 // more than a message
		p := newPair(t, n, hg.Config{MaxInput: limit, MaxOutput: limit})
		h := p.handle(p.rpc("grow", func(h hg.Incoming) error {
			in, err := h.InputRaw()
			if err != nil {
				return err
			}
			return h.RespondRaw(make([]byte, limit+len(in)%2), nil)
		}))
		defer h.Close()
		raw := func(size int) error {
			var o outcome
			if err := h.ForwardRaw(make([]byte, size), o.cb); err != nil {
				return err
			}
			p.Until(func() bool { return o.calls > 0 })
			return o.err
		}
		require.NoError(t, raw(limit))
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Len(t, out, limit)
		err = raw(limit + 1)
		require.ErrorIs(t, err, hg.ErrOverflow)
		require.ErrorContains(t, err, "MaxInput")
		err = raw(limit - 1)
		said(t, err, hg.ErrOverflow)
		require.ErrorContains(t, err, "MaxOutput")
		require.NoError(t, raw(limit))
	})
}

// What is lent to peers at a time is bounded: the call that would lend more fails at once, small ones go on.
func TestMaxLent(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = 10_000
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Origin(hg.Config{MaxLent: limit})
		var k keeper
		id := p.rpc("keep", k.handler)
		first, second := p.handle(id), p.handle(id)
		defer first.Close()
		defer second.Close()
		var o, small outcome
		require.NoError(t, first.ForwardRaw(make([]byte, limit), o.cb))
		require.EqualValues(t, limit, p.octx.Stats().Lent)
		err := second.ForwardRaw(make([]byte, 5000), func(*hg.Handle, error) { t.Error("a refused Forward ran its callback") })
		require.ErrorIs(t, err, hg.ErrAgain)
		require.ErrorContains(t, err, "Config.MaxLent of 10000")
		require.NoError(t, second.ForwardRaw(make([]byte, 50), small.cb))
		p.Until(func() bool { return len(k.kept) == 2 })
		k.answer()
		k.answer()
		p.Until(func() bool { return o.calls == 1 && small.calls == 1 && p.octx.Stats().Lent == 0 })
		require.NoError(t, o.err)
		require.NoError(t, second.ForwardRaw(make([]byte, 5000), small.cb))
		p.Until(func() bool { return len(k.kept) == 1 })
		k.answer()
		p.Until(func() bool { return small.calls == 2 })
	})
}

// What is fetched from peers at a time is bounded: a request beyond that is answered, and did not run.
func TestMaxPulled(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = na.MaxBody // no body that counts goes with its message, or beside it
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxPulled: limit})
		p.origin, p.octx = n.Origin(hg.Config{})
		h := p.handle(p.rpc("size", func(h hg.Incoming) error {
			_, err := h.InputRaw()
			return err
		}))
		defer h.Close()
		for _, c := range []struct {
			size int
			want hg.Code
		}{{limit, hg.ErrNoResponse}, {limit + 1, hg.ErrAgain}, {10, hg.ErrNoResponse}} {
			var o outcome
			require.NoError(t, h.ForwardRaw(make([]byte, c.size), o.cb))
			p.Until(func() bool { return o.calls == 1 })
			said(t, o.err, c.want)
			if c.want == hg.ErrAgain {
				require.Equal(t, na.NotRun, hg.FateOf(o.err))
				require.ErrorContains(t, o.err, fmt.Sprint("Config.MaxPulled of ", limit))
			}
		}
		p.Until(func() bool { return p.tctx.Stats().Pulled == 0 && p.octx.Stats().Lent == 0 })
	})
}
