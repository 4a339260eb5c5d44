package qs_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestCloseInMidCalls checks that a node that closes in the middle of calls, its own or those of
// others, ends them all, and no goroutine stays.
func TestCloseInMidCalls(t *testing.T) {
	// Not parallel: it counts goroutines.
	slow := qs.Define[int, int]("test/slow")
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
			require.NoError(t, err)
			begun := make(chan struct{}, 1000)
			slow.Handle(s, func(ctx context.Context, _ int) (int, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return 0, ctx.Err()
			})
			put.Handle(s, func(ctx context.Context, in putIn) ([]byte, error) {
				r := in.Body.Reader(ctx)
				_, err := io.ReadFull(r, make([]byte, 3<<20))
				begun <- struct{}{}
				for err == nil {
					_, err = r.Read(make([]byte, 1<<20))
				}
				return nil, err
			})
			get.Handle(s, func(ctx context.Context, in getIn) (int, error) {
				w := in.Body.Writer(ctx)
				_, err := w.Write(make([]byte, 3<<20))
				begun <- struct{}{}
				for err == nil {
					_, err = w.Write(make([]byte, 1<<20))
				}
				return 0, err
			})
			served := make(chan error, 1)
			go func() { served <- s.Serve(context.Background()) }()
			c, err := qs.Open("tcp://", qs.Config{})
			require.NoError(t, err)
			to, err := c.Peer(testContext(t), s.Addr().String())
			require.NoError(t, err)
			var (
				all  sync.WaitGroup
				mu   sync.Mutex
				ends []error
			)
			call := func(f func(ctx context.Context) error) {
				all.Go(func() {
					err := f(testContext(t))
					mu.Lock()
					defer mu.Unlock()
					ends = append(ends, err)
				})
			}
			for range 30 {
				call(func(ctx context.Context) error { _, err := slow.Call(ctx, to, 1); return err })
				call(func(ctx context.Context) error { _, err := slow.Go(ctx, to, 1).Wait(ctx); return err })
			}
			endless := readerFunc(func(b []byte) (int, error) { return len(b), nil })
			for range 3 {
				call(func(ctx context.Context) error {
					_, err := put.Call(ctx, to, putIn{"", qs.Reader(endless)})
					return err
				})
				call(func(ctx context.Context) error {
					_, err := get.Call(ctx, to, getIn{"", 0, qs.Writer(io.Discard)})
					return err
				})
			}
			for range 66 {
				<-begun
			}
			closing := map[string]*qs.Node{"client": c, "server": s}
			require.NoError(t, closing[who].Close())
			all.Wait()
			for _, err := range ends {
				require.True(t, errors.Is(err, qs.ErrClosed) || errors.Is(err, qs.ErrPeerLost) || errors.Is(err, hg.ErrRemote), "%v", err)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			require.NoError(t, <-served)
			left := func() bool { return runtime.NumGoroutine() > before }
			for end := time.Now().Add(30 * time.Second); left() && time.Now().Before(end); {
				runtime.Gosched()
			}
			if left() {
				b := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
			}
		})
	}
}

// TestServeTwice checks that a second Serve of a node is refused: it would drain the first at its
// own end. The first is not disturbed.
func TestServeTwice(t *testing.T) {
	t.Parallel()
	says := "qs: Serve called twice on one Node"
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) {
			over, stop := context.WithCancel(context.Background())
			stop()
			err := n.Serve(over)
			require.ErrorIs(t, err, qs.ErrInvalid)
			require.EqualError(t, err, says)
			return p, nil
		})
	})
	for range 2 {
		_, err := double.Call(testContext(t), to, point{})
		require.NoError(t, err)
	}
	n := open(t, "tcp://127.0.0.1:0", qs.Config{})
	over, stop := context.WithCancel(context.Background())
	stop()
	require.NoError(t, n.Serve(over))
	require.EqualError(t, n.Serve(over), says)
}
