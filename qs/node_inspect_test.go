package qs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestInspect checks that with Config.Inspect a node serves its methods, its gauges and its
// callers; without it nothing; and Authorize may deny both.
func TestInspect(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  qs.Config
		code error
	}{
		"on":     {qs.Config{Inspect: true}, nil},
		"off":    {qs.Config{}, hg.ErrNoMethod},
		"denied": {qs.Config{Inspect: true, Authorize: func(context.Context, *qs.Call) error { return hg.ErrPermission }}, hg.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			node, err := qs.Open("tcp://127.0.0.1:0", c.cfg)
			require.NoError(t, err)
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- node.Serve(ctx) }()
			defer func() {
				stop()
				require.NoError(t, <-ended)
			}()
			upper := qs.Define[string, string]("inspect/upper")
			upper.Handle(node, func(_ context.Context, in string) (string, error) { return in, nil })
			client, err := qs.Open("tcp://", qs.Config{Name: "worker"})
			require.NoError(t, err)
			defer client.Close()
			_, err = client.HG().Class().Register(inspect.GaugesRPC, nil)
			require.NoError(t, err)
			ask := func(rpc string) ([]byte, error) {
				h, err := client.HG().Create(node.Addr(), hg.HashName(rpc))
				require.NoError(t, err)
				defer h.Close()
				out, err := h.CallRaw(ctx, nil)
				return append([]byte(nil), out...), err
			}
			rpcs, err := ask(inspect.RPCsRPC)
			if c.code != nil {
				require.ErrorIs(t, err, c.code)
				_, err = ask(inspect.GaugesRPC)
				require.ErrorIs(t, err, c.code)
				return
			}
			require.NoError(t, err)
			infos, err := inspect.DecodeRPCs(rpcs)
			require.NoError(t, err)
			require.Condition(t, func() bool {
				for _, rpc := range infos {
					if rpc.Name == "inspect/upper" {
						return true
					}
				}
				return false
			})
			b, err := ask(inspect.GaugesRPC)
			require.NoError(t, err)
			gauges, err := inspect.DecodeGauges(b)
			require.NoError(t, err)
			require.Len(t, gauges, 1)
			require.Len(t, gauges[0].Peers, 1)
			require.Equal(t, "worker", gauges[0].Peers[0].Process)
			require.Regexp(t, `^worker \(127\.0\.0\.1:\d+\)$`, gauges[0].Peers[0].Label)
		})
	}
}
