package hg_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestAnswersPassRequests checks that answers need no envelope (G13, G-T8): 1,000 calls are
// answered while the target's own requests to the origin have used every envelope of it, and none
// of those is lost.
func TestAnswersPassRequests(t *testing.T) {
	t.Parallel()
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		cfg := hg.Config{MaxActive: 1, NA: na.Config{Envelopes: 4}}
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Envelopes: 4}})
		p.origin, p.octx = n.Target(cfg) // it is a target too
		id := p.rpc("echo", echo)
		var k holdingTarget
		_, err := p.origin.Register("keep", k.handler)
		require.NoError(t, err)
		back, err := p.target.Register("keep", nil)
		require.NoError(t, err)
		var kept outcome
		for range 20 {
			h, err := p.tctx.Create(p.origin.Addr(), back)
			require.NoError(t, err)
			require.NoError(t, h.ForwardRaw(nil, kept.cb))
			h.Close()
		}
		p.Until(func() bool { return p.octx.Stats().NA.Envelopes == 4 && len(k.kept) == 1 })
		var handles [20]*hg.Handle
		for i := range handles {
			handles[i] = p.handle(id)
			defer handles[i].Close()
		}
		var o outcome
		for round := 0; round < 1000; round += len(handles) {
			for _, h := range handles {
				require.NoError(t, h.ForwardRaw(nil, o.cb))
			}
			p.Until(func() bool { return o.calls == round+len(handles) })
			require.NoError(t, o.err)
		}
		require.Equal(t, 15, p.tctx.Stats().NA.Queued, "they wait all the time")
		for kept.calls < 20 {
			p.Until(func() bool { return len(k.kept) > 0 })
			k.answer()
			n := kept.calls
			p.Until(func() bool { return kept.calls > n })
			require.NoError(t, kept.err)
		}
	})
}

// newNestedPair makes two classes whose handlers call each other until depth is used up.
func newNestedPair(n *transports.Net, t *testing.T, cfg hg.Config) (p *pair, id hg.ID) {
	p = &pair{Net: n, t: t}
	p.target, p.tctx = n.Target(cfg)
	p.origin, p.octx = n.Target(cfg)
	handler := func(peer *hg.Class) hg.Handler {
		return func(h hg.Request) error {
			in, err := h.InputRaw()
			if err != nil || in[0] == 0 {
				return h.RespondRaw([]byte("bottom"), nil)
			}
			next, err := h.HG().Create(peer.Addr(), h.ID())
			if err != nil {
				return err
			}
			detach(h)
			return next.ForwardRaw([]byte{in[0] - 1}, func(next *hg.Handle, err error) {
				defer releaseUnanswered(h)
				defer next.Close()
				if err != nil {
					_ = h.RespondError(err, nil)
					return
				}
				out, _ := next.OutputRaw()
				_ = h.RespondRaw(out, nil)
			})
		}
	}
	id, err := p.target.Register("nest", handler(p.origin))
	require.NoError(t, err)
	_, err = p.origin.Register("nest", handler(p.target))
	require.NoError(t, err)
	return p, id
}

// TestNestedWithOneEnvelope checks that calls that call back, A to B to A to B, need one envelope
// each way if handlers are not bounded (G-T13).
func TestNestedWithOneEnvelope(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p, id := newNestedPair(n, t, hg.Config{NA: na.Config{Envelopes: 1}})
		outs := make([]outcome, 5)
		for i := range outs {
			h := p.handle(id)
			require.NoError(t, h.ForwardRaw([]byte{9}, outs[i].cb))
			h.Close()
		}
		p.Until(func() bool {
			for i := range outs {
				if outs[i].calls == 0 {
					return false
				}
			}
			return true
		})
		for i := range outs {
			require.NoError(t, outs[i].err)
		}
		p.requireClean(0)
	})
}

// TestNestedBeyondMaxActive checks that with fewer handlers than nested calls the calls wait for
// each other (G-T14): the gauge shows it, the request can be withdrawn, and then all calls end.
func TestNestedBeyondMaxActive(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p, id := newNestedPair(n, t, hg.Config{MaxActive: 1})
		h := p.handle(id)
		defer h.Close()
		var o outcome
		require.NoError(t, h.ForwardRaw([]byte{2}, o.cb)) // target, origin, and the target again, which may run one
		p.Until(func() bool { return p.tctx.Stats().Waiting == 1 })
		require.EqualValues(t, 1, p.tctx.Stats().Active)
		require.Zero(t, o.calls)
		h.Cancel()
		p.Until(func() bool { return o.calls == 1 })
		require.ErrorIs(t, o.err, hg.ErrCanceled)
		require.EqualValues(t, 1, p.tctx.Stats().Waiting, "a cancel is local: the others still wait for each other")
		require.NoError(t, p.origin.Close())
		p.Until(func() bool { s := p.tctx.Stats(); return s.Active == 0 && s.Waiting == 0 })
	})
}

// TestCancelQueued checks that a local cancel of a request that waits for an envelope uses none
// (G-T31), at any place in the queue, and the order of the others stays.
func TestCancelQueued(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 2}})
		var order []byte
		id := p.rpc("order", func(h hg.Request) error {
			in, err := h.InputRaw()
			order = append(order, in...)
			return firstError(err, h.RespondRaw(nil, nil))
		})
		outs := make([]outcome, 12)
		handles := make([]*hg.Handle, len(outs))
		for i := range outs {
			handles[i] = p.handle(id)
			require.NoError(t, handles[i].ForwardRaw([]byte{byte(i)}, outs[i].cb))
		}
		p.waitForRequests(2)
		for i := 2; i < len(outs); i += 3 {
			handles[i].Cancel()
			p.octx.Trigger(0)
			require.ErrorIs(t, outs[i].err, hg.ErrCanceled)
			requireFate(t, na.NotRun, outs[i].err)
		}
		p.Until(func() bool { return outs[10].calls == 1 })
		require.Equal(t, []byte{0, 1, 3, 4, 6, 7, 9, 10}, order)
		for _, h := range handles {
			h.Close()
		}
		p.requireClean(0)
	})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func requireFate(t *testing.T, want na.Fate, err error) {
	t.Helper()
	var e *hg.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Fate, "%v", err)
}

// TestSlowTargetAmongTen checks that a target that answers nothing takes nothing from ten others
// (G9): in the same virtual time they answer as many calls as without it, at least four fifths.
func TestSlowTargetAmongTen(t *testing.T) {
	t.Parallel()
	if raceflag.Enabled && !long.On { // one goroutine at a time
		return
	}
	const fast, flight, waiting = 10, 8, 10000
	w := sim.NewWorld(sim.Config{Seed: 1})
	cfg := hg.Config{NA: na.Config{Plugins: []na.Plugin{w.Plugin()}}}
	open := func(addr string, handler hg.Handler) (*hg.Class, *hg.Context, hg.ID) {
		cls, err := hg.Open(addr, cfg)
		require.NoError(t, err)
		id, err := cls.Register("work", handler)
		require.NoError(t, err)
		hctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, hctx, id
	}
	over := false
	var k holdingTarget
	target := func(name string, handler hg.Handler) {
		w.Go(name, func() {
			cls, hctx, _ := open("sim://"+name, handler)
			for !over {
				_ = hctx.Progress(time.Millisecond)
				hctx.Trigger(0)
			}
			for len(k.kept) > 0 {
				k.answer()
			}
			require.NoError(t, cls.Shutdown(context.Background()))
		})
	}
	for i := range fast {
		target(fmt.Sprintf("fast%d", i), echo)
	}
	target("slow", k.handler)
	w.Go("origin", func() {
		w.Sleep(time.Millisecond) // they listen by then
		cls, hctx, id := open("sim://", nil)
		create := func(name string) *hg.Handle {
			h, err := hctx.Create(na.MakeAddr("sim://"+name, 0), id)
			require.NoError(t, err)
			return h
		}
		pass := func(d time.Duration) {
			for end := hctx.Now() + d; hctx.Now() < end; hctx.Trigger(0) {
				_ = hctx.Progress(end - hctx.Now())
			}
		}
		answered, ended := 0, 0
		var again hg.ForwardFunc
		again = func(h *hg.Handle, err error) {
			if over {
				ended++
				h.Close()
				return
			}
			require.NoError(t, err)
			answered++
			require.NoError(t, h.ForwardRaw(nil, again))
		}
		for i := range fast * flight {
			require.NoError(t, create(fmt.Sprintf("fast%d", i%fast)).ForwardRaw(nil, again))
		}
		const period = 2 * time.Millisecond
		pass(period) // connects
		answered = 0
		pass(period)
		alone := answered
		var stuck []*hg.Handle
		lost := 0
		for range waiting {
			h := create("slow")
			require.NoError(t, h.ForwardRaw(nil, func(*hg.Handle, error) { lost++ }))
			stuck = append(stuck, h)
		}
		pass(period)
		require.Len(t, k.kept, 128, "Config.MaxActivePerPeer")
		answered = 0
		pass(period)
		t.Logf("calls answered in %v: %d alone, %d beside a target that holds 128 of %d requests", period, alone, answered, waiting-lost)
		require.Greater(t, alone, 100*fast)
		require.GreaterOrEqual(t, answered, alone*4/5)
		require.Equal(t, waiting-8192, lost, "the queue at the source is bounded: the others failed at once")
		over = true
		for _, h := range stuck {
			h.Cancel()
		}
		for lost < waiting || ended < fast*flight {
			pass(time.Millisecond)
		}
		for _, h := range stuck {
			h.Close()
		}
		require.NoError(t, cls.Shutdown(context.Background()))
	})
	require.NoError(t, w.Run(time.Minute))
}
