package qs_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestLargeValues checks that a value larger than a message travels as any other, up to the limit.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		upper.Handle(n, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil })
	})
	for _, size := range []int{1 << 10, 100 << 10, 5 << 20} {
		got, err := upper.Call(testContext(t), to, strings.Repeat("a", size))
		require.NoError(t, err)
		require.True(t, got == strings.Repeat("A", size), "%d bytes", size)
	}
}

// TestAuthorize checks that a request that the authorizer denies does not run, and the caller gets
// the reason: with the authorizer's own code, if it gave one.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	var cfg qs.Config
	cfg.HG.Authorize = func(_ context.Context, _ hg.Caller, rpc *hg.RPC) error {
		switch rpc.Name {
		case upper.Name():
			return nil
		case double.Name():
			return errors.New("only upper is for you")
		}
		return qs.Errorf(qs.ErrDenied, "only upper is for you")
	}
	_, to := pair(t, cfg, func(n *qs.Node) {
		upper.Handle(n, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil })
		double.Handle(n, func(_ context.Context, p point) (point, error) { ran.Add(1); return p, nil })
		once.Handle(n, func(context.Context, string) (string, error) { ran.Add(1); return "", nil })
	})
	_, err := upper.Call(testContext(t), to, "a")
	require.NoError(t, err)
	_, err = double.Call(testContext(t), to, point{})
	require.ErrorIs(t, err, qs.ErrPermission)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "only upper is for you")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	_, err = once.Call(testContext(t), to, "")
	require.ErrorIs(t, err, qs.ErrDenied)
	require.NotErrorIs(t, err, qs.ErrPermission)
	require.ErrorContains(t, err, "only upper is for you")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	require.Zero(t, ran.Load())
}

// TestAbandonEndsHandler checks that a caller that abandons a call ends the context of its handler,
// and the call that the handler makes with it.
func TestAbandonEndsHandler(t *testing.T) {
	t.Parallel()
	inner, outer := qs.Define[int, int]("test/inner"), qs.Define[int, int]("test/outer")
	begun, ended := make(chan struct{}, 1), make(chan error, 2)
	_, far := pair(t, qs.Config{}, func(n *qs.Node) {
		inner.Handle(n, func(ctx context.Context, _ int) (int, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return 0, ctx.Err()
		})
	})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		outer.Handle(n, func(ctx context.Context, i int) (int, error) {
			_, err := inner.Call(ctx, far, i)
			ended <- err
			return 0, err
		})
	})
	f := outer.Go(testContext(t), to, 1)
	<-begun
	f.Abandon()
	_, err := f.Wait(testContext(t))
	require.ErrorIs(t, err, qs.ErrCanceled)
	for range 2 {
		select {
		case err := <-ended:
			require.ErrorIs(t, err, context.Canceled)
		case <-testContext(t).Done():
			t.Fatal("a handler continues")
		}
	}
}
