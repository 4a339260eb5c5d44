package hg_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestCalls checks that calls in flight are listed on both sides, with name, state and age, and
// nothing else is.
func TestCalls(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{MaxActive: 2})
		var held []hg.Request
		stall := p.rpc("stall", func(r hg.Request) error {
			held = append(held, r)
			return r.Detach()
		})
		listed := func(c *hg.Context, kind inspect.EventKind) (states []string) {
			last := time.Duration(0)
			for i, call := range c.Calls() {
				require.Equal(t, "stall", call.RPC)
				require.Equal(t, kind, call.Kind)
				require.Positive(t, call.Age)
				require.False(t, i > 0 && call.Age > last, "the oldest first")
				require.False(t, call.Peer.IsZero())
				states, last = append(states, call.State), call.Age
			}
			return states
		}
		var o outcome
		forward := func() {
			h := p.handle(stall)
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			require.NoError(t, h.Close())
		}
		idle := p.handle(stall)
		require.Empty(t, listed(p.octx, inspect.EventOrigin))
		forward()
		p.Until(func() bool { return len(held) == 1 })
		require.Equal(t, []string{"running"}, listed(p.tctx, inspect.EventTarget), "it arrived before the first snapshot")
		for range 3 {
			forward()
		}
		p.Until(func() bool { return p.tctx.Stats().Waiting == 2 })
		require.ElementsMatch(t, []string{"running", "running", "waiting", "waiting"}, listed(p.tctx, inspect.EventTarget))
		require.Equal(t, []string{"waiting", "waiting", "waiting", "waiting"}, listed(p.octx, inspect.EventOrigin))
		ids := func(c *hg.Context) (all []uint64) {
			for _, call := range c.Calls() {
				all = append(all, call.ID)
			}
			slices.Sort(all)
			return slices.Compact(all)
		}
		require.Len(t, ids(p.octx), 4)
		require.Equal(t, ids(p.octx), ids(p.tctx), "a request has the ID of its call")
		for i := range 4 {
			p.Until(func() bool { return len(held) > i })
			require.NoError(t, held[i].RespondRaw(nil, nil))
		}
		p.Until(func() bool { return o.calls == 4 && p.tctx.Stats().Handles == 0 })
		require.Empty(t, listed(p.octx, inspect.EventOrigin))
		require.Empty(t, listed(p.tctx, inspect.EventTarget))
		require.NoError(t, idle.Close())
	})
}

// A tracked operation of the program's own.
type trackedOp struct{ age time.Duration }

func (c *trackedOp) Inspect() inspect.Call {
	return inspect.Call{Kind: inspect.EventTransfer, RPC: "chore", Age: c.age, Moved: 1, Size: 2}
}

func TestTrack(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		_, c := n.Origin(hg.Config{})
		young, old := &trackedOp{1}, &trackedOp{2}
		hghook.Track(c, young)
		hghook.Track(c, old)
		first, second := young.Inspect(), old.Inspect()
		first.ID, second.ID = 1, 2
		require.Equal(t, []inspect.Call{second, first}, c.Calls())
		hghook.Untrack(c, old)
		require.Equal(t, []inspect.Call{first}, c.Calls())
		hghook.Untrack(c, young)
		require.Empty(t, c.Calls())
	})
}
