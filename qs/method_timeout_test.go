package qs_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestMethodTimeout checks that a method's Timeout ends the handler's ctx as the caller's deadline
// does, and that the handler's error then is ErrTimeout at a caller that has no deadline: of a
// plain method, of a stream whose reader does not read, of an upload whose caller does not end.
func TestMethodTimeout(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		const limit = 30 * time.Millisecond
		wait := qs.Define[string, string]("timeout/wait", qs.Timeout(limit))
		items := qs.DefineStream[struct{}, []byte]("timeout/items", qs.Timeout(limit))
		load := qs.DefineUpload[struct{}, int, int]("timeout/load", qs.Timeout(limit))
		deadlines := make(chan bool, 1)
		s := serverAt(t, addr, quietConfig(), func(n *qs.Node) {
			wait.Handle(n, func(ctx context.Context, how string) (string, error) {
				if how == "at once" {
					_, ok := ctx.Deadline()
					deadlines <- ok
					return how, nil
				}
				<-ctx.Done()
				if ctx.Err() != context.DeadlineExceeded {
					return "", qs.Errorf(qs.ErrInternal, "the context ended with %v", ctx.Err())
				}
				switch how {
				case "late":
					return how, nil
				case "coded":
					return "", qs.Errorf(qs.ErrUnavailable, "too slow: %w", ctx.Err())
				case "refused":
					return "", qs.Refuse(ctx.Err())
				}
				return "", ctx.Err()
			})
			items.Handle(n, func(_ context.Context, _ struct{}, send func([]byte) error) error {
				for {
					if err := send(make([]byte, longItem)); err != nil {
						return err
					}
				}
			})
			load.Handle(n, func(_ context.Context, _ struct{}, r *qs.Receiver[int]) (n int, err error) {
				for err == nil {
					_, err = r.Receive()
				}
				return 0, err
			})
		})
		to := peer(t, open(t, scheme(addr)+"://", qs.Config{}), s.Addr().String())
		ctx := context.Background() // without a deadline

		out, err := wait.Call(ctx, to, "at once")
		require.NoError(t, err)
		require.Equal(t, "at once", out)
		require.True(t, <-deadlines, "the handler's ctx has a deadline")
		out, err = wait.Call(ctx, to, "late")
		require.NoError(t, err, "an answer arrives all the same")
		require.Equal(t, "late", out)

		timedOut := func(err error, fate qs.Fate) {
			t.Helper()
			require.ErrorIs(t, err, qs.ErrTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, qs.ErrTimeout, qs.CodeOf(err))
			require.Equal(t, fate, qs.FateOf(err))
			_, remote := hg.RemoteOf(err)
			require.True(t, remote, "it was at the target")
			require.ErrorContains(t, err, limit.String()+" at the target (set by qs.Timeout or hg.RPC.Timeout)")
		}
		_, err = wait.Call(ctx, to, "")
		timedOut(err, qs.Ran)
		_, err = wait.Call(ctx, to, "refused")
		timedOut(err, qs.NotRun)
		_, err = wait.Call(ctx, to, "coded")
		require.Equal(t, qs.ErrUnavailable, qs.CodeOf(err))

		n := 0
		for _, err = range items.Call(ctx, to, struct{}{}) {
			if n++; n == 1 { // the reader does not read: the handler ends all the same
				for s.Streams() > 0 {
					require.NoError(t, s.HG().Sleep(ctx, time.Millisecond))
				}
			}
		}
		require.Error(t, err)
		require.ErrorIs(t, err, qs.ErrTimeout)

		up := load.Call(ctx, to, struct{}{})
		defer up.Close()
		require.NoError(t, up.Send(1))
		for !errors.Is(up.Send(1), io.EOF) { // the caller sends, and never calls CloseSend
			require.NoError(t, s.HG().Sleep(ctx, time.Millisecond))
		}
		_, err = up.CloseAndReceive()
		timedOut(err, qs.Ran)
	})
}

// TestMethodTimeoutAndDeadline checks that the caller's deadline counts where it is the earlier
// one, and the error does not name the target's.
func TestMethodTimeoutAndDeadline(t *testing.T) {
	t.Parallel()
	wait := qs.Define[struct{}, struct{}]("timeout/hour", qs.Timeout(time.Hour))
	_, to := pair(t, quietConfig(), func(n *qs.Node) {
		wait.Handle(n, func(ctx context.Context, _ struct{}) (struct{}, error) {
			<-ctx.Done()
			return struct{}{}, ctx.Err()
		})
	})
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	_, err := wait.Call(ctx, to, struct{}{})
	require.ErrorIs(t, err, qs.ErrTimeout)
	require.NotContains(t, err.Error(), "at the target")
}

// TestMethodTimeoutInQueue checks that the time that a request waits for its turn counts: it is
// refused, has not run, and the error names the limit that it waited for.
func TestMethodTimeoutInQueue(t *testing.T) {
	t.Parallel()
	wait := qs.Define[struct{}, struct{}]("timeout/queue", qs.Timeout(50*time.Millisecond), qs.MaxConcurrent(1))
	leave, at := make(chan struct{}), make(chan struct{}, 1)
	_, to := pair(t, quietConfig(), func(n *qs.Node) {
		wait.Handle(n, func(context.Context, struct{}) (struct{}, error) {
			at <- struct{}{}
			<-leave
			return struct{}{}, nil
		})
	})
	first := wait.Go(context.Background(), to, struct{}{})
	<-at
	_, err := wait.Call(context.Background(), to, struct{}{})
	require.ErrorIs(t, err, qs.ErrTimeout)
	require.ErrorIs(t, err, qs.ErrRefused)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	require.ErrorContains(t, err, "1 calls of timeout/queue are active")
	close(leave)
	_, err = first.Wait(context.Background())
	require.NoError(t, err, "the first has run beyond its time, and succeeds")
}

// TestMethodTimeoutOfNestedCall checks that a handler's error of a call of its own that timed out is
// not taken for its Timeout.
func TestMethodTimeoutOfNestedCall(t *testing.T) {
	t.Parallel()
	outer := qs.Define[struct{}, struct{}]("timeout/outer", qs.Timeout(time.Hour))
	_, to := pair(t, quietConfig(), func(n *qs.Node) {
		outer.Handle(n, func(context.Context, struct{}) (struct{}, error) {
			return struct{}{}, errors.Join(context.DeadlineExceeded, hg.ErrTimeout)
		})
	})
	_, err := outer.Call(testContext(t), to, struct{}{})
	require.ErrorIs(t, err, hg.ErrRemote)
	require.NotErrorIs(t, err, qs.ErrTimeout)
	require.Panics(t, func() { qs.Timeout(-1) })
}
