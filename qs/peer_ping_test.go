package qs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	holdAll = qs.Define[int, int]("test/hold")
	holdFew = qs.Define[int, int]("test/hold-few", qs.MaxConcurrent(4), qs.MaxQueue(1000))
)

// callHG calls an RPC of package hg, without input.
func callHG(ctx context.Context, n *qs.Node, to qs.Peer, rpc string) error {
	h, err := n.HG().Create(to.Addr(), hg.HashName(rpc))
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = h.CallRaw(ctx, nil)
	return err
}

// TestPingBesideFilledLimits checks that when the envelopes of a peer and its places, or those of
// all, are in use, a ping and hg/health are answered within 100 ms, also with an authorizer.
func TestPingBesideFilledLimits(t *testing.T) {
	t.Parallel()
	allow := func(context.Context, *qs.Call) error { return nil }
	for name, cfg := range map[string]qs.Config{
		"per peer":     {HG: hg.Config{MaxActivePerPeer: 4}},
		"total":        {HG: hg.Config{MaxActive: 4}},
		"authorizer":   {HG: hg.Config{MaxActive: 4}, Authorize: allow},
		"one envelope": {HG: hg.Config{MaxActive: 4, NA: na.Config{Envelopes: 1}}},
		"method":       {},
	} {
		method := holdAll
		if name == "method" {
			method = holdFew
		}
		t.Run(name, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{Seed: 1})
			defer w.Close()
			over, end := context.WithCancel(context.Background())
			serving, stop := context.WithCancel(context.Background())
			running, ended := 0, 0
			var srv *qs.Node
			w.Go("srv", func() {
				srv = simulated(t, w, "sim://srv", cfg)
				handler := func(context.Context, int) (int, error) {
					running++
					_ = srv.Sleep(over, time.Hour)
					return 0, nil
				}
				holdAll.Handle(srv, handler)
				holdFew.Handle(srv, handler)
				_ = srv.Serve(serving)
			})
			w.Go("client", func() {
				defer stop()
				w.Sleep(time.Millisecond)
				cli := simulated(t, w, "sim://", qs.Config{})
				defer cli.Close()
				to, err := cli.Peer(context.Background(), "sim://srv")
				require.NoError(t, err)
				const calls = 4 + 33 + 20
				for range calls {
					w.Go("client", func() {
						_, err := method.Call(context.Background(), to, 1)
						require.NoError(t, err)
						ended++
					})
				}
				w.Sleep(time.Second)
				require.Equal(t, 4, running)
				within := func(what string, f func(ctx context.Context) error) {
					begun := w.Now()
					ctx, stop := cli.WithTimeout(context.Background(), time.Second)
					defer stop()
					require.NoError(t, f(ctx), what)
					require.Less(t, w.Now()-begun, 100*time.Millisecond, what)
				}
				ping := func(ctx context.Context) error { _, err := to.Ping(ctx); return err }
				for range 3 {
					within("ping", ping)
					within("hg/health", func(ctx context.Context) error {
						return callHG(ctx, cli, to, hg.HealthRPC)
					})
				}
				srv.SetReady(false)
				within("ping of a node that is not ready", ping)
				end()
				for ended < calls {
					w.Sleep(10 * time.Millisecond)
				}
			})
			require.NoError(t, w.Run(time.Hour))
			require.Equal(t, 4+33+20, ended)
		})
	}
}

// TestPingOfAFrozenNode checks that a node that is not driven fails a ping, and the error names the
// possible cause.
func TestPingOfAFrozenNode(t *testing.T) {
	t.Parallel()
	srv, cli := open(t, "tcp://127.0.0.1:0", qs.Config{}), open(t, "tcp://", qs.Config{})
	to := peer(t, cli, srv.Addr().String())
	err := callUndriven(t, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := to.Ping(ctx)
		return err
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, qs.ErrTimeout)
	gone, leave := context.WithCancelCause(t.Context())
	why := errors.New("the program has changed its mind")
	leave(why)
	_, err = to.Ping(gone)
	require.ErrorIs(t, err, why)
	require.ErrorIs(t, err, context.Canceled)
	_, err = qs.Peer{}.Ping(t.Context())
	require.ErrorIs(t, err, qs.ErrInvalid)
}
