package group_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestEventsOfMany checks that a loop over Events gets each present member, for any number of
// members.
func TestEventsOfMany(t *testing.T) {
	t.Parallel()
	runSim(t, func(ctx context.Context, _ *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		const many = 1100
		for i := range many {
			d.report(newMember(fmt.Sprintf("m%d", i), 1, group.Alive))
		}
		ctx, stop := n.HG().NA().WithTimeout(ctx, time.Second)
		defer stop()
		told := map[string]bool{}
		for e := range g.Events(ctx) {
			if told[e.Member.Name] = true; len(told) == many {
				return
			}
		}
		t.Errorf("%d of %d members have joined", len(told), many)
	})
}

// TestEventsOfSlowReader checks that a loop over Events that is slower than the events misses the oldest,
// not the last: its final state is that of View.
func TestEventsOfSlowReader(t *testing.T) {
	t.Parallel()
	runSim(t, func(ctx context.Context, _ *sim.World, n *qs.Node, d *fakeSource, g *group.Group) {
		d.report(newMember("a", 1, group.Alive))
		ctx, stop := n.HG().NA().WithTimeout(ctx, time.Minute)
		defer stop()
		first, last := true, group.Event{}
		for last = range g.Events(ctx) {
			if first {
				for i := range uint64(1000) {
					d.report(newMember("a", 2+i, group.Alive))
					require.NoError(t, n.HG().Sleep(ctx, time.Millisecond))
				}
				d.report(newMember("a", 1001, group.Left))
				require.NoError(t, n.HG().Sleep(ctx, time.Second))
			}
			if first = false; last.Epoch == g.View().Epoch {
				break
			}
		}
		require.Equal(t, g.View().Epoch, last.Epoch)
		require.Equal(t, group.Leaves, last.Kind)
	})
}
