package sim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestManyPeers checks that with defaults a process exchanges messages with many more peers, one
// after the other, than have room at a time: it dials them, or they dial it. All of them stay
// alive, and no fault is reported.
func TestManyPeers(t *testing.T) {
	n := long.Or(600, 5000)
	for _, dials := range []bool{true, false} {
		t.Run(fmt.Sprintf("dials=%v", dials), func(t *testing.T) {
			w := sim.NewWorld(sim.Config{})
			one := openTestNode(t, w, "sim://one")
			var all []*testNode
			for i := range n {
				other := openTestNode(t, w, fmt.Sprintf("sim://n%d", i))
				all = append(all, other)
				from, to := one, other
				if !dials {
					from, to = other, one
				}
				require.NoError(t, from.send(to.addr(), 1, "ask").Err, "peer %d", i)
				r := to.recv()
				require.NoError(t, r.Err)
				back := r.Addr
				r.Envelope.Free()
				require.NoError(t, to.send(back, 2, "answer").Err)
				r = from.recv()
				require.NoError(t, r.Err)
				r.Envelope.Free()
			}
			st := one.nctx.Stats()
			require.LessOrEqual(t, st.Reserved, int64(64<<20))
			require.GreaterOrEqual(t, st.PeersIdle, int64(n-505))
			require.Zero(t, st.PeersLost+st.PeersLeft)
			first := all[0]
			require.NoError(t, first.send(one.addr(), 1, "the first once more").Err)
			r := one.recv()
			require.NoError(t, r.Err)
			r.Envelope.Free()
			for _, p := range append(all, one) {
				require.Zero(t, p.nctx.Stats().PeersLost)
				p.close()
			}
		})
	}
}
