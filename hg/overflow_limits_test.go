package hg_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestBodyLimits checks that input and output of exactly the limit travel; one byte more fails,
// with the limit in the error, and the next call works.
func TestBodyLimits(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = 9000 // more than a message
		p := newPair(t, n, hg.Config{MaxInput: limit, MaxOutput: limit})
		h := p.handle(p.rpc("grow", func(h hg.Request) error {
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
		requireCode(t, err, hg.ErrOverflow)
		require.ErrorContains(t, err, "MaxOutput")
		require.NoError(t, raw(limit))
	})
}

// TestMaxLent checks that the bytes lent to peers at a time are limited: the call that would lend
// more fails at once, small ones work.
func TestMaxLent(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = 10_000
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{})
		p.origin, p.octx = n.Origin(hg.Config{MaxLent: limit})
		var k holdingTarget
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

// TestMaxPulled checks that the bytes fetched from peers at a time are limited: a request beyond
// that is answered, and did not run.
func TestMaxPulled(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const limit = na.MaxBody // no body that counts is sent with its message, or separately
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxPulled: limit})
		p.origin, p.octx = n.Origin(hg.Config{})
		h := p.handle(p.rpc("size", func(h hg.Request) error {
			_, err := h.InputRaw()
			return err
		}))
		defer h.Close()
		for _, c := range []struct {
			size int
			want hg.Code
		}{{limit, na.ErrNoResponse}, {limit + 1, hg.ErrAgain}, {10, na.ErrNoResponse}} {
			var o outcome
			require.NoError(t, h.ForwardRaw(make([]byte, c.size), o.cb))
			p.Until(func() bool { return o.calls == 1 })
			requireCode(t, o.err, c.want)
			if c.want == hg.ErrAgain {
				require.Equal(t, na.NotRun, hg.FateOf(o.err))
				require.ErrorContains(t, o.err, fmt.Sprint("Config.MaxPulled of ", limit))
			}
		}
		p.Until(func() bool { return p.tctx.Stats().Pulled == 0 && p.octx.Stats().Lent == 0 })
	})
}

// TestMaxPulledOfSession checks that an origin that lends and is silent then holds no more than its
// share of the bytes that may be fetched, until its session ends: the long input of another is
// served meanwhile. The only origin has the same share, and the error of a request beyond it names
// it.
func TestMaxPulledOfSession(t *testing.T) {
	t.Parallel()
	testSessionShare(t, "MaxPulled", hg.Config{MaxPulled: shared}, func(s hg.Stats) int64 { return s.Pulled }, na.NotRun,
		func(buf []byte) []byte { return buf },
		func(h hg.Request, _ []byte) error { return h.RespondRaw(nil, nil) })
}

// TestMaxLentOfSession checks the same for an origin that calls for long outputs and does not fetch
// them.
func TestMaxLentOfSession(t *testing.T) {
	t.Parallel()
	out := make([]byte, shared)
	testSessionShare(t, "MaxLent", hg.Config{MaxLent: shared}, func(s hg.Stats) int64 { return s.Lent }, na.Ran,
		func(buf []byte) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(len(buf))) },
		func(h hg.Request, in []byte) error { return h.RespondRaw(out[:binary.LittleEndian.Uint32(in)], nil) })
}

// shared is the limit that the sessions of shareOfSession share.
const shared = 32 << 20

// testSessionShare has clients make calls with the inputs that input makes, each of which takes as many bytes of a limit of the target as it is
// given, until handler has answered it. refused is the fate of those beyond.
func testSessionShare(t *testing.T, limit string, cfg hg.Config, held func(hg.Stats) int64, refused na.Fate, input func([]byte) []byte, handler func(h hg.Request, in []byte) error) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		const long = 10 << 20
		cfg.NA.PeerTimeout = time.Hour
		target, tctx := n.Target(cfg)
		marks := 0
		for _, rpc := range []hg.RPC{{Name: "long", Handler: func(h hg.Request) error {
			in, err := h.InputRaw()
			if err != nil {
				return err
			}
			return handler(h, in)
		}}, {Name: "mark", Handler: func(h hg.Request) error {
			marks++
			return h.RespondRaw(nil, nil)
		}}} {
			_, err := target.RegisterRPC(rpc)
			require.NoError(t, err)
		}
		buf := make([]byte, 16<<20)
		client := func(name string, sizes ...int) (*hg.Class, *hg.Context, []outcome) {
			origin, octx := n.Open("sim://"+name, hg.Config{NA: na.Config{Plugins: []na.Plugin{n.World.Node(name).Plugin()}}})
			for _, name := range []string{"long", "mark"} {
				_, err := origin.Register(name, nil)
				require.NoError(t, err)
			}
			outs := make([]outcome, len(sizes)+1)
			for i := range outs {
				rpc, in := "mark", []byte(nil)
				if i < len(sizes) {
					rpc, in = "long", input(buf[:sizes[i]])
				}
				h, err := octx.Create(target.Addr(), hg.HashName(rpc))
				require.NoError(t, err)
				require.NoError(t, h.ForwardRaw(in, func(h *hg.Handle, err error) {
					outs[i].cb(h, err)
					h.Close()
				}))
			}
			return origin, octx, outs
		}
		all := func(outs []outcome) func() bool {
			return func() bool { return !slices.ContainsFunc(outs, func(o outcome) bool { return o.calls == 0 }) }
		}

		silent, sctx, _ := client("silent", long, long, long)
		for still := n.Bounded(); marks == 0; still() {
			if tctx.Stats().Handles == 0 { // until it has sent all
				_ = sctx.Progress(0)
			}
			tctx.Trigger(0)
			_ = tctx.Progress(0)
		}
		n.Undriven(sctx)
		n.World.Node("silent").Pause(0) // else it answers by itself, undriven
		_, _, other := client("other", 15<<19)
		n.Until(all(other))
		require.NoError(t, other[0].err, "of a client that is not silent")
		n.Until(func() bool { return held(tctx.Stats()) <= 2*long })
		require.EqualValues(t, 2*long, held(tctx.Stats()), "of the silent one")
		n.World.Node("silent").Resume()
		require.NoError(t, silent.Close())
		n.Until(func() bool { return held(tctx.Stats()) == 0 && tctx.Stats().Handles == 0 })

		_, _, first := client("first", 16<<20)
		n.Until(all(first))
		require.NoError(t, first[0].err)
		_, _, alone := client("alone", long, long, long)
		n.Until(all(alone))
		require.NoError(t, alone[0].err)
		require.NoError(t, alone[1].err)
		requireCode(t, alone[2].err, hg.ErrAgain)
		require.ErrorContains(t, alone[2].err, "by this session")
		require.ErrorContains(t, alone[2].err, fmt.Sprintf("Config.%s of %d", limit, shared))
		require.Equal(t, refused, hg.FateOf(alone[2].err))
		n.Until(func() bool { return held(tctx.Stats()) == 0 && tctx.Stats().Handles == 0 })
	})
}
