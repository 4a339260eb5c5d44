package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestRateOfCredit checks that a source that always has messages to send, with G envelopes at its
// peer and credit that is returned for B at a time, sends between G-B+1 and G messages in a round
// trip (G19, G-T17). The virtual clock makes that exact.
func TestRateOfCredit(t *testing.T) {
	const latency, trip, trips = time.Millisecond, 2 * time.Millisecond, 50
	for _, c := range []struct{ g, b int }{{1, 1}, {2, 1}, {2, 2}, {8, 1}, {8, 2}, {8, 5}, {8, 8}, {32, 1}, {32, 8}, {32, 32}, {100, 25}} {
		t.Run(fmt.Sprintf("G %d B %d", c.g, c.b), func(t *testing.T) {
			w := sim.NewWorld(sim.Config{Seed: 1, Latency: latency, PollCost: time.Nanosecond})
			arrived, over := 0, false
			w.Go("target", func() {
				p := openTestNodeWith(t, na.Config{Plugins: []na.Plugin{w.Plugin()}, Envelopes: c.g, CreditBatch: c.b}, "sim://target")
				var recv *na.Op
				recv = p.nctx.NewOp(func(_ *na.Op, r na.Result) {
					if r.Err != nil {
						return
					}
					arrived++
					r.Envelope.Free()
					require.NoError(t, p.nctx.RecvUnexpected(recv))
				})
				require.NoError(t, p.nctx.RecvUnexpected(recv))
				for !over {
					_ = p.nctx.Progress(trip)
					p.nctx.Trigger(0)
				}
				p.close()
			})
			w.Go("source", func() {
				w.Sleep(trip)
				p := openTestNode(t, w, "sim://")
				send := func(op *na.Op) {
					require.NoError(t, p.nctx.SendUnexpected(op, addrOf(t, "sim://target"), 1, []byte("x")))
				}
				for range 2 * c.g {
					send(p.nctx.NewOp(func(op *na.Op, r na.Result) {
						if r.Err == nil && !over {
							send(op)
						}
					}))
				}
				pass := func(d time.Duration) {
					for end := p.nctx.Now() + d; p.nctx.Now() < end; p.nctx.Trigger(0) {
						_ = p.nctx.Progress(end - p.nctx.Now())
					}
				}
				pass(10 * trip)
				before := arrived
				pass(trips * trip)
				rate := float64(arrived-before) / trips
				over = true
				t.Logf("%.2f messages in a round trip", rate)
				require.GreaterOrEqual(t, rate, float64(c.g-c.b+1)*0.98)
				require.LessOrEqual(t, rate, float64(c.g)*1.02)
				p.close()
			})
			require.NoError(t, w.Run(time.Minute))
		})
	}
}
