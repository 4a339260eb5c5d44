package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// TestCork checks that output that a cork holds back leaves together with the Uncork, at the next
// Flush or Progress, or by itself while the program does something else.
func TestCork(t *testing.T) {
	eachLevel(t, func(t *testing.T, cfg sim.Config) {
		for name, release := range map[string]func(p *testNode, w *sim.World) (atMost time.Duration){
			"uncork":   func(p *testNode, _ *sim.World) time.Duration { p.nctx.Upper().Uncork(); return 0 },
			"flush":    func(p *testNode, _ *sim.World) time.Duration { p.nctx.Upper().Flush(); return 0 },
			"progress": func(p *testNode, _ *sim.World) time.Duration { _ = p.nctx.Progress(0); return time.Microsecond },
			"nobody": func(_ *testNode, w *sim.World) time.Duration {
				w.Sleep(10 * time.Millisecond)
				return 2 * time.Millisecond
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := sim.NewWorld(cfg)
				var left, came, bound time.Duration
				const n = 5
				w.Go("target", func() {
					p := openTestNode(t, w, "sim://target")
					require.Equal(t, "hello", string(p.recv().Envelope.Data))
					for range n {
						p.recv()
					}
					came = w.Now()
					p.close()
				})
				w.Go("origin", func() {
					p := openTestNode(t, w, "sim://origin")
					addr, err := na.ParseAddr("sim://target")
					require.NoError(t, err)
					require.NoError(t, p.send(addr, 1, "hello").Err)
					w.Sleep(time.Millisecond)
					require.True(t, p.nctx.Upper().Cork())
					before := w.Stats().Segments
					var sent []*outcome
					for range n {
						sent = append(sent, p.post(func(op *na.Op) error { return p.nctx.SendUnexpected(op, addr, 2, []byte("held")) }))
					}
					require.Equal(t, before, w.Stats().Segments)
					for _, o := range sent {
						require.True(t, o.op.Busy(), "the message has not left")
					}
					left = w.Now()
					bound = release(p, w)
					for _, o := range sent {
						p.wait(o)
					}
					if name != "uncork" {
						p.nctx.Upper().Uncork()
					}
					p.close()
				})
				require.NoError(t, w.Run(time.Minute))
				require.LessOrEqual(t, came-left, bound+100*time.Microsecond, "what was held back left late")
			})
		}
	})
}
