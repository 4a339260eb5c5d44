package hg_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// withdrawOutcome counts the callbacks of Withdraw.
type withdrawOutcome struct {
	n int
	r hg.WithdrawResult
}

func (w *withdrawOutcome) cb(_ *hg.Handle, r hg.WithdrawResult) { w.n++; w.r = r }

// withWithdraws runs f over every transport with a pair whose target triggers only when f makes it.
func withWithdraws(t *testing.T, cfg hg.Config, f func(t *testing.T, p *pair, id hg.ID, ran *int)) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, cfg)
		ran := 0
		id := p.rpc("count", func(h hg.Request) error { ran++; return h.RespondRaw([]byte("done"), nil) })
		f(t, p, id, &ran)
	})
}

// waitForRequests moves bytes, and triggers at the origin only, until the target holds n requests.
func (p *pair) waitForRequests(n int) {
	p.t.Helper()
	p.moveUntil(func() bool { return p.tctx.Stats().NA.Envelopes >= n })
}

// moveUntil drives both sides, but triggers nothing at the target, until done reports true.
func (p *pair) moveUntil(done func() bool) {
	p.t.Helper()
	for still := p.Bounded(); !done(); still() {
		p.octx.Trigger(0)
		_ = p.octx.Progress(0)
		_ = p.tctx.Progress(0)
	}
}

// TestWithdrawBuffered (C-T1) checks that a request whose handler has not started is destroyed,
// small or large.
func TestWithdrawBuffered(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		h := p.handle(id)
		for i, size := range []int{0, 100, 100_000} {
			var o outcome
			var w withdrawOutcome
			require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
			p.waitForRequests(1)
			require.NoError(t, h.Withdraw(0, w.cb))
			p.moveUntil(func() bool { return w.n > 0 && o.calls > 0 })
			require.Equal(t, hg.Withdrawn, w.r)
			require.ErrorIs(t, o.err, hg.ErrCanceled)
			var e *hg.Error
			require.ErrorAs(t, o.err, &e)
			require.Equal(t, na.NotRun, e.Fate)
			p.Until(func() bool { return p.tctx.Stats().Handles == 0 && p.tctx.Stats().NA.Envelopes == 0 })
			require.Zero(t, *ran)
			require.Equal(t, int64(i+1), p.tctx.Stats().NA.Withdrawn)
			require.Equal(t, 1, w.n)
			require.Equal(t, 1, o.calls)
		}
		require.NoError(t, p.call(h, nil), "the handle is ready to be used again")
		require.Equal(t, 1, *ran)
		require.Zero(t, p.octx.Stats().NA.LateDropped, "a withdrawn request is not answered")
		h.Close()
	})
}

// TestWithdrawTooLate (C-T2, C-T5) checks that not while the handler runs, nor after the call, nor
// after a cancel; the call ends as it would have.
func TestWithdrawTooLate(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var kept hg.Request
		id := p.rpc("later", func(h hg.Request) error { kept = detach(h); return nil })
		h := p.handle(id)
		var o outcome
		var during, after, canceled withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return kept != (hg.Request{}) })
		require.NoError(t, h.Withdraw(0, during.cb))
		p.Until(func() bool { return during.n > 0 })
		require.Equal(t, hg.TooLate, during.r)
		require.Zero(t, o.calls, "the call continues")
		require.NoError(t, kept.RespondRaw([]byte("yes"), nil))
		releaseUnanswered(kept)
		p.Until(func() bool { return o.calls > 0 })
		require.NoError(t, o.err)
		out, err := h.OutputRaw()
		require.NoError(t, err)
		require.Equal(t, "yes", string(out))

		require.NoError(t, h.Withdraw(0, after.cb))
		p.octx.Trigger(0)
		require.Equal(t, 1, after.n)
		require.Equal(t, hg.TooLate, after.r)

		kept = hg.Request{}
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		h.Cancel()
		require.NoError(t, h.Withdraw(0, canceled.cb))
		p.octx.Trigger(0)
		require.Equal(t, 1, canceled.n)
		require.Equal(t, hg.TooLate, canceled.r)
		h.Close()
		p.Until(func() bool { return o.calls == 2 })
		if kept != (hg.Request{}) {
			releaseUnanswered(kept)
		}
		require.Equal(t, 1, during.n)
	})
}

// TestWithdrawCrossesAnswer (C-T10) checks an answer of the handler that leaves before the target
// has received the withdrawal, or after. The withdrawal is too late in any order, and the call
// succeeds.
func TestWithdrawCrossesAnswer(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var kept hg.Request
		id := p.rpc("later", func(h hg.Request) error { kept = detach(h); return nil })
		h := p.handle(id)
		for range 50 {
			var o outcome
			var w withdrawOutcome
			kept = hg.Request{}
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			p.Until(func() bool { return kept != (hg.Request{}) })
			require.NoError(t, h.Withdraw(0, w.cb))
			require.NoError(t, kept.RespondRaw([]byte("yes"), nil))
			releaseUnanswered(kept)
			for o.calls == 0 { // the origin only, as far as that works
				if p.octx.Progress(time.Millisecond) != nil {
					_ = p.tctx.Progress(0)
				}
				p.octx.Trigger(0)
			}
			p.Until(func() bool { return w.n > 0 })
			require.NoError(t, o.err)
			require.Equal(t, withdrawOutcome{1, hg.TooLate}, w)
		}
		h.Close()
	})
}

// TestWithdrawUnsent (C-T3, G-T31) checks that a request that waits for an envelope is withdrawn
// here; no frame is sent.
func TestWithdrawUnsent(t *testing.T) {
	withWithdraws(t, hg.Config{NA: na.Config{Envelopes: 2}}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		var handles []*hg.Handle
		outs := make([]outcome, 3)
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw(nil, outs[i].cb))
		}
		p.waitForRequests(2)
		var w withdrawOutcome
		require.NoError(t, handles[2].Withdraw(0, w.cb))
		p.octx.Trigger(0)
		require.Equal(t, 1, w.n, "no byte need move")
		require.Equal(t, hg.Withdrawn, w.r)
		require.ErrorIs(t, outs[2].err, hg.ErrCanceled)
		p.Until(func() bool { return outs[0].calls+outs[1].calls == 2 })
		require.Equal(t, 2, *ran)
		require.Zero(t, p.tctx.Stats().NA.Withdrawn)
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestWithdrawTwice (C-T6) checks that a second Withdraw joins the first: one frame is sent, and
// all get the same result.
func TestWithdrawTwice(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, _ *int) {
		h := p.handle(id)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		ws := make([]withdrawOutcome, 100)
		for i := range ws {
			require.NoError(t, h.Withdraw(0, ws[i].cb))
		}
		p.moveUntil(func() bool { return ws[99].n > 0 && o.calls > 0 })
		for i := range ws {
			require.Equal(t, withdrawOutcome{1, hg.Withdrawn}, ws[i])
		}
		require.Equal(t, int64(1), p.tctx.Stats().NA.Withdrawn)
		h.Close()
	})
}

// TestWithdrawAgain (C-T6) checks that a Withdraw when the request has been destroyed, and the
// call's callback has not run, succeeds too; afterwards there is no call to be withdrawn.
func TestWithdrawAgain(t *testing.T) {
	withWithdraws(t, hg.Config{NA: na.Config{Envelopes: 1}}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		sent, waits := p.handle(id), p.handle(id)
		var o outcome
		for _, h := range []*hg.Handle{sent, waits} {
			require.NoError(t, h.ForwardRaw(nil, o.cb))
		}
		p.waitForRequests(1)
		for i, h := range []*hg.Handle{waits, sent} {
			var again, after withdrawOutcome
			calls := 0
			require.NoError(t, h.Withdraw(0, func(h *hg.Handle, r hg.WithdrawResult) {
				require.Equal(t, hg.Withdrawn, r)
				calls = o.calls
				require.NoError(t, h.Withdraw(0, again.cb))
			}))
			p.moveUntil(func() bool { return again.n > 0 && o.calls > i })
			if calls == i {
				require.Equal(t, hg.Withdrawn, again.r, "the call's callback had not run")
			}
			require.NoError(t, h.Withdraw(0, after.cb))
			p.octx.Trigger(0)
			require.Equal(t, withdrawOutcome{1, hg.TooLate}, after)
			h.Close()
		}
		require.Equal(t, 2, o.calls)
		require.Zero(t, *ran)
	})
}

// TestWithdrawAll (C-T12, C-T18) checks that with every envelope taken and a target that dispatches
// nothing, all requests are withdrawn, a thousand times over, and the credits are returned.
func TestWithdrawAll(t *testing.T) {
	withWithdraws(t, hg.Config{NA: na.Config{Envelopes: 4}}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		const rounds = 250
		handles := make([]*hg.Handle, 4)
		for i := range handles {
			handles[i] = p.handle(id)
		}
		for range rounds {
			outs, ws := make([]outcome, 4), make([]withdrawOutcome, 4)
			for i, h := range handles {
				require.NoError(t, h.ForwardRaw(nil, outs[i].cb))
			}
			p.waitForRequests(4)
			for i, h := range handles {
				require.NoError(t, h.Withdraw(0, ws[i].cb))
			}
			p.moveUntil(func() bool { return ws[0].n+ws[1].n+ws[2].n+ws[3].n == 4 && outs[3].calls == 1 })
			for i := range ws {
				require.Equal(t, hg.Withdrawn, ws[i].r)
			}
			p.tctx.Trigger(0) // frees the destroyed ones
		}
		require.Zero(t, *ran)
		require.Equal(t, int64(4*rounds), p.tctx.Stats().NA.Withdrawn)
		require.NoError(t, p.call(handles[0], nil))
		require.Zero(t, p.tctx.Stats().NA.Envelopes)
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestCancelDuringWithdraw (C-T29) checks that the call ends at once, and the withdrawal with it;
// each callback runs once. Where the network of the target answers by itself, its answer may have
// arrived before the cancel.
func TestCancelDuringWithdraw(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		h := p.handle(id)
		var o, again outcome
		var w withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		require.NoError(t, h.Withdraw(0, w.cb))
		h.Cancel()
		p.octx.Trigger(0)
		require.Equal(t, 1, o.calls)
		require.ErrorIs(t, o.err, hg.ErrCanceled)
		if p.Sim || w.r != hg.Withdrawn {
			require.Equal(t, hg.Indeterminate, w.r)
		}
		was := w
		require.Equal(t, 1, was.n)

		require.NoError(t, h.ForwardRaw(nil, again.cb), "the handle is free")
		p.Until(func() bool { return again.calls > 0 })
		require.NoError(t, again.err)
		destroyed := int(p.tctx.Stats().NA.Withdrawn) // the first may have been all the same
		require.Equal(t, 2-destroyed, *ran)
		require.Equal(t, was, w)
		if w.r == hg.Withdrawn {
			require.Equal(t, 1, destroyed)
		}
		h.Close()
	})
}

// TestWithdrawTimeout (C-T16) checks that a target that does not answer in time leaves the outcome
// open, and the call is canceled; a late answer is ignored. Where the network of the target answers
// by itself it may have been in time.
func TestWithdrawTimeout(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, _ *int) {
		h := p.handle(id)
		var o, again outcome
		var w withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		require.NoError(t, h.Withdraw(time.Nanosecond, w.cb))
		for w.n == 0 || o.calls == 0 {
			_ = p.octx.Progress(time.Nanosecond)
			p.octx.Trigger(0)
		}
		if p.Sim || w.r != hg.Withdrawn {
			require.Equal(t, hg.Indeterminate, w.r)
		}
		require.ErrorIs(t, o.err, hg.ErrCanceled)
		require.NoError(t, h.ForwardRaw(nil, again.cb))
		p.Until(func() bool { return again.calls > 0 })
		require.NoError(t, again.err)
		require.Equal(t, 1, w.n)
		require.Equal(t, 1, o.calls)
		if p.Sim { // of the first call, which ran, its word to the withdraw and its answer
			require.Zero(t, p.tctx.Stats().NA.Withdrawn)
			require.EqualValues(t, 2, p.octx.Stats().NA.LateDropped, "late answers, which were dropped")
		}
		h.Close()
	})
}

// TestWithdrawTimeoutOfAnother checks that a Withdraw that joins another one has its own timeout.
func TestWithdrawTimeoutOfAnother(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("never", func(h hg.Request) error { detach(h); return nil }))
		defer h.Close()
		var o outcome
		var first, hasty, patient withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		n.World.Node(strings.TrimPrefix(p.target.Addr().String(), "sim://")).Pause(time.Hour)
		begun := p.octx.Now()
		require.NoError(t, h.Withdraw(0, first.cb))
		require.NoError(t, h.Withdraw(time.Second, patient.cb))
		require.NoError(t, h.Withdraw(time.Millisecond, hasty.cb))
		for first.n == 0 || o.calls == 0 {
			_ = p.octx.Progress(time.Second)
			p.octx.Trigger(0)
		}
		require.Less(t, p.octx.Now()-begun, time.Second)
		for _, w := range []withdrawOutcome{first, hasty, patient} {
			require.Equal(t, withdrawOutcome{1, hg.Indeterminate}, w)
		}
		require.ErrorIs(t, o.err, hg.ErrCanceled)
	})
}

// TestWithdrawPeerLost (C-T17) checks that when the target exits first, the outcome is unknown.
func TestWithdrawPeerLost(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("never", func(h hg.Request) error { return h.Detach() }))
		var o outcome
		var w withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		p.tctx.Trigger(0)
		require.NoError(t, p.target.Close())
		require.NoError(t, h.Withdraw(0, w.cb))
		p.Until(func() bool { return w.n > 0 && o.calls > 0 })
		require.Equal(t, hg.Indeterminate, w.r)
		require.ErrorIs(t, o.err, hg.ErrPeerLost)
		require.Equal(t, na.MaybeRan, hg.FateOf(o.err))
		h.Close()
	})
}

// TestWithdrawFromSelf (C-T7) checks that a process can withdraw a request to itself.
func TestWithdrawFromSelf(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cls, hctx := n.Target(hg.Config{})
		ran := 0
		id, err := cls.Register("self", func(h hg.Request) error { ran++; return h.RespondRaw(nil, nil) })
		require.NoError(t, err)
		h, err := hctx.Create(hctx.Self(), id)
		require.NoError(t, err)
		var o outcome
		var w withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		_ = hctx.Progress(0) // it has arrived
		require.NoError(t, h.Withdraw(0, w.cb))
		n.Until(func() bool { return w.n > 0 && o.calls > 0 })
		require.Equal(t, hg.Withdrawn, w.r)
		require.Zero(t, ran)
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		n.Until(func() bool { return o.calls > 1 })
		require.NoError(t, o.err)
		h.Close()
	})
}

// TestWithdrawOneWay checks that a one-way request has ended when it has left.
func TestWithdrawOneWay(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		ran := 0
		id := p.oneWay("note", func(hg.Request) error { ran++; return nil })
		h := p.handle(id)
		var o outcome
		var w withdrawOutcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)
		p.moveUntil(func() bool { return o.calls > 0 })
		require.NoError(t, h.Withdraw(0, w.cb))
		p.Until(func() bool { return w.n > 0 && ran > 0 })
		require.Equal(t, hg.TooLate, w.r)
		h.Close()
	})
}

// TestWithdrawBeforeTheCallback checks that a call that has ended cannot be withdrawn, whether or
// not its callback has run: the answer is known here, and no frame is sent.
func TestWithdrawBeforeTheCallback(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		for _, id := range []hg.ID{p.rpc("answered", echo), p.oneWay("left", func(hg.Request) error { return nil })} {
			h := p.handle(id)
			var o outcome
			var w withdrawOutcome
			require.NoError(t, h.ForwardRaw([]byte("x"), o.cb))
			p.driveTargetUntil(func() bool { return p.octx.Stats().NA.Outstanding == 0 })
			require.Zero(t, o.calls)
			require.NoError(t, h.Withdraw(0, w.cb))
			p.octx.Trigger(0) // once, without Progress: no answer could have arrived
			require.Equal(t, 1, w.n, h.Name())
			require.Equal(t, hg.TooLate, w.r, h.Name())
			p.Until(func() bool { return o.calls > 0 })
			require.NoError(t, o.err)
			h.Close()
		}
	})
}

// TestWithdrawRacesDispatch (C-T11) checks that the outcome is one of two: withdrawn and not run,
// or run and answered.
func TestWithdrawRacesDispatch(t *testing.T) {
	t.Parallel()
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		h := p.handle(id)
		withdrawn, late := 0, 0
		for i := range 300 {
			before := *ran
			var o outcome
			var w withdrawOutcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			if i%3 == 0 {
				p.Until(func() bool { return *ran > before })
			}
			for range i % 7 { // both sides move a little before the frame is sent
				_ = p.octx.Progress(0)
				p.octx.Trigger(0)
				_ = p.tctx.Progress(0)
				p.tctx.Trigger(0)
			}
			require.NoError(t, h.Withdraw(0, w.cb))
			if i%3 == 1 {
				p.moveUntil(func() bool { return w.n > 0 }) // the target triggers late
			}
			p.Until(func() bool { return w.n > 0 && o.calls > 0 })
			what := fmt.Sprintf("round %d: %v, call %v, ran %d", i, w.r, o.err, *ran-before)
			switch w.r {
			case hg.Withdrawn:
				require.ErrorIs(t, o.err, hg.ErrCanceled, what)
				require.Equal(t, before, *ran, what)
				withdrawn++
			case hg.TooLate:
				require.NoError(t, o.err, what)
				require.Equal(t, before+1, *ran, what)
				late++
			default:
				require.Fail(t, "neither", what)
			}
			require.Equal(t, 1, w.n)
			require.Equal(t, 1, o.calls)
		}
		require.Positive(t, withdrawn)
		require.Positive(t, late)
		h.Close()
	})
}

// TestWithdrawLarge (C-T13, C-T14) checks that an input that the target fetches is withdrawn after
// any number of steps. Withdrawn, the handler does not run and nothing stays lent; too late, the
// handler has the whole of it.
func TestWithdrawLarge(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		in := make([]byte, 300_000)
		for i := range in {
			in[i] = byte(i * 7)
		}
		whole := 0
		id := p.rpc("large", func(h hg.Request) error {
			got, err := h.InputRaw()
			if err == nil && bytes.Equal(got, in) {
				whole++
			}
			return firstError(err, h.RespondRaw(nil, nil))
		})
		h := p.handle(id)
		require.NoError(t, p.call(h, nil)) // connects
		results := map[hg.WithdrawResult]int{}
		for steps := range 60 {
			var o outcome
			var w withdrawOutcome
			before := whole
			require.NoError(t, h.ForwardRaw(in, o.cb))
			for range steps / 2 {
				_ = p.octx.Progress(0)
				p.octx.Trigger(0)
				_ = p.tctx.Progress(0)
				p.tctx.Trigger(0)
			}
			require.NoError(t, h.Withdraw(0, w.cb))
			p.Until(func() bool { return w.n > 0 && o.calls > 0 })
			results[w.r]++
			switch w.r {
			case hg.Withdrawn:
				require.ErrorIs(t, o.err, hg.ErrCanceled)
				p.requireClean(1)
				require.Equal(t, before, whole)
			case hg.TooLate:
				require.NoError(t, o.err)
				require.Equal(t, before+1, whole)
			default:
				require.Fail(t, "neither withdrawn nor too late", "%v", w.r)
			}
			require.Equal(t, []int{1, 1}, []int{w.n, o.calls})
			p.requireClean(1)
		}
		require.NotZero(t, results[hg.Withdrawn], "%v", results)
		if p.Sim {
			require.NotZero(t, results[hg.TooLate], "%v", results)
		}
		h.Close()
	})
}

// TestWithdrawLongestTimeout checks that a Withdraw with a timeout of for ever does not time out at once.
func TestWithdrawLongestTimeout(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		defer h.Close()
		n.Undriven(p.tctx)
		until := func(done func() bool) {
			p.Until(func() bool { _ = p.tctx.Progress(0); return done() })
		}
		var o outcome
		var w withdrawOutcome
		require.NoError(t, h.Forward(nil, o.cb))
		until(func() bool { return p.tctx.Stats().NA.Envelopes > 0 })
		require.NoError(t, h.Withdraw(math.MaxInt64, w.cb))
		for range 3 {
			_ = p.octx.Progress(time.Millisecond)
			p.octx.Trigger(0)
		}
		until(func() bool { return o.calls > 0 && w.n > 0 })
		require.Equal(t, hg.Withdrawn, w.r)
	})
}

// TestWithdrawWhileCallEnds checks that a second Withdraw when the call was canceled too and its
// callback has not run gets the same result as the first, whether the target's answer or the cancel
// was first.
func TestWithdrawWhileCallEnds(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, _ *int) {
		const rounds = 20
		h := p.handle(id)
		results := map[hg.WithdrawResult]int{}
		for i := range rounds {
			var o outcome
			var first, second withdrawOutcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			p.waitForRequests(1)
			require.NoError(t, h.Withdraw(0, first.cb))
			early, over := i%2 == 0, false
			if early {
				h.Cancel()
			}
			for range 1000 { // the answer arrives, and is not processed yet
				_ = p.tctx.Progress(0)
				_ = p.octx.Progress(0)
			}
			if !early {
				h.Cancel()
			}
			p.octx.Post(func() {
				if o.calls == 0 {
					require.NoError(t, h.Withdraw(0, second.cb))
				} else { // the answer and the cancel arrived before this
					require.False(t, early && p.Sim)
					over = true
				}
			})
			p.moveUntil(func() bool { return first.n > 0 && (over || second.n > 0) && o.calls > 0 })
			if !over {
				require.Equal(t, first.r, second.r)
			}
			results[first.r]++
			p.Until(func() bool { return p.tctx.Stats().NA.Envelopes == 0 })
		}
		require.Equal(t, rounds, results[hg.Withdrawn]+results[hg.Indeterminate])
		if p.Sim { // elsewhere the answer arrives at any time
			require.Equal(t, rounds/2, results[hg.Withdrawn])
		}
		h.Close()
	})
}
