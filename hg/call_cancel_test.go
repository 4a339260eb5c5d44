package hg_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// silentTarget keeps the handles of requests and answers on demand.
type silentTarget struct{ kept []hg.Request }

func (m *silentTarget) handler(h hg.Request) error {
	m.kept = append(m.kept, detach(h))
	return nil
}

func (m *silentTarget) answer(t *testing.T, out any) {
	for _, h := range m.kept {
		require.NoError(t, h.Respond(out, nil))
	}
	m.kept = nil
}

// forwardUnanswered forwards to a handler that does not answer, and waits until it has the request. The caller closes the handle.
func (p *pair) forwardUnanswered() (h *hg.Handle, s hg.Request, o *outcome) {
	p.t.Helper()
	var m silentTarget
	h, o = p.handle(p.rpc("mute", m.handler)), &outcome{}
	require.NoError(p.t, h.Forward(nil, o.cb))
	p.Until(func() bool { return len(m.kept) == 1 })
	return h, m.kept[0], o
}

// TestCancelThenTriggerWithoutProgress runs the sequence of the Mercury cancellation page: forward,
// no progress, cancel, trigger, forward the same handle again.
func TestCancelThenTriggerWithoutProgress(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		muteID, echoID := p.rpc("mute", m.handler), p.rpc("echo", echo)
		h := p.handle(muteID)
		defer h.Close()

		for _, arrived := range []bool{false, true} {
			for _, in := range []string{"small", oversizeString(p)} {
				t.Run(fmt.Sprintf("arrived=%v/%dbytes", arrived, len(in)), func(t *testing.T) {
					require.NoError(t, h.Reset(p.target.Addr(), muteID))
					var o outcome
					require.NoError(t, h.Forward(in, o.cb))
					if arrived {
						n.Until(func() bool { return len(m.kept) == 1 })
					}
					h.Cancel()
					h.Cancel()
					p.octx.Trigger(0)
					require.Equal(t, 1, o.calls)
					require.ErrorIs(t, o.err, hg.ErrCanceled)
					require.Error(t, h.Output(new(string)), "a canceled call has no output")

					require.NoError(t, h.Reset(p.target.Addr(), echoID))
					require.NoError(t, p.call(h, "again"))
					var out string
					require.NoError(t, h.Output(&out))
					require.Equal(t, "again", out)
					m.answer(t, "late")
				})
			}
		}
		n.Until(func() bool { return p.octx.Stats().NA.LateDropped >= 2 && p.tctx.Stats().Handles == 0 })
		require.Equal(t, 1, p.octx.Stats().NA.Peers, "the connection is intact")
		p.requireClean(1)
	})
}

// TestCancelIdle checks that a cancel of a handle that has no call, whether it never had one or its
// last has ended, does nothing: no callback, and nothing to the next call (F36).
func TestCancelIdle(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		var o outcome
		for i := range 3 {
			h.Cancel()
			h.Cancel()
			p.octx.Trigger(0)
			require.Equal(t, i, o.calls, "callbacks")
			require.EqualValues(t, 1, p.octx.Stats().Handles)
			require.NoError(t, h.Forward(i, o.cb))
			n.Until(func() bool { return o.calls > i })
			require.NoError(t, o.err)
			var out int
			require.NoError(t, h.Output(&out))
			require.Equal(t, i, out)
		}
		h.Cancel()
		h.Close()
		p.requireClean(0)
		require.Equal(t, 3, o.calls, "callbacks")
	})
}

func TestLookupCancel(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		if n.SlowName() == "" {
			t.Skip("lookups end at once over " + n.Name)
		}
		_, hctx := n.Origin(hg.Config{})
		calls := 0
		var got error
		l, err := hctx.Lookup(n.SlowName(), func(_ na.Addr, err error) { calls++; got = err })
		require.NoError(t, err)
		hctx.Trigger(0)
		require.Zero(t, calls)
		l.Cancel()
		hctx.Trigger(0)
		require.Equal(t, 1, calls)
		require.ErrorIs(t, got, hg.ErrCanceled)
		require.Contains(t, got.Error(), n.SlowName())
		l.Cancel()

		ctx, cancel := context.WithCancelCause(context.Background())
		cause := fmt.Errorf("enough")
		cancel(cause)
		_, err = hctx.LookupWait(ctx, n.SlowName())
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.ErrorIs(t, err, cause)
	})
}

func TestLookupBad(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, hctx := n.Origin(hg.Config{})
		for _, text := range []string{"", "nowhere", "://x", "tcp://", "xyz://a:1", "tcp://a:1#x"} {
			_, err := hctx.LookupWait(context.Background(), text)
			require.Error(t, err, "%q", text)
			require.Contains(t, err.Error(), text)
		}
	})
}

// TestH5LateAnswerAfterReuse checks that a late answer of a canceled call never reaches the next
// call of the same handle (C-T27).
func TestH5LateAnswerAfterReuse(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		h := p.handle(p.rpc("mute", m.handler))
		defer h.Close()
		const rounds = 50
		for i := range rounds {
			var o outcome
			require.NoError(t, h.Forward(i, o.cb))
			n.Until(func() bool { return len(m.kept) == i+1 })
			h.Cancel()
			n.Until(func() bool { return o.calls == 1 })
			require.ErrorIs(t, o.err, hg.ErrCanceled)
		}
		var o outcome
		require.NoError(t, h.Forward("last", o.cb))
		n.Until(func() bool { return len(m.kept) == rounds+1 })
		for i, kept := range m.kept {
			require.NoError(t, kept.Respond(i, nil))
		}
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		var out int
		require.NoError(t, h.Output(&out))
		require.Equal(t, rounds, out, "the answer of the last call")
		require.EqualValues(t, rounds, p.octx.Stats().NA.LateDropped)
		p.requireClean(1)
	})
}

// TestCancelAfterArrival checks that success wins over a cancel after the response has arrived and
// before Trigger.
func TestCancelAfterArrival(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		defer h.Close()
		var o outcome
		require.NoError(t, h.Forward("x", o.cb))
		p.tctx.Trigger(0)
		n.Undriven(p.octx)
		for p.octx.NA().Stats().Outstanding > 0 { // moves bytes, triggers nothing at the origin
			p.tctx.Trigger(0)
			_ = p.tctx.Progress(0)
			_ = p.octx.NA().Progress(0)
			if p.octx.NA().Upper().Queued() > 1 {
				break
			}
		}
		h.Cancel()
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls)
		require.NoError(t, o.err, "success wins")
	})
}

func TestCancelOversizeOutput(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		h := p.handle(p.rpc("mute", m.handler))
		defer h.Close()
		big := make([]byte, 4<<20)
		canceled, succeeded := 0, 0
		for i := range 60 {
			var o outcome
			require.NoError(t, h.Forward(nil, o.cb))
			n.Until(func() bool { return len(m.kept) == 1 })
			if i%2 == 0 {
				m.answer(t, big)
			}
			for range i { // a little further in each round
				_ = p.tctx.Progress(0)
				p.tctx.Trigger(0)
				_ = p.octx.Progress(0)
				p.octx.NA().Trigger(1)
			}
			h.Cancel()
			p.octx.Trigger(0)
			n.Until(func() bool { return o.calls == 1 })
			if o.err == nil {
				succeeded++
			} else {
				require.ErrorIs(t, o.err, hg.ErrCanceled)
				canceled++
			}
			m.answer(t, big) // too late, if it was not given before
			p.requireClean(1)
		}
		require.Positive(t, canceled)
		t.Logf("canceled %d, succeeded %d", canceled, succeeded)
	})
}

// TestH15OversizeResponsesToCanceledOrigin checks that responses larger than a message, to calls
// that were canceled before their targets answered (which C Mercury leaks), leave nothing behind on
// either side, and that memory does not grow with their number.
func TestH15OversizeResponsesToCanceledOrigin(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		big := make([]byte, na.MaxRoom+1)
		var m silentTarget
		id := p.rpc("mute", m.handler)
		handles := make([]*hg.Handle, 32)
		for i := range handles {
			handles[i] = p.handle(id)
		}
		calls, reported := 0, 0
		cancel := func(rounds int) {
			for range rounds {
				var o outcome
				for _, h := range handles {
					require.NoError(t, h.ForwardRaw(nil, o.cb))
				}
				n.Until(func() bool { return len(m.kept) == len(handles) })
				for _, h := range handles {
					h.Cancel()
				}
				p.octx.Trigger(0)
				require.Equal(t, len(handles), o.calls)
				for _, h := range m.kept { // when its origin has canceled, and not before
					require.NoError(t, h.RespondRaw(big, func(hg.Request, error) { reported++ }))
				}
				m.kept = m.kept[:0]
				calls += len(handles)
				n.Until(func() bool { return reported == calls && p.tctx.Stats().Handles == 0 })
			}
		}
		cancel(20)
		before := heapInUse()
		cancel(shareOfRounds(n, long.Or(10_000, 50_000), 3) / len(handles))
		grown := heapInUse() - before
		t.Logf("%d bytes more after %d calls", grown, calls)
		require.Less(t, grown, int64(1<<20))
		n.Until(func() bool { return p.octx.Stats().NA.LateDropped >= int64(calls) })
		require.EqualValues(t, calls, p.octx.Stats().NA.LateDropped)
		require.NoError(t, handles[0].Reset(p.target.Addr(), p.rpc("echo", echo)))
		require.NoError(t, p.call(handles[0], nil))
		for _, h := range handles {
			h.Close()
		}
		p.requireClean(0)
	})
}

func TestCancelRespond(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h, s, o := p.forwardUnanswered()
		defer h.Close()
		var cbErr error
		calls := 0
		require.NoError(t, s.Respond("first", func(r hg.Request, err error) {
			calls++
			if cbErr = err; err != nil { // it had not left: another may be given
				require.NoError(t, r.Respond("second", nil))
			}
		}))
		s.Cancel()
		p.tctx.Trigger(0)
		require.Equal(t, 1, calls)
		want := "first"
		if cbErr != nil {
			require.ErrorIs(t, cbErr, hg.ErrCanceled)
			want = "second"
		}
		require.ErrorIs(t, s.Respond("third", nil), na.ErrAnswered)
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		var out string
		require.NoError(t, h.Output(&out))
		require.Equal(t, want, out)
		p.requireClean(1)
	})
}

func TestCancelInsideCallbacks(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		muteID, echoID := p.rpc("mute", m.handler), p.rpc("echo", echo)
		other := p.handle(muteID)
		var stalled, again outcome
		require.NoError(t, other.Forward(nil, stalled.cb))
		h := p.handle(echoID)
		calls := 0
		require.NoError(t, h.Forward("x", func(h *hg.Handle, err error) {
			calls++
			assert.NoError(t, err)
			h.Cancel()     // its own call has ended: nothing happens
			other.Cancel() // another's
			assert.NoError(t, h.Forward("y", again.cb))
			h.Close()
		}))
		n.Until(func() bool { return stalled.calls == 1 && again.calls == 1 })
		require.ErrorIs(t, stalled.err, hg.ErrCanceled)
		require.NoError(t, again.err)
		require.Equal(t, 1, calls)
		other.Close()
		n.Until(func() bool { return len(m.kept) == 1 })
		m.answer(t, nil)
		p.requireClean(0)
	})
}

// TestCloseInFlight checks that destroying a handle in flight is legal: the callback still runs,
// once, and the handle is released then.
func TestCloseInFlight(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		var o outcome
		require.NoError(t, h.Forward("x", o.cb))
		h.Close()
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		p.requireClean(0)
	})
}

func TestErrorText(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var m silentTarget
		h := p.handle(p.rpc("math/sum", m.handler))
		defer h.Close()
		var o outcome
		require.NoError(t, h.Forward(nil, o.cb))
		begun := p.octx.Now() // which is later than the start that Took counts from
		n.Until(func() bool { return len(m.kept) == 1 && p.octx.Now()-begun > time.Millisecond })
		h.Cancel()
		p.octx.Trigger(0)
		var e *hg.Error
		require.ErrorAs(t, o.err, &e)
		require.Equal(t, "forward", e.Op)
		require.Equal(t, "math/sum", e.RPC)
		require.Equal(t, p.target.Addr(), e.Peer)
		require.Greater(t, e.Took, time.Millisecond)
		require.Equal(t, na.MaybeRan, e.Fate)
		require.Contains(t, e.Error(), "math/sum to "+p.target.Addr().String()+": operation canceled (may have run, after ")
		m.answer(t, nil)
	})
}
