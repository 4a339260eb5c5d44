package hg_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestWithdrawOfLastEnvelope checks that a request that took the last envelope has left: the
// target is notified that it was abandoned, and a withdrawal can be sent.
func TestWithdrawOfLastEnvelope(t *testing.T) {
	cfg := hg.Config{NA: na.Config{Envelopes: 2, OnNoCredit: na.Block, Reserve: na.LiteralReserve}}
	withWithdraws(t, cfg, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		first, last := p.handle(id), p.handle(id)
		require.NoError(t, p.call(first, nil))
		var o outcome
		require.NoError(t, first.ForwardRaw(nil, o.cb))
		p.waitForRequests(1)

		p.runInTrigger(func() bool { return p.tctx.Stats().NA.Envelopes == 2 }, last.Abandon)
		_, err := last.CallRaw(context.Background(), nil)
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.Equal(t, na.MaybeRan, hg.FateOf(err))
		p.triggerOriginUntil(func() bool { return p.tctx.Stats().NA.Withdrawn == 1 })

		var w withdrawOutcome
		p.runInTrigger(func() bool { return p.tctx.Stats().NA.Envelopes == 2 }, func() { require.NoError(t, last.Withdraw(0, w.cb)) })
		_, err = last.CallRaw(context.Background(), nil)
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.Equal(t, na.NotRun, hg.FateOf(err))
		p.triggerOriginUntil(func() bool { return w.n == 1 })
		require.Equal(t, hg.Withdrawn, w.r)

		require.Equal(t, 1, *ran)
		p.Until(func() bool { return o.calls == 1 })
		require.Equal(t, 2, *ran)
		first.Close()
		last.Close()
		p.requireClean(0)
	})
}

// runInTrigger runs fn in a Trigger of the origin, while something else waits there, as soon as done reports true.
func (p *pair) runInTrigger(done func() bool, fn func()) {
	p.t.Helper()
	var op *na.Op
	nctx := p.octx.NA()
	end := time.Now().Add(60 * time.Second)
	op = nctx.NewOp(func(*na.Op, na.Result) {
		_ = p.tctx.NA().Progress(0)
		if done() {
			fn()
			return
		}
		require.True(p.t, time.Now().Before(end), "nothing happened: %+v %+v", p.octx.Stats(), p.tctx.Stats())
		require.NoError(p.t, nctx.Timer(op, time.Millisecond))
	})
	require.NoError(p.t, nctx.Timer(op, time.Millisecond))
}
