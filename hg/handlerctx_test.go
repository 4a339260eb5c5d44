package hg_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// contextRecorder keeps requests, and the contexts of their handlers.
type contextRecorder struct {
	kept []hg.Request
	ctxs []context.Context
}

func (a *contextRecorder) handler(h hg.Request) error {
	a.ctxs = append(a.ctxs, h.Context())
	a.kept = append(a.kept, detach(h))
	return nil
}

// contexts returns the contexts of all handlers.
func (a *contextRecorder) contexts() []context.Context { return a.ctxs }

func (a *contextRecorder) close() {
	for _, h := range a.kept {
		releaseUnanswered(h)
	}
	a.kept, a.ctxs = nil, nil
}

// withTwoCalls starts two calls whose handlers keep their handles; the first has called Context.
func withTwoCalls(t *testing.T, f func(t *testing.T, p *pair, a *contextRecorder, calls [2]*hg.Handle, outs *[2]outcome)) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var a contextRecorder
		id := p.rpc("ask", a.handler)
		p.rpc("echo", echo)
		var outs [2]outcome
		calls := [2]*hg.Handle{p.handle(id), p.handle(id)}
		for i, h := range calls {
			require.NoError(t, h.ForwardRaw(nil, outs[i].cb))
			n.Until(func() bool { return len(a.kept) == i+1 })
		}
		f(t, p, &a, calls, &outs)
		a.close()
		for _, h := range calls {
			h.Close()
		}
	})
}

// requireContextsEnded requires that every context has ended because of cause.
func requireContextsEnded(t *testing.T, a *contextRecorder, cause error) {
	t.Helper()
	for i, ctx := range a.contexts() {
		require.Equal(t, context.Canceled, ctx.Err(), "%d", i)
		require.ErrorIs(t, context.Cause(ctx), cause, "%d", i)
		<-ctx.Done()
		_, ok := ctx.Deadline()
		require.False(t, ok)
	}
}

// TestAbandonEndsHandlers checks that Abandon ends the call here and the context of the handler
// there, also if its handler calls Context later; Cancel notifies nothing.
func TestAbandonEndsHandlers(t *testing.T) {
	withTwoCalls(t, func(t *testing.T, p *pair, a *contextRecorder, calls [2]*hg.Handle, outs *[2]outcome) {
		require.NoError(t, a.ctxs[0].Err())
		for i, h := range calls {
			h.Abandon()
			h.Abandon()
			p.octx.Trigger(0)
			require.Equal(t, 1, outs[i].calls, "it does not wait")
			require.ErrorIs(t, outs[i].err, hg.ErrCanceled)
			require.Equal(t, na.MaybeRan, hg.FateOf(outs[i].err))
		}
		p.roundTrip()
		requireContextsEnded(t, a, context.Canceled)
		require.ErrorContains(t, context.Cause(a.ctxs[0]), "abandoned")
		require.Same(t, a.ctxs[0], a.kept[0].Context())
		require.NoError(t, a.kept[0].Respond(nil, nil), "it may answer all the same")
	})
	withTwoCalls(t, func(t *testing.T, p *pair, a *contextRecorder, calls [2]*hg.Handle, outs *[2]outcome) {
		for _, h := range calls {
			h.Cancel()
		}
		p.roundTrip()
		for _, ctx := range a.contexts() {
			require.NoError(t, ctx.Err())
		}
		for i, h := range calls {
			require.Equal(t, 1, outs[i].calls)
			h.Abandon() // too late: that call has ended here
		}
		p.roundTrip()
		for _, ctx := range a.contexts() {
			require.NoError(t, ctx.Err())
		}
	})
}

// roundTrip makes a call, which passes every frame that was sent in the session before.
func (p *pair) roundTrip() {
	p.t.Helper()
	h := p.handle(hg.HashName("echo"))
	defer h.Close()
	require.NoError(p.t, p.call(h, "x"))
	p.tctx.Trigger(0)
}

// TestAbandonBeforeHandler checks that a request that has not begun when it is abandoned never
// does: it leaves its envelope at once, without a Trigger.
func TestAbandonBeforeHandler(t *testing.T) {
	withWithdraws(t, hg.Config{}, func(t *testing.T, p *pair, id hg.ID, ran *int) {
		h := p.handle(id)
		var o outcome
		h.Abandon() // idle
		for i, size := range []int{0, 100, 100_000} {
			require.NoError(t, h.ForwardRaw(make([]byte, size), o.cb))
			p.waitForRequests(1)
			h.Abandon()
			p.octx.Trigger(0)
			require.Equal(t, i+1, o.calls)
			require.ErrorIs(t, o.err, hg.ErrCanceled)
			p.triggerOriginUntil(func() bool { return p.tctx.Stats().NA.Envelopes == 0 })
		}
		// It has left, over most transports, and this side has not noticed yet.
		taken := p.tctx.Stats().NA.Withdrawn
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		h.Abandon()
		p.octx.Trigger(0)
		require.Equal(t, 4, o.calls)
		if hg.FateOf(o.err) == na.MaybeRan {
			p.triggerOriginUntil(func() bool { return p.tctx.Stats().NA.Withdrawn == taken+1 })
		}
		// Its time is up: the same.
		h.SetTimeout(20 * time.Millisecond)
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.triggerOriginUntil(func() bool { return o.calls == 5 })
		p.triggerOriginUntil(func() bool { return p.tctx.Stats().NA.Envelopes == 0 })
		p.Until(func() bool { return p.tctx.Stats().Handles == 0 })
		require.Zero(t, *ran)
		h.SetTimeout(0)
		require.NoError(t, p.call(h, nil))
		require.Equal(t, 1, *ran)
		h.Close()
	})
}

// TestAbandonBeforeContext checks that a handler may call Context any time after the origin has
// abandoned the call, and after any number of others.
func TestAbandonBeforeContext(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		calls := 1100
		if n.Sim {
			calls = 50
		}
		p := newPair(t, n, hg.Config{MaxActive: 2 * calls, MaxActivePerPeer: 2 * calls})
		var kept []hg.Request
		id := p.rpc("keep", func(r hg.Request) error { kept = append(kept, r); return r.Detach() })
		var o outcome
		for range calls {
			h := p.handle(id)
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return len(kept) == o.calls+1 })
			h.Abandon()
			n.Until(func() bool { return o.calls == len(kept) })
			h.Close()
		}
		last := kept[calls-1].Context()
		n.Until(func() bool { return last.Err() != nil })
		for i, r := range kept {
			require.ErrorIs(t, context.Cause(r.Context()), hg.ErrCanceled, i)
			releaseUnanswered(r)
		}
		p.requireClean(0)
	})
}

// TestAbandonedDoNotAccumulate checks that requests that were abandoned while they waited for room at
// the target do not accumulate there.
func TestAbandonedDoNotAccumulate(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var k holdingTarget
		h, id := (*hg.Handle)(nil), p.rpc("keep", k.handler)
		first := p.handle(id)
		var a, o outcome
		require.NoError(t, first.ForwardRaw(nil, a.cb))
		n.Until(func() bool { return len(k.kept) == 1 })
		h = p.handle(id)
		most := int64(0)
		for i := range 300 {
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			p.triggerTargetUntil(func() bool { return p.tctx.Stats().NA.Envelopes > 0 })
			p.tctx.Trigger(0)
			h.Abandon()
			p.octx.Trigger(0)
			require.Equal(t, i+1, o.calls)
			p.triggerTargetUntil(func() bool { return p.tctx.Stats().NA.Envelopes == 0 })
			most = max(most, p.tctx.Stats().Handles)
		}
		require.LessOrEqual(t, most, int64(70))
		k.answer()
		n.Until(func() bool { return a.calls == 1 && p.tctx.Stats().Handles == 0 })
		require.Zero(t, p.tctx.Stats().Waiting)
		require.Empty(t, k.kept, "none of them ran")
		h.Close()
		first.Close()
	})
}

// TestPeerLossEndsHandlers checks that the end of the session with the origin ends the contexts of
// its handlers.
func TestPeerLossEndsHandlers(t *testing.T) {
	withTwoCalls(t, func(t *testing.T, p *pair, a *contextRecorder, _ [2]*hg.Handle, outs *[2]outcome) {
		require.NoError(t, p.origin.Close())
		p.Until(func() bool { return a.ctxs[0].Err() != nil })
		requireContextsEnded(t, a, hg.ErrPeerLost)
		p.Until(func() bool { return outs[0].calls+outs[1].calls == 2 })
	})
}

// TestAbandonManyAtOnce checks that thousands of calls that are abandoned at once, before the
// target triggers, all end the contexts of their handlers.
func TestAbandonManyAtOnce(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		const calls = 3000
		p := newPair(t, n, hg.Config{MaxActive: calls + 1, MaxActivePerPeer: calls + 1})
		var a contextRecorder
		id := p.rpc("ask", a.handler)
		echoID := p.rpc("echo", echo)
		var handles []*hg.Handle
		ended := 0
		for i := range calls {
			h := p.handle(id)
			handles = append(handles, h)
			require.NoError(t, h.ForwardRaw(nil, func(*hg.Handle, error) { ended++ }))
			if i%1000 == 999 {
				p.Until(func() bool { return len(a.ctxs) == i+1 })
			}
		}
		for _, h := range handles {
			h.Abandon()
		}
		last := p.handle(echoID)
		var o outcome
		require.NoError(t, last.ForwardRaw(nil, o.cb))
		p.waitForRequests(1) // it is behind the frames of the others, and the target has not triggered
		p.Until(func() bool { return ended == calls && o.calls == 1 })
		require.NoError(t, o.err)
		left := 0
		for _, ctx := range a.ctxs {
			if ctx.Err() == nil {
				left++
			}
		}
		require.Zero(t, left, "contexts of %d that have not ended", calls)
		a.close()
		for _, h := range append(handles, last) {
			h.Close()
		}
	})
}

// TestPeerLossAmongManyLosses checks the same when many other peers are lost before Trigger.
func TestPeerLossAmongManyLosses(t *testing.T) {
	withTwoCalls(t, func(t *testing.T, p *pair, a *contextRecorder, _ [2]*hg.Handle, outs *[2]outcome) {
		p.tctx.Trigger(0)
		_, octx := p.Origin(hg.Config{})
		target, otherPeer := p.tctx.NA(), octx.NA()
		op := otherPeer.NewOp(func(*na.Op, na.Result) {})
		local, err := octx.Class().NA().NewMem(make([]byte, 1))
		require.NoError(t, err)
		for target.Upper().News() <= 1024 { // until they are not reported one by one any more
			require.NoError(t, otherPeer.Get(op, local, 0, target.Self(), na.Key{Len: 1, Access: na.ReadOnly}, 0, 1))
			for still := p.Bounded(); op.Busy(); still() { // refused
				_ = target.Progress(0)
				_ = otherPeer.Progress(0)
				otherPeer.Trigger(0)
			}
			for _, peer := range target.Peers() {
				if peer.Addr.Named() == otherPeer.Self() {
					target.Disconnect(peer.Addr, nil)
				}
			}
		}
		require.NoError(t, p.origin.Close())
		peer := a.kept[0].Peer()
		for still := p.Bounded(); p.tctx.NA().Connected(peer); still() { // no goroutine triggers
			p.passTime(time.Millisecond)
		}
		p.tctx.Trigger(0)
		requireContextsEnded(t, a, hg.ErrPeerLost)
		p.Until(func() bool { return outs[0].calls+outs[1].calls == 2 })
	})
}

// TestCloseEndsHandlers checks that the end of the context in which they run ends the contexts of
// handlers.
func TestCloseEndsHandlers(t *testing.T) {
	withTwoCalls(t, func(t *testing.T, p *pair, a *contextRecorder, _ [2]*hg.Handle, outs *[2]outcome) {
		p.tctx.Close()
		p.tctx.Trigger(0)
		requireContextsEnded(t, a, hg.ErrClosed)
		p.Until(func() bool { return outs[0].calls+outs[1].calls == 2 })
	})
}

// TestLastReferenceEndsContext checks that a context ends with the last reference of its handle,
// and the next request has one of its own.
func TestLastReferenceEndsContext(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var ctxs []context.Context
		id := p.rpc("ask", func(h hg.Request) error {
			ctxs = append(ctxs, h.Context())
			require.NoError(t, h.Context().Err())
			return h.RespondRaw(nil, nil)
		})
		h := p.handle(id)
		h.SetTimeout(time.Hour)
		for i := range 3 {
			require.NoError(t, p.call(h, nil))
			n.Until(func() bool { return ctxs[i].Err() != nil })
			require.Equal(t, context.Canceled, ctxs[i].Err())
		}
		p.requireClean(1)
		n.Until(func() bool { return p.tctx.NA().Live() == 0 }) // no alarm is left
		h.Close()
	})
}

// TestDeadlineEndsContext checks that at the deadline of the call the handler's context ends as one
// of package context does, and so do its children. Nothing arrives from the origin: it does not
// trigger.
func TestDeadlineEndsContext(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} { // for room, before
		name := map[bool]string{false: "at once", true: "after a wait for room"}[waits]
		t.Run(name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{MaxActive: 1})
				var a contextRecorder
				id := p.rpc("ask", a.handler)
				first, h := p.handle(id), p.handle(id)
				var f, o outcome
				require.NoError(t, first.ForwardRaw(nil, f.cb))
				n.Until(func() bool { return len(a.kept) == 1 })
				if !waits {
					a.close()
					n.Until(func() bool { return f.calls == 1 })
				}
				h.SetTimeout(300 * time.Millisecond)
				require.NoError(t, h.ForwardRaw(nil, o.cb))
				if waits {
					p.triggerTargetUntil(func() bool { return p.tctx.Stats().Waiting == 1 })
					a.close()
				}
				p.triggerTargetUntil(func() bool { return len(a.kept) == 1 })
				ctx := a.kept[0].Context()
				wall, ok := ctx.Deadline()
				require.True(t, ok)
				begun := p.tctx.Now()
				left, ok := a.kept[0].TimeLeft()
				require.True(t, ok)
				require.LessOrEqual(t, left, 300*time.Millisecond)
				require.WithinDuration(t, time.Now().Add(left), wall, 30*time.Second)
				type key struct{}
				child, stop := context.WithCancel(context.WithValue(ctx, key{}, "v"))
				defer stop()
				require.Equal(t, "v", child.Value(key{}))
				require.NoError(t, ctx.Err())
				p.triggerTargetUntil(func() bool { return ctx.Err() != nil })
				require.GreaterOrEqual(t, p.tctx.Now()-begun, left-time.Millisecond)
				for _, ctx := range []context.Context{ctx, child} {
					<-ctx.Done()
					require.Equal(t, context.DeadlineExceeded, ctx.Err())
					require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
					require.ErrorIs(t, context.Cause(ctx), os.ErrDeadlineExceeded)
					require.ErrorIs(t, context.Cause(ctx), hg.ErrTimeout)
				}
				n.Until(func() bool { return o.calls == 1 })
				requireTimeout(t, o.err, na.MaybeRan)
				a.close()
				n.Until(func() bool { return p.tctx.Stats().Handles == 0 })
				first.Close()
				h.Close()
			})
		})
	}
}

// TestDeadlineBeforeContext checks that a handler that calls Context after the deadline gets one
// that has ended.
func TestDeadlineBeforeContext(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		timeout := 100 * time.Millisecond
		var got error
		h := p.handle(p.rpc("late", func(r hg.Request) error {
			p.passTime(timeout + time.Millisecond)
			got = r.Context().Err()
			return nil
		}))
		for ; got == nil; timeout *= 2 { // a call whose time is up before the session is there does not reach the handler
			h.SetTimeout(timeout)
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return o.calls == 1 })
			requireTimeout(t, o.err, hg.FateOf(o.err))
		}
		require.Equal(t, context.DeadlineExceeded, got)
		h.Close()
	})
}

// TestAbandonPropagates abandons a call while the handler forwards to a third node (C-T31): its context
// ends, and the call that it makes is abandoned in turn, so that the context of the handler at the
// third node ends too.
func TestAbandonPropagates(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		third, _ := n.Target(hg.Config{})
		var last contextRecorder
		id, err := third.Register("last", last.handler)
		require.NoError(t, err)
		_, err = p.target.Register("last", nil)
		require.NoError(t, err)
		var nested outcome
		var middle context.Context
		relay := p.rpc("relay", func(h hg.Request) error {
			call, err := h.HG().Create(third.Addr(), id)
			if err != nil {
				return err
			}
			middle = detach(h).Context()
			stop := context.AfterFunc(middle, call.Abandon)
			if left, ok := h.TimeLeft(); ok {
				call.SetTimeout(left)
			}
			return call.ForwardRaw(nil, func(call *hg.Handle, err error) {
				nested.cb(call, err)
				stop()
				call.Close()
				releaseUnanswered(h)
			})
		})
		h := p.handle(relay)
		for i, why := range []error{hg.ErrCanceled, hg.ErrTimeout} {
			if why == hg.ErrTimeout {
				h.SetTimeout(500 * time.Millisecond)
			}
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return len(last.kept) == 1 })
			require.NoError(t, last.kept[0].Context().Err())
			if why == hg.ErrCanceled {
				h.Abandon()
			}
			n.Until(func() bool { return o.calls == 1 && nested.calls == i+1 && last.kept[0].Context().Err() != nil })
			require.Error(t, middle.Err())
			require.Error(t, nested.err)
			if why == hg.ErrCanceled { // else all three ends see the deadline pass, in any order
				require.ErrorIs(t, o.err, why)
				require.ErrorIs(t, nested.err, why)
			}
			last.close()
		}
		h.Close()
	})
}

// TestAbandonAtTheDeadline checks that the context of a handler whose caller's time is up ends with
// the deadline as its cause, whether the caller's notice or the timer is first; one that is
// abandoned long before ends with that cause.
func TestAbandonAtTheDeadline(t *testing.T) {
	for _, c := range []struct {
		name   string
		before time.Duration // the deadline
		want   error
	}{{"just before", 500 * time.Microsecond, context.DeadlineExceeded}, {"long before", 50 * time.Millisecond, context.Canceled}} {
		t.Run(c.name, func(t *testing.T) {
			transports.Virtual(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{})
				var a contextRecorder
				h := p.handle(p.rpc("ask", a.handler))
				var o outcome
				const limit = 100 * time.Millisecond
				h.SetTimeout(limit)
				require.NoError(t, h.ForwardRaw(nil, o.cb))
				begun := p.octx.Now()
				n.Until(func() bool { return len(a.kept) == 1 })
				n.World.Sleep(begun + limit - c.before - p.octx.Now())
				h.Abandon()
				n.Until(func() bool { return a.ctxs[0].Err() != nil })
				require.Equal(t, c.want, a.ctxs[0].Err())
				if c.want == context.DeadlineExceeded {
					require.ErrorIs(t, context.Cause(a.ctxs[0]), hg.ErrTimeout)
				}
				n.Until(func() bool { return o.calls == 1 })
				a.close()
				h.Close()
				p.requireClean(0)
			})
		})
	}
}
