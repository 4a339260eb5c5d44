package hg_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// sizedBytes returns bytes that contain their length.
func sizedBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// callRaw is call for bytes.
func (p *pair) callRaw(h *hg.Handle, in []byte) error {
	var o outcome
	require.NoError(p.t, h.ForwardRaw(in, o.cb))
	p.Until(func() bool { return o.calls == 1 })
	return o.err
}

// TestBodiesInline checks that input and output of up to 64 KiB are sent with their messages once
// the target has seen such a call; longer ones are lent.
func TestBodiesInline(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		require.NoError(t, p.callRaw(h, sizedBytes(60<<10))) // its input is lent, and the target grants room
		require.EqualValues(t, 1, p.octx.Stats().Loans)
		require.EqualValues(t, 1, p.octx.Stats().NoRoom)
		require.Zero(t, p.octx.Stats().Inline)
		long := 0
		for round := range 3 {
			for _, size := range []int{10, 4000, 4096, 5000, 16 << 10, 16<<10 + 1, 17 << 10, 32 << 10, 40 << 10, 64 << 10} {
				in := sizedBytes(size)
				require.NoError(t, p.callRaw(h, in), "%d bytes, round %d", size, round)
				out, err := h.OutputRaw()
				require.NoError(t, err)
				require.True(t, bytes.Equal(in, out), "%d bytes", size)
				if size >= 4096 {
					long++
				}
			}
		}
		o, s := p.octx.Stats(), p.tctx.Stats()
		require.EqualValues(t, long, o.Inline)
		require.EqualValues(t, 1, o.Loans)
		require.EqualValues(t, long+1, s.Inline)
		require.Zero(t, s.Loans)
		h.Close()
		p.requireClean(0)
	})
}

// TestBodiesSeparate checks that longer bodies, of up to na.MaxBody bytes, are sent separately from
// their messages, each way once such a one was lent; still longer ones are lent.
func TestBodiesSeparate(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		lent := int64(0)
		for _, size := range []int{na.MaxRoom, 100_000, 300 << 10, 1 << 20, na.MaxBody} {
			inline, loans := p.octx.Stats().Inline+p.tctx.Stats().Inline, p.octx.Stats().Loans+p.tctx.Stats().Loans
			for round := range int64(6) {
				in := sizedBytes(size)
				require.NoError(t, p.callRaw(h, in), "%d bytes, round %d", size, round)
				out, err := h.OutputRaw()
				require.NoError(t, err)
				require.True(t, bytes.Equal(in, out), "%d bytes", size)
			}
			inline, loans = p.octx.Stats().Inline+p.tctx.Stats().Inline-inline, p.octx.Stats().Loans+p.tctx.Stats().Loans-loans
			require.EqualValues(t, 12, inline+loans, "%d bytes", size)
			require.LessOrEqual(t, loans, int64(2), "%d bytes", size)
			lent += loans
		}
		require.Equal(t, lent, p.octx.Stats().NoRoom+p.tctx.Stats().NoRoom)
		require.NoError(t, p.callRaw(h, sizedBytes(na.MaxBody+1)))
		require.Equal(t, lent, p.octx.Stats().NoRoom+p.tctx.Stats().NoRoom)
		require.Equal(t, lent+2, p.octx.Stats().Loans+p.tctx.Stats().Loans)
		h.Close()
		p.requireClean(0)
	})
}

// TestBodiesAndFewEnvelopes checks that the guarantee counts messages, without their bodies: with
// 1, 2 or 8 envelopes as many requests with a body of 1 MiB are at a target that accepts none, the
// others stay at their origin, and all of them end when it continues.
func TestBodiesAndFewEnvelopes(t *testing.T) {
	t.Parallel()
	for _, guaranteed := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(guaranteed), func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Envelopes: guaranteed}})
				p.origin, p.octx = n.Origin(hg.Config{})
				id := p.rpc("echo", echo)
				in, handles, ends := sizedBytes(1<<20), make([]*hg.Handle, 12), make([]outcome, 12)
				for i := range handles {
					handles[i] = p.handle(id)
				}
				require.NoError(t, p.callRaw(handles[0], in)) // the target grants room
				for i, h := range handles {
					require.NoError(t, h.ForwardRaw(in, ends[i].cb))
				}
				for more := 20; more > 0; { // messages move, and none is taken
					_, _ = p.octx.Progress(time.Millisecond), p.tctx.Progress(time.Millisecond)
					if p.tctx.Stats().NA.Envelopes >= guaranteed {
						more--
					}
				}
				require.Equal(t, guaranteed, p.tctx.Stats().NA.Envelopes)
				require.Equal(t, len(handles)-guaranteed, p.octx.Stats().NA.Queued)
				for i, h := range handles {
					p.Until(func() bool { return ends[i].calls == 1 })
					require.NoError(t, ends[i].err)
					out, err := h.OutputRaw()
					require.NoError(t, err)
					require.True(t, bytes.Equal(in, out))
				}
				require.Zero(t, p.tctx.Stats().NA.Violations)
				for _, h := range handles {
					h.Close()
				}
				p.requireClean(0)
			})
		})
	}
}

// TestOutputIsInput checks that an output may be the next input of its handle, or a part of it,
// however it was transferred.
func TestOutputIsInput(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		for _, size := range []int{70_000, 300 << 10, na.MaxBody + 1000} {
			in := sizedBytes(size)
			require.NoError(t, p.callRaw(h, in))
			for k := range 6 {
				out, err := h.OutputRaw()
				require.NoError(t, err)
				require.True(t, bytes.Equal(in[k:], out), "%d bytes, call %d", size, k)
				require.NoError(t, p.callRaw(h, out[1:]))
			}
		}
		h.Close()
		p.requireClean(0)
	})
}

// TestFreeOutput checks that an output that has been freed is not readable if it had memory of its
// own; the handle makes its next call as usual, and the error of a call that failed stays.
func TestFreeOutput(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		for _, size := range []int{10, 5000, 70_000, 300 << 10} {
			require.NoError(t, p.callRaw(h, sizedBytes(size)))
			hghook.FreeOutput(h)
			hghook.FreeOutput(h)
			out, err := h.OutputRaw()
			require.NoError(t, err)
			if size > 10 {
				require.Empty(t, out)
			}
		}
		require.NoError(t, p.callRaw(h, sizedBytes(20)))
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Equal(t, sizedBytes(20), out)
		fails := p.handle(p.rpc("fail", func(hg.Request) error { return hg.ErrPermission }))
		requireCode(t, p.callRaw(fails, nil), hg.ErrPermission)
		hghook.FreeOutput(fails)
		_, err = fails.OutputRaw()
		requireCode(t, err, hg.ErrPermission)
		fails.Close()
		h.Close()
		p.requireClean(0)
	})
}

// TestInlineLimits checks that inline bodies keep the limits of both sides.
func TestInlineLimits(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{MaxInput: 20_000})
		p.origin, p.octx = n.Origin(hg.Config{MaxOutput: 10_000})
		h := p.handle(p.rpc("twice", func(h hg.Request) error {
			in, err := h.InputRaw()
			if err != nil {
				return err
			}
			return h.RespondRaw(append(in[:len(in):len(in)], in...), nil)
		}))
		require.NoError(t, p.callRaw(h, sizedBytes(5000)))
		require.ErrorIs(t, p.callRaw(h, sizedBytes(5001)), hg.ErrOverflow)
		require.NoError(t, p.callRaw(h, sizedBytes(5000)))
		err := p.callRaw(h, sizedBytes(20_001))
		requireCode(t, err, hg.ErrOverflow)
		require.Equal(t, na.NotRun, hg.FateOf(err))
		h.Close()
		p.requireClean(0)
	})
}
