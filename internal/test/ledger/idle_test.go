package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestIdle checks that without faults, sessions that end as soon as they are idle, and sessions
// that make room for others, change the outcome of no call.
func TestIdle(t *testing.T) {
	ended, calls := int64(0), 0
	for seed := uint64(1); seed <= uint64(long.Or(20, 2000)); seed++ {
		o := drawOptions(seed)
		o.Faults, o.Breakers, o.Rounds, o.Callers, o.Origins = sim.Faults{Jitter: 20 * time.Millisecond}, 0, 12, 1+o.Callers%2, 2
		o.Idle, o.Pause = 1, 200*time.Millisecond
		if seed%2 == 0 { // calls to two peers at a time; more are refused, with that reason
			o.Budget = na.GuaranteedBytes(2, 32, 4<<10)
		}
		w, err := play(o)
		require.NoError(t, err, "seed %d", seed)
		for what, n := range w.audit.Outcomes {
			for _, bad := range []error{qs.ErrPeerLost, qs.ErrUnreachable} {
				require.NotEqual(t, bad.Error(), what, "how %d calls ended, seed %d: %v", n, seed, w.audit.Outcomes)
			}
			calls += n
		}
		for _, n := range w.nodes {
			st := n.HG().Stats().NA
			ended += st.PeersIdle
			require.Zero(t, st.PeersLost+st.Violations, "seed %d", seed)
		}
	}
	t.Logf("%d calls, %d sessions ended", calls, ended)
	require.Greater(t, ended, int64(50))
}
