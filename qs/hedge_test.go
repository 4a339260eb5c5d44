package qs_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestHedge checks three servers of which one is slow. A call there is made at another one after
// the delay, and the slow handler's context ends.
func TestHedge(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	const delay = 10 * time.Millisecond
	for seed := range uint64(3) {
		for _, is := range [][]qs.Interceptor{
			{qs.Hedge(delay)},
			{qs.Retry(qs.RetryPolicy{}), qs.Hedge(delay)},
			{qs.Hedge(delay), qs.Retry(qs.RetryPolicy{})},
		} {
			runFleet(t, seed, 3, is, func(ctx context.Context, f *fleet, n *qs.Node) {
				f.takes["s1"] = 10 * time.Second
				to, err := n.PeerWith(ctx, qs.PeerOptions{Balancer: qs.RoundRobin()}, "sim://s0", "sim://s1", "sim://s2")
				require.NoError(t, err)
				took, failed := f.callers(ctx, to, 4, 500*time.Millisecond)
				require.Empty(t, failed)
				require.Less(t, quantile(took, 0.99), 2*delay+3*time.Millisecond, "seed %d", seed)
				require.Positive(t, f.served["s1"])
				f.Sleep(10 * time.Millisecond)
				require.Equal(t, f.served["s1"], f.ended["s1"], "the handlers of the slow one have ended before their time")
				_, err = once.Call(ctx, to, "x")
				require.NoError(t, err)
			})
		}
	}
}

// TestHedgeFails checks the errors of both attempts, if neither succeeds, and which counts.
func TestHedgeFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second error
		frozen        bool // neither answers
		want          qs.Code
		fate          qs.Fate
	}{
		"the second succeeds":             {first: qs.Refuse(qs.Errorf(qs.ErrDenied, "no")), fate: qs.Ran},
		"both are refused":                {first: qs.Refuse(qs.Errorf(qs.ErrDenied, "no")), second: qs.Refuse(qs.Errorf(qs.ErrNotReady, "no")), want: qs.ErrNotReady, fate: qs.NotRun},
		"the first may have run":          {first: context.Canceled, second: qs.Refuse(qs.Errorf(qs.ErrNotReady, "no")), want: hg.ErrRemote, fate: qs.Ran},
		"an error of a handler is answer": {second: qs.Errorf(qs.ErrNotFound, "no key"), frozen: true, want: qs.ErrNotFound, fate: qs.Ran},
	} {
		t.Run(name, func(t *testing.T) {
			w := sim.NewWorld(sim.Config{Seed: 1})
			defer w.Close()
			serving, stop := context.WithCancel(context.Background())
			for i, err := range []error{c.first, c.second} {
				at := []string{"s0", "s1"}[i]
				w.Go(at, func() {
					n := simulated(t, w, "sim://"+at, qs.Config{ShutdownTimeout: -1})
					repeat.Handle(n, func(ctx context.Context, _ string) (string, error) {
						d := 20 * time.Millisecond
						if i == 0 && c.frozen {
							d = time.Hour
						}
						_ = n.Sleep(ctx, d)
						return at, err
					})
					_ = n.Serve(serving)
				})
			}
			w.Go("client", func() {
				defer stop()
				w.Sleep(time.Millisecond)
				n := simulated(t, w, "sim://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Hedge(time.Millisecond)}})
				defer n.Close()
				to, err := n.Peer(context.Background(), "sim://s0", "sim://s1")
				require.NoError(t, err)
				got, err := repeat.Call(context.Background(), to, "x")
				require.Equal(t, c.fate, qs.FateOf(err), "%v", err)
				require.Equal(t, c.want, qs.CodeOf(err), "%v", err)
				if c.want == 0 {
					require.Equal(t, "s1", got)
				}
			})
			require.NoError(t, w.Run(2*time.Hour))
		})
	}
}

// TestHedgeOvertaken checks that a handler's answer after its context has ended, since the other
// attempt was answered, does not count.
func TestHedgeOvertaken(t *testing.T) {
	t.Parallel()
	stopped := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		if ctx.Err() == nil {
			return err
		}
		remote := &hg.RemoteError{Code: qs.ErrCanceled, Text: "context canceled"}
		return hghook.EndedBy(ctx, &hg.Error{Op: "forward", RPC: c.Method, Fate: qs.Ran, Err: remote})
	}
	runFleet(t, 1, 2, []qs.Interceptor{qs.Hedge(10 * time.Millisecond), stopped}, func(ctx context.Context, f *fleet, n *qs.Node) {
		f.takes["s0"] = time.Minute
		to, err := n.Peer(ctx, "sim://s0", "sim://s1")
		require.NoError(t, err)
		got, err := repeat.Call(ctx, to, "x")
		require.NoError(t, err)
		require.Equal(t, "s1", got)
	})
}

// TestNextHasItsOwnCall checks that of an interceptor that calls next several times at once each
// next has a Call of its own.
func TestNextHasItsOwnCall(t *testing.T) {
	t.Parallel()
	const times = 8
	var number, wrong atomic.Int32
	outer := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		errs := make(chan error, times)
		for range times {
			go func() { errs <- next(ctx) }()
		}
		var all []error
		for range times {
			all = append(all, <-errs)
		}
		if who, ok := c.ResponseMetadata.Get("who"); !ok || who == "" || !c.Metadata.IsZero() {
			wrong.Add(1)
		}
		return errors.Join(all...)
	}
	inner := func(ctx context.Context, c *qs.Call, next func(context.Context) error) (err error) {
		mine := fmt.Sprint(number.Add(1))
		if c.Metadata, err = c.Metadata.With("who", mine); err != nil {
			return err
		}
		err = next(ctx)
		if got, _ := c.ResponseMetadata.Get("who"); got != mine {
			wrong.Add(1)
		}
		return err
	}
	s := server(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(ctx context.Context, in string) (string, error) {
			c := qs.CallFrom(ctx)
			c.ResponseMetadata = c.Metadata
			return in, nil
		})
	})
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{outer, inner}})
	to := peer(t, c, s.Addr().String())
	for range 20 {
		got, err := repeat.Call(testContext(t), to, "x")
		require.NoError(t, err)
		require.Equal(t, "x", got)
	}
	require.EqualValues(t, 20*times, number.Load())
	require.Zero(t, wrong.Load())
}

// TestFirst checks that the first success counts, the others are abandoned and have ended.
func TestFirst(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		runFleet(t, seed, 3, nil, func(ctx context.Context, f *fleet, n *qs.Node) {
			f.takes["s0"], f.takes["s1"], f.takes["s2"] = time.Hour, 50*time.Millisecond, time.Hour
			var peers []qs.Peer
			var all []*qs.Future[string]
			for _, at := range []string{"sim://s0", "sim://nobody", "sim://s1", "sim://s2"} {
				to, err := n.Peer(ctx, at)
				require.NoError(t, err)
				peers = append(peers, to)
				all = append(all, once.Go(ctx, to, "x"))
			}
			i, got, err := qs.WaitFirst(ctx, all...)
			require.NoError(t, err)
			require.Equal(t, 2, i)
			require.Equal(t, "s1", got)
			for i, f := range all {
				_, err := f.Wait(ctx)
				switch i {
				case 1:
					require.ErrorIs(t, err, qs.ErrUnreachable)
				case 2:
					require.NoError(t, err)
				default:
					require.ErrorIs(t, err, qs.ErrCanceled)
				}
			}
			f.Sleep(10 * time.Millisecond)
			require.Equal(t, f.served, f.ended)

			late := once.Go(ctx, peers[0], "x")
			soon, stop := n.WithTimeout(ctx, time.Millisecond)
			defer stop()
			i, _, err = qs.WaitFirst(soon, late)
			require.Equal(t, -1, i)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, qs.MaybeRan, qs.FateOf(err))
			require.False(t, late.Over(), "it continues")
			late.Abandon()

			i, _, err = qs.WaitFirst(ctx, late, once.Go(ctx, peers[1], "x"))
			require.Equal(t, -1, i)
			require.ErrorIs(t, err, qs.ErrCanceled)
			require.ErrorIs(t, err, qs.ErrUnreachable)
			_, _, err = qs.WaitFirst[string](ctx)
			require.ErrorIs(t, err, qs.ErrInvalid)

			f.takes["s0"], f.takes["s2"] = 0, 0
			outs, errs := qs.CallAll(ctx, peers, once, "x")
			require.Len(t, outs, 4)
			require.Len(t, errs, 4)
			for i, want := range []struct {
				out  string
				fate qs.Fate
			}{{"s0", qs.Ran}, {"", qs.NotRun}, {"s1", qs.Ran}, {"s2", qs.Ran}} {
				require.Equal(t, want.out, outs[i])
				require.Equal(t, want.fate, qs.FateOf(errs[i]))
				require.Equal(t, want.out == "", errs[i] != nil)
			}
		})
	}
}

// TestHedgeKeepsMetadata checks that the metadata of the answer of a hedged call is not lost
// with the attempt that was overtaken.
func TestHedgeKeepsMetadata(t *testing.T) {
	t.Parallel()
	wantMeta, err := hg.Metadata{}.With("by", "the second")
	require.NoError(t, err)
	var asked atomic.Int64
	register := func(n *qs.Node) {
		repeat.Handle(n, func(ctx context.Context, _ string) (string, error) {
			if asked.Add(1) == 1 {
				<-ctx.Done()
				return "", ctx.Err()
			}
			qs.CallFrom(ctx).ResponseMetadata = wantMeta
			return "", nil
		})
	}
	first, second := server(t, qs.Config{}, register), server(t, qs.Config{}, register)
	var seen hg.Metadata
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			defer func() { seen = c.ResponseMetadata }()
			return next(ctx)
		},
		qs.Hedge(time.Millisecond),
	}})
	_, err = repeat.Call(testContext(t), peer(t, c, first.Addr().String(), second.Addr().String()), "")
	require.NoError(t, err)
	require.Equal(t, wantMeta, seen)
}
