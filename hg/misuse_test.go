package hg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/matrix"
)

// A handler that closes its handle, as one does at the origin, is told so at the place: its panic is logged with its stack. The
// response that it has given leaves all the same, and the requests after it have their own.
func TestCloseInsideHandler(t *testing.T) {
	matrix.Each(t, func(t *testing.T, n *matrix.Net) {
		p := newPair(t, n, hg.Config{})
		id := p.rpc("closes", func(h *hg.Handle) error {
			defer h.Close()
			return echo(h)
		})
		for _, in := range []string{"one", "two", "three"} {
			h := p.handle(id)
			var o outcome
			require.NoError(t, h.ForwardRaw([]byte(in), o.cb))
			n.Until(func() bool { return o.calls > 0 })
			require.NoError(t, o.err)
			out, err := h.OutputRaw()
			require.NoError(t, err)
			require.Equal(t, in, string(out))
			h.Close()
		}
		p.clean(0)
	})
}

// An answer of a goroutine that the handler did not wait for, and for which it holds no reference, is refused: it does not
// become that of another request.
func TestAnswerWithoutReference(t *testing.T) {
	matrix.Each(t, func(t *testing.T, n *matrix.Net) {
		p := newPair(t, n, hg.Config{})
		var stray, held *hg.Handle
		id := p.rpc("stray", func(h *hg.Handle) error {
			if stray == nil {
				stray = h
			} else {
				held = h.Ref()
			}
			return nil
		})
		first, second := p.handle(id), p.handle(id)
		defer first.Close()
		defer second.Close()
		require.ErrorIs(t, p.call(first, "first"), hg.ErrNoResponse)
		p.clean(2)
		var o outcome
		require.NoError(t, second.Forward("second", o.cb))
		n.Until(func() bool { return held != nil })
		require.ErrorIs(t, stray.Respond("for the first", nil), hg.ErrAnswered)
		_, err := stray.InputRaw()
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.Panics(t, func() { stray.Ref() })
		require.Panics(t, stray.Close)
		require.NoError(t, held.Respond("for the second", nil))
		held.Close()
		n.Until(func() bool { return o.calls > 0 })
		require.NoError(t, o.err)
		var out string
		require.NoError(t, second.Output(&out))
		require.Equal(t, "for the second", out)
		p.clean(2)
	})
}

// A handle that is closed is not brought back by Withdraw or Ref: its identity is given to one other handle, not to two.
func TestClosedHandleStaysClosed(t *testing.T) {
	matrix.Each(t, func(t *testing.T, n *matrix.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		require.NoError(t, p.call(h, "x"))
		h.Close()
		told := false
		require.ErrorIs(t, h.Withdraw(time.Second, func(*hg.Handle, hg.WithdrawResult) { told = true }), hg.ErrClosed)
		require.Panics(t, func() { h.Ref() })
		require.Panics(t, h.Close)
		p.clean(0)
		require.False(t, told)
	})
}
