package hg_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// holdingTarget is a target whose handlers keep their handles.
type holdingTarget struct {
	kept []hg.Request
	most int64 // of Stats.Active, as handlers have seen it
}

func (k *holdingTarget) handler(h hg.Request) error {
	k.kept = append(k.kept, detach(h))
	k.most = max(k.most, h.HG().Stats().Active)
	return nil
}

// answer answers the oldest request that is kept.
func (k *holdingTarget) answer() {
	h := k.kept[0]
	k.kept = k.kept[1:]
	_ = h.RespondRaw(nil, nil) // the origin may have canceled
}

// TestMaxActive checks that handlers that answer later are limited (G-T12): beyond the limit
// requests stay in their envelopes, begin one by one as others end, in order, and delay no origin
// but theirs.
func TestMaxActive(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 2, NA: na.Config{Envelopes: 4}})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		const calls = 10
		outs := make([]outcome, calls)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw([]byte{byte(i)}, outs[i].cb))
		}
		p.Until(func() bool {
			s := p.tctx.Stats()
			return len(k.kept) == 2 && s.Waiting == 4 && s.NA.Envelopes == 4
		})
		require.EqualValues(t, 2, p.tctx.Stats().Active)
		require.Equal(t, calls-6, p.octx.Stats().NA.Queued, "the origin is held back")
		for i := range outs {
			p.Until(func() bool { return len(k.kept) > 0 })
			in, err := k.kept[0].InputRaw()
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i)}, in, "in order")
			k.answer()
			p.Until(func() bool { return outs[i].calls == 1 })
			require.NoError(t, outs[i].err)
		}
		require.EqualValues(t, 2, k.most)
		p.Until(func() bool { return p.tctx.Stats().Active == 0 })
		require.Zero(t, p.tctx.Stats().Waiting)
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestRPCLimits checks that an RPC with a limit of its own runs and queues the given numbers of
// requests, and refuses the rest at once; another RPC is not affected. A request that waits is
// refused by its deadline, or can be withdrawn, and free room is used.
func TestRPCLimits(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var k holdingTarget
		_, err := p.target.RegisterRPC(hg.RPC{Name: "keep", Handler: k.handler, MaxActive: 2, Queue: 3})
		require.NoError(t, err)
		id, err := p.origin.Register("keep", nil)
		require.NoError(t, err)
		free := p.rpc("free", echo)
		const calls = 9
		outs := make([]outcome, calls)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw([]byte{byte(i)}, outs[i].cb))
		}
		refused := func() (n int) {
			for i := range outs {
				if outs[i].err != nil {
					n++
				}
			}
			return n
		}
		p.Until(func() bool { return len(k.kept) == 2 && refused() == calls-2-3 })
		for i := range outs {
			if i < 5 {
				require.Zero(t, outs[i].calls, "%d of the first five waits or runs", i)
				continue
			}
			require.ErrorIs(t, outs[i].err, hg.ErrExhausted)
			require.ErrorIs(t, outs[i].err, hg.ErrRefused)
			require.Equal(t, hg.NotRun, hg.FateOf(outs[i].err))
			require.ErrorContains(t, outs[i].err, "2 requests of keep are active and 3 are queued")
		}
		require.NoError(t, p.call(p.handle(free), nil), "another RPC")

		var taken hg.WithdrawResult // one that waits is taken back: its place is free
		reported := false
		require.NoError(t, handles[4].Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) { taken, reported = r, true }))
		p.Until(func() bool { return reported && outs[4].calls == 1 })
		require.Equal(t, hg.Withdrawn, taken)
		for i := range 4 {
			p.Until(func() bool { return len(k.kept) > 0 })
			in, err := k.kept[0].InputRaw()
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i)}, in, "in order")
			k.answer()
			p.Until(func() bool { return outs[i].calls == 1 })
			require.NoError(t, outs[i].err)
		}
		require.EqualValues(t, 2, k.most)
		again := p.handle(id)
		var o outcome
		require.NoError(t, again.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(k.kept) == 1 })
		k.answer()
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		p.Until(func() bool { return p.tctx.Stats().Active == 0 })
		require.Zero(t, p.tctx.Stats().Waiting)
		for _, h := range append(handles, again) {
			h.Close()
		}
	})
}

// TestMaxActivePerPeer checks that a peer whose requests are kept for long does not use up the room
// of others.
func TestMaxActivePerPeer(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 3, MaxActivePerPeer: 2})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		greedy := make([]outcome, 5)
		var handles []*hg.Handle
		for i := range greedy {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw(nil, greedy[i].cb))
		}
		all := func(n int) func() bool {
			return func() bool { return len(k.kept)+int(p.tctx.Stats().Waiting) == n }
		}
		p.Until(all(5))
		require.Len(t, k.kept, 2, "of one peer")

		other, octx := n.Origin(hg.Config{})
		_, err := other.Register("keep", nil)
		require.NoError(t, err)
		h, err := octx.Create(p.target.Addr(), id)
		require.NoError(t, err)
		var modest outcome
		require.NoError(t, h.ForwardRaw(nil, modest.cb))
		p.Until(all(6))
		require.Len(t, k.kept, 3, "it does not wait behind them")
		for ended := 0; ended < 6; ended++ {
			p.Until(func() bool { return len(k.kept) > 0 })
			k.answer()
		}
		p.Until(func() bool { return modest.calls == 1 && greedy[4].calls == 1 })
		require.EqualValues(t, 3, k.most)
		h.Close()
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestRapidReset checks that forward and cancel in a loop cannot make a target run more than its
// limit (C-T30): a request that was canceled counts until its handler has released it.
func TestRapidReset(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 5, NA: na.Config{Envelopes: 8}})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		h := p.handle(id)
		for i := range 200 {
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			for range 3 {
				_ = p.octx.Progress(0)
				p.octx.Trigger(0)
				_ = p.tctx.Progress(0)
				p.tctx.Trigger(0)
			}
			if i < 5 { // as many as may
				p.Until(func() bool { return len(k.kept) == i+1 })
			}
			h.Cancel()
			p.octx.Trigger(0)
			p.Until(func() bool { return o.calls == 1 })
			s := p.tctx.Stats()
			require.LessOrEqual(t, s.Active, int64(5), "round %d", i)
			require.LessOrEqual(t, s.NA.Envelopes, 8, "round %d", i)
			if i%10 == 9 && len(k.kept) > 0 {
				k.answer()
			}
		}
		require.EqualValues(t, 5, k.most)
		p.Until(func() bool {
			for len(k.kept) > 0 {
				k.answer()
			}
			s := p.tctx.Stats()
			return s.Active == 0 && s.Waiting == 0 && s.NA.Envelopes == 0
		})
		h.Close()
	})
}

// TestWaitingRequests checks that a request that waits for room can be withdrawn, and takes no room
// then; when the context closes nothing is left.
func TestWaitingRequests(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		outs, ws := make([]outcome, 4), make([]withdrawOutcome, 4)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw(nil, outs[i].cb))
		}
		p.Until(func() bool { return p.tctx.Stats().Waiting == 3 })
		require.NoError(t, handles[1].Withdraw(0, ws[1].cb))
		require.NoError(t, handles[0].Withdraw(0, ws[0].cb))
		p.Until(func() bool { return ws[0].n+ws[1].n == 2 })
		require.Equal(t, hg.TooLate, ws[0].r)
		require.Equal(t, hg.Withdrawn, ws[1].r)
		k.answer()
		p.Until(func() bool { return len(k.kept) == 1 && p.tctx.Stats().Waiting == 1 })
		require.NoError(t, p.target.Close())
		p.Until(func() bool { return p.tctx.Stats().Waiting == 0 })
		k.answer()
		p.Until(func() bool { return outs[2].calls == 1 && outs[3].calls == 1 && p.tctx.Stats().Handles == 0 })
		s := p.tctx.Stats()
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Active)
		for _, h := range handles {
			h.Close()
		}
	})
}

// TestWithdrawnLeavesQueue checks that a request that was withdrawn leaves the queue at once:
// neither Stats.Waiting nor RPC.Queue counts it, so others may wait in its place.
func TestWithdrawnLeavesQueue(t *testing.T) {
	for _, c := range []struct {
		name string
		take func(p *pair, h *hg.Handle)
	}{
		{"withdraw", func(p *pair, h *hg.Handle) {
			var w withdrawOutcome
			require.NoError(p.t, h.Withdraw(0, w.cb))
			p.Until(func() bool { return w.n == 1 })
			require.Equal(p.t, hg.Withdrawn, w.r)
		}},
		{"abandon", func(p *pair, h *hg.Handle) { h.Abandon() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{})
				var k holdingTarget
				_, err := p.target.RegisterRPC(hg.RPC{Name: "keep", Handler: k.handler, MaxActive: 1, Queue: 2})
				require.NoError(t, err)
				id, err := p.origin.Register("keep", nil)
				require.NoError(t, err)
				p.rpc("echo", echo)
				outs := make([]outcome, 7)
				var handles []*hg.Handle
				for i := range outs {
					handles = append(handles, p.handle(id))
					require.NoError(t, handles[i].ForwardRaw([]byte{byte(i)}, outs[i].cb))
					if i == 0 {
						p.Until(func() bool { return len(k.kept) == 1 })
						continue
					}
					if i%2 == 0 && i < 6 { // two wait: they are taken back
						p.Until(func() bool { return p.tctx.Stats().Waiting == 2 })
						c.take(p, handles[i-1])
						c.take(p, handles[i])
						p.roundTrip()
						require.Zero(t, p.tctx.Stats().Waiting, "after request %d", i)
						require.EqualValues(t, 1, p.tctx.Stats().Active)
					}
				}
				p.roundTrip()
				require.EqualValues(t, 2, p.tctx.Stats().Waiting, "the last two")
				for _, i := range []int{0, 5, 6} {
					p.Until(func() bool { return len(k.kept) == 1 })
					in, err := k.kept[0].InputRaw()
					require.NoError(t, err)
					require.Equal(t, []byte{byte(i)}, in)
					k.answer()
					p.Until(func() bool { return outs[i].calls == 1 })
					require.NoError(t, outs[i].err)
				}
				for i := 1; i < 5; i++ {
					p.Until(func() bool { return outs[i].calls == 1 })
					require.ErrorIs(t, outs[i].err, hg.ErrCanceled)
				}
				for _, h := range handles {
					h.Close()
				}
			})
		})
	}
}

// TestWithdrawWhileQueued withdraws requests before, while and after they begin to wait: none of
// them stays.
func TestWithdrawWhileQueued(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1, NA: na.Config{Envelopes: 8}})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		first := p.handle(id)
		var o outcome
		require.NoError(t, first.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(k.kept) == 1 })
		h := p.handle(id)
		for range 200 {
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			_ = p.octx.Progress(0)
			_ = p.tctx.Progress(0)
			p.tctx.Trigger(0)
			h.Abandon()
			p.Until(func() bool { return o.calls == 1 })
		}
		p.Until(func() bool { s := p.tctx.Stats(); return s.Waiting == 0 && s.NA.Envelopes == 0 && s.Handles == 1 })
		k.answer()
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		require.Empty(t, k.kept)
		first.Close()
		h.Close()
	})
}

// TestLostOriginLeavesQueue checks that requests whose origin is lost leave the queue as well.
func TestLostOriginLeavesQueue(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		other, octx := n.Origin(hg.Config{})
		_, err := other.Register("keep", nil)
		require.NoError(t, err)
		h, err := octx.Create(p.target.Addr(), id)
		require.NoError(t, err)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return len(k.kept) == 1 })
		outs := make([]outcome, 3)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			require.NoError(t, handles[i].ForwardRaw(nil, outs[i].cb))
		}
		p.Until(func() bool { return p.tctx.Stats().Waiting == 3 })
		require.NoError(t, p.origin.Close())
		p.Until(func() bool { return p.tctx.Stats().Waiting == 0 })
		k.answer()
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)
		require.Empty(t, k.kept, "no handler runs")
		p.Until(func() bool { return outs[0].calls+outs[1].calls+outs[2].calls == 3 })
		h.Close()
		for _, h := range handles {
			h.Close()
		}
	})
}

func TestMaxActiveConfig(t *testing.T) {
	_, err := hg.Open("tcp://", hg.Config{MaxActive: -1, MaxActivePerPeer: -2})
	require.ErrorIs(t, err, hg.ErrInvalid)
	require.ErrorContains(t, err, "MaxActive is -1")
	require.ErrorContains(t, err, "MaxActivePerPeer is -2")
}

// TestExpeditedIsInline checks that an RPC whose handler may block, or has a limit of its own, is
// not expedited.
func TestExpeditedIsInline(t *testing.T) {
	t.Parallel()
	transports.Fast(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		handler := func(hg.Request) error { return nil }
		for _, rpc := range []hg.RPC{
			{Name: "runs", Handler: handler},
			{Name: "limited", Handler: handler, Inline: true, MaxActive: 1},
		} {
			err := hghook.RegisterRPC(p.tctx.Class(), rpc, hghook.RPCOptions{Expedited: true})
			require.ErrorIs(t, err, hg.ErrInvalid)
			require.ErrorContains(t, err, "Expedited requires Inline")
		}
	})
}

// TestLimitNamedToOrigin checks that a limit that holds a request up until its time is nearly over is
// named to its origin, within the deadline: an eighth of it before, at least 1 ms and at most 250
// ms.
func TestLimitNamedToOrigin(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  hg.Config
		rpc  hg.RPC
		says string
	}{
		{"MaxActive", hg.Config{MaxActive: 1}, hg.RPC{}, "1 calls are active (hg.Config.MaxActive), 1 are queued"},
		{"MaxActivePerPeer", hg.Config{MaxActivePerPeer: 1}, hg.RPC{}, "1 calls of this process are active (hg.Config.MaxActivePerPeer), 1 of all processes are queued"},
		{"RPC", hg.Config{}, hg.RPC{MaxActive: 1}, "1 calls of keep are active (qs.MaxConcurrent, hg.RPC.MaxActive), 1 are queued"},
		{"Dispatch", hg.Config{Dispatch: func(hg.Request) {}}, hg.RPC{}, "no worker is free (qs.Config.MaxConcurrent or hg.Config.Dispatch), 2 calls are active"},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports.Virtual(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, c.cfg)
				var k holdingTarget
				c.rpc.Name, c.rpc.Handler = "keep", k.handler
				_, err := p.target.RegisterRPC(c.rpc)
				require.NoError(t, err)
				id, err := p.origin.Register("keep", nil)
				require.NoError(t, err)
				first, second := p.handle(id), p.handle(id)
				var a, b outcome
				require.NoError(t, first.ForwardRaw(nil, a.cb))
				p.Until(func() bool { return p.tctx.Stats().Active == 1 })
				for _, d := range []struct{ deadline, before time.Duration }{
					{800 * time.Millisecond, 100 * time.Millisecond}, {10 * time.Second, 250 * time.Millisecond}, {4 * time.Millisecond, time.Millisecond},
				} {
					b = outcome{}
					begun := p.octx.Now()
					second.SetTimeout(d.deadline)
					require.NoError(t, second.ForwardRaw(nil, b.cb))
					p.Until(func() bool { return b.calls == 1 })
					took := p.octx.Now() - begun
					require.GreaterOrEqual(t, took, d.deadline-d.before)
					require.Less(t, took, d.deadline)
					require.ErrorIs(t, b.err, context.DeadlineExceeded)
					require.Equal(t, hg.ErrTimeout, hg.CodeOf(b.err))
					require.ErrorIs(t, b.err, hg.ErrRefused)
					require.Equal(t, hg.NotRun, hg.FateOf(b.err))
					require.ErrorContains(t, b.err, c.says)
				}
				first.Abandon()
				for len(k.kept) > 0 {
					k.answer()
				}
				p.Until(func() bool { return a.calls == 1 })
				first.Close()
				second.Close()
				p.requireClean(0)
			})
		})
	}
}

// TestWaitingRequestKeepsHandlerTime checks that a handler that runs has all of its time, also when its request
// has waited.
func TestWaitingRequestKeepsHandlerTime(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1})
		var a contextRecorder
		id := p.rpc("ask", a.handler)
		first, second := p.handle(id), p.handle(id)
		var outs [2]outcome
		require.NoError(t, first.ForwardRaw(nil, outs[0].cb))
		p.Until(func() bool { return len(a.kept) == 1 })
		second.SetTimeout(time.Second)
		require.NoError(t, second.ForwardRaw(nil, outs[1].cb))
		p.Until(func() bool { return p.tctx.Stats().Waiting == 1 })
		arrived := p.tctx.Now()
		releaseUnanswered(a.kept[0])
		p.Until(func() bool { return len(a.kept) == 2 })
		p.Until(func() bool { return a.ctxs[1].Err() != nil })
		require.Equal(t, context.DeadlineExceeded, a.ctxs[1].Err())
		require.GreaterOrEqual(t, p.tctx.Now()-arrived, time.Second-time.Millisecond)
		p.Until(func() bool { return outs[1].calls == 1 })
		a.close()
		first.Close()
		second.Close()
		p.requireClean(0)
	})
}

// TestLocalLimitNamed checks that the error of a call whose time ends while its request waits here
// for an envelope names that limit.
func TestLocalLimitNamed(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 1, NA: na.Config{Envelopes: 2}})
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		outs := make([]outcome, 5)
		var handles []*hg.Handle
		for i := range outs {
			handles = append(handles, p.handle(id))
			if i == 4 {
				handles[i].SetTimeout(100 * time.Millisecond)
			}
			require.NoError(t, handles[i].ForwardRaw(nil, outs[i].cb))
			p.Until(func() bool { return len(k.kept) == 1 && (i < 3 || p.octx.Stats().NA.Queued == i-2) })
		}
		p.Until(func() bool { return outs[4].calls == 1 })
		require.ErrorIs(t, outs[4].err, hg.ErrTimeout)
		require.ErrorIs(t, outs[4].err, context.DeadlineExceeded)
		require.Equal(t, hg.NotRun, hg.FateOf(outs[4].err))
		require.ErrorContains(t, outs[4].err, "all 2 envelopes of the target are in use, 2 requests queued")
		for i := range 4 {
			p.Until(func() bool { return len(k.kept) > 0 })
			k.answer()
			p.Until(func() bool { return outs[i].calls == 1 })
		}
		for _, h := range handles {
			h.Close()
		}
		p.requireClean(0)
	})
}
