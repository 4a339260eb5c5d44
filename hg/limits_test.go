package hg_test

import (
	"fmt"
	"testing"
	"time"

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

// An origin that lends and is silent then holds no more than its share of what is fetched, until its session ends: the long input of
// another is served meanwhile. One that is alone has the same share, and a request beyond it is told of it.
func TestMaxPulledOfSession(t *testing.T) {
	t.Parallel()
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		const limit, long = 128 << 20, 40 << 20
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxPulled: limit, NA: na.Config{PeerTimeout: time.Hour}})
		size := func(h hg.Incoming) error {
			_, err := h.InputRaw()
			return err
		}
		in := make([]byte, 64<<20)
		// begin has a new client make calls with so many bytes, one of which is under way before the next begins.
		begin := func(name string, sizes ...int) (*hg.Class, *hg.Context, []outcome) {
			origin, octx := n.Open("sim://"+name, hg.Config{})
			id, err := origin.Register("size", nil)
			require.NoError(t, err)
			outs := make([]outcome, len(sizes))
			for i, n := range sizes {
				h, err := octx.Create(p.target.Addr(), id)
				require.NoError(t, err)
				require.NoError(t, h.ForwardRaw(in[:n], func(h *hg.Handle, err error) {
					outs[i].cb(h, err)
					h.Close()
				}))
			}
			return origin, octx, outs
		}
		marks := 0
		_, err := p.target.Register("size", func(h hg.Incoming) error {
			if in, _ := h.InputRaw(); len(in) == 0 {
				marks++
			}
			return size(h)
		})
		require.NoError(t, err)

		silent, sctx, _ := begin("silent", long, long, long, 0)
		for still := n.Bounded(); marks == 0; still() { // it has sent all, and answers nothing
			if p.tctx.Stats().Handles == 0 {
				_ = sctx.Progress(0)
			}
			p.tctx.Trigger(0)
			_ = p.tctx.Progress(0)
		}
		n.Undriven(sctx)
		_, _, one := begin("one", 30<<20)
		p.Until(func() bool { return one[0].calls == 1 })
		said(t, one[0].err, hg.ErrNoResponse)
		require.EqualValues(t, 2*long, p.tctx.Stats().Pulled, "of the silent one")
		require.NoError(t, silent.Close())
		p.Until(func() bool { return p.tctx.Stats().Pulled == 0 && p.tctx.Stats().Handles == 0 })

		_, _, alone := begin("alone", long, long, long)
		p.Until(func() bool { return alone[0].calls+alone[1].calls+alone[2].calls == 3 })
		said(t, alone[0].err, hg.ErrNoResponse)
		said(t, alone[1].err, hg.ErrNoResponse)
		said(t, alone[2].err, hg.ErrAgain)
		require.ErrorContains(t, alone[2].err, "of this session")
		require.ErrorContains(t, alone[2].err, fmt.Sprint("Config.MaxPulled of ", limit))
		require.Equal(t, na.NotRun, hg.FateOf(alone[2].err))
		p.Until(func() bool { return p.tctx.Stats().Pulled == 0 })
	})
}
