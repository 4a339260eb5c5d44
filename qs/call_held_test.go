package qs_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestHeldCallsNameLimit checks that a call that ends at its deadline before it could leave names the
// limit at its target.
func TestHeldCallsNameLimit(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]qs.Config{
		"it handles 4 requests of this process, its limit (hg.Config.MaxActivePerPeer)":    {HG: hg.Config{MaxActivePerPeer: 4}},
		"it handles 4 requests, its limit (hg.Config.MaxActive)":                           {HG: hg.Config{MaxActive: 4}},
		"it handles 4 requests of one method, the limit of that method (qs.MaxConcurrent)": {},
		"its authorizer has not decided":                                                   {Authorize: func(ctx context.Context, _ *qs.Call) error { <-ctx.Done(); return nil }},
	} {
		method := holdAll
		if cfg.Authorize == nil && cfg.HG.MaxActive == 0 && cfg.HG.MaxActivePerPeer == 0 {
			method = holdFew
		}
		t.Run(want, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{Seed: 1})
			defer w.Close()
			over, end := context.WithCancel(context.Background())
			serving, stop := context.WithCancel(context.Background())
			ended := 0
			w.Go("srv", func() {
				var srv *qs.Node
				if cfg.Authorize != nil {
					cfg.Authorize = func(context.Context, *qs.Call) error { return srv.Sleep(over, time.Hour) }
				}
				srv = simulated(t, w, "sim://srv", cfg)
				handler := func(context.Context, int) (int, error) {
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
				const calls = 4 + 32 + 1
				for range calls {
					w.Go("client", func() {
						_, _ = method.Call(context.Background(), to, 1)
						ended++
					})
				}
				w.Sleep(time.Millisecond)
				ctx, cancel := cli.WithTimeout(context.Background(), 500*time.Millisecond)
				defer cancel()
				_, err = method.Call(ctx, to, 2)
				require.ErrorIs(t, err, qs.ErrTimeout)
				require.Equal(t, qs.NotRun, qs.FateOf(err))
				require.ErrorContains(t, err, "all 32 envelopes of the target are in use")
				require.ErrorContains(t, err, want)
				require.Equal(t, want, cli.HG().NA().Peers()[0].HeldBy)
				end()
				for ended < calls {
					w.Sleep(10 * time.Millisecond)
				}
				w.Sleep(300 * time.Millisecond)
				require.Empty(t, cli.HG().NA().Peers()[0].HeldBy)
			})
			require.NoError(t, w.Run(time.Hour))
		})
	}
}

// TestHeldByAFrozenNode checks that the error of a call to a node that is not driven names that at
// its deadline.
func TestHeldByAFrozenNode(t *testing.T) {
	t.Parallel()
	srv, cli := open(t, "tcp://127.0.0.1:0", qs.Config{}), open(t, "tcp://", qs.Config{})
	to := peer(t, cli, srv.Addr().String())
	err := callUndriven(t, 400*time.Millisecond, func(ctx context.Context) error {
		_, err := holdAll.Call(ctx, to, 1)
		return err
	})
	require.ErrorIs(t, err, qs.ErrTimeout)
	fmt.Fprintln(t.Output(), err)
}

// callUndriven returns the error of call, which ends with its deadline and names a peer that is not
// driven. On a busy machine the peer has not reported that in time: then it has twice as long.
func callUndriven(t *testing.T, timeout time.Duration, call func(ctx context.Context) error) (err error) {
	t.Helper()
	for ; timeout < time.Minute; timeout *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err = call(ctx)
		cancel()
		if err == nil || strings.Contains(err.Error(), "event loop does not run") {
			break
		}
	}
	require.ErrorContains(t, err, "event loop does not run")
	return err
}

// TestCallsWaitBeyondSendQueue checks that calls wait for an envelope of their target however many
// they are: na.Config.SendQueue limits only requests for which no caller waits.
func TestCallsWaitBeyondSendQueue(t *testing.T) {
	t.Parallel()
	const envelopes, sendQueue, calls = 4, 2, 50
	began, release := make(chan struct{}, calls), make(chan struct{})
	method := qs.Define[int, int]("test/beyond", qs.MaxConcurrent(1), qs.MaxQueue(calls))
	s := server(t, qs.Config{HG: hg.Config{NA: na.Config{Envelopes: envelopes}}}, func(n *qs.Node) {
		method.Handle(n, func(_ context.Context, i int) (int, error) {
			began <- struct{}{}
			<-release
			return i, nil
		})
	})
	n := open(t, "tcp://", qs.Config{HG: hg.Config{NA: na.Config{SendQueue: sendQueue}}})
	to := peer(t, n, s.Addr().String())
	ctx := testContext(t)
	futures := []*qs.Future[int]{method.Go(ctx, to, 0)}
	<-began
	for i := 1; i < calls; i++ {
		futures = append(futures, method.Go(ctx, to, i))
	}
	for n.HG().NA().Stats().Queued < calls-1-envelopes {
		require.NoError(t, ctx.Err(), "the calls do not wait in the queue")
		runtime.Gosched()
	}
	close(release)
	for i, f := range futures {
		got, err := f.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, i, got)
	}
}
