package qs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	stuckItem = 3 << 10 // four of them are in flight at once,
	longItem  = 1 << 20 // and one of these waits for the loop of the caller
)

// TestStreamOfStuckReader checks that a server can end a stream whose caller does not read: by the
// error of its handler, or by the end of the context that an interceptor gave to next. It does so
// at once if the caller's process takes messages in, and after a second if it does not. All that
// was sent arrives if the handler returns nil, and if the process takes it in. Shutdown does not
// wait for the reader.
func TestStreamOfStuckReader(t *testing.T) {
	t.Parallel()
	stream := qs.DefineStream[string, []byte]("test/stuck")
	evicted := errors.New("evicted")
	for _, how := range []string{"nil", "error", "panic", "canceled", "canceled nil"} {
		for _, driven := range []bool{true, false} {
			if how == "nil" && !driven {
				continue // all arrives once the loop continues
			}
			name := how
			if driven {
				name += " driven"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				eachTransport(t, func(t *testing.T, addr string) {
					reading, returned := make(chan struct{}), make(chan error, 1)
					blocked, cancel := make(chan error, 1), make(chan context.CancelCauseFunc, 1)
					cfg := quietConfig()
					cfg.ShutdownTimeout = 10 * time.Second
					cfg.ServerInterceptors = []qs.Interceptor{func(ctx context.Context, _ *qs.Call, next func(context.Context) error) (err error) {
						defer func() { returned <- err }()
						ctx, stop := context.WithCancelCause(ctx)
						defer stop(nil)
						cancel <- stop
						return next(ctx)
					}}
					s := serverThatEnds(t, addr, cfg, func(n *qs.Node) {
						stream.Handle(n, func(ctx context.Context, how string, send func([]byte) error) error {
							for i := range 4 {
								if err := send(make([]byte, stuckItem+i)); err != nil {
									return err
								}
							}
							<-reading
							switch how {
							case "error":
								go func() { blocked <- send(make([]byte, longItem)) }()
								return qs.Errorf(qs.ErrNotFound, "no more")
							case "panic":
								panic("oh")
							case "canceled", "canceled nil":
								stop := <-cancel
								go func() { blocked <- send(make([]byte, longItem)) }()
								stop(evicted)
								err := <-blocked
								blocked <- err
								if how == "canceled nil" {
									err = nil
								}
								return err
							}
							return nil
						})
					})
					client := open(t, scheme(addr)+"://", qs.Config{})
					if driven {
						driving, stop := context.WithCancel(context.Background())
						drove := make(chan error, 1)
						go func() { drove <- client.HG().NA().Upper().Loop().Drive(driving, nil, nil) }()
						defer func() { stop(); <-drove }()
					}
					n := 0
					var last error
					for item, err := range stream.Call(testContext(t), peer(t, client, s.n.Addr().String()), how) {
						if last = err; err != nil {
							break
						}
						require.Len(t, item, stuckItem+n, "items in order")
						if n++; n > 1 {
							continue
						}
						close(reading)
						err := <-returned // while the loop stands still
						require.NoError(t, s.end(), "Shutdown waits for a handler whose context has ended")
						switch how {
						case "nil":
							require.NoError(t, err)
						case "error":
							require.ErrorIs(t, err, qs.ErrNotFound)
							require.Error(t, <-blocked)
						case "canceled", "canceled nil":
							require.ErrorIs(t, <-blocked, evicted)
							require.True(t, how == "canceled nil" && err == nil || errors.Is(err, evicted), "%v", err)
						}
						require.Zero(t, s.n.Streams())
					}
					switch {
					case how == "nil":
						require.NoError(t, last)
						require.Equal(t, 4, n)
					case how == "error" && driven:
						require.ErrorIs(t, last, qs.ErrNotFound)
						require.Equal(t, 4, n, "the error is behind the items")
					case how == "canceled nil" && last == nil: // the process had it all before
						require.Equal(t, 4, n)
					default:
						require.Error(t, last)
					}
				})
			})
		}
	}
}

// TestStuckReaderAndWriter checks that a server ends a request whose Reader or Writer is stuck at the
// caller by the end of the context that an interceptor gave to next. Shutdown does not wait for it.
func TestStuckReaderAndWriter(t *testing.T) {
	t.Parallel()
	mixed := qs.Define[mixedIn, int]("test/stuckmixed")
	evicted := errors.New("evicted")
	for _, how := range []string{"read", "write"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			eachTransport(t, func(t *testing.T, addr string) {
				ends := make(chan error, 1)
				end := newStuckStream()
				defer close(end.release)
				s := serverThatEnds(t, addr, qs.Config{ShutdownTimeout: 10 * time.Second, ServerInterceptors: []qs.Interceptor{
					func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
						ctx, stop := context.WithCancelCause(ctx)
						go func() {
							<-end.begun
							stop(evicted)
						}()
						err := next(ctx)
						ends <- err
						return err
					}}}, func(n *qs.Node) {
					mixed.Handle(n, func(ctx context.Context, in mixedIn) (int, error) {
						b := make([]byte, 5<<20)
						if how == "read" {
							return in.From.Reader(ctx).Read(b)
						}
						return in.Into.Writer(ctx).Write(b)
					})
				})
				client := open(t, scheme(addr)+"://", qs.Config{})
				in := mixedIn{Into: qs.Writer(end)}
				if how == "read" {
					in = mixedIn{From: qs.Reader(end)}
				}
				_, err := mixed.Call(testContext(t), peer(t, client, s.n.Addr().String()), in)
				require.Error(t, err)
				require.ErrorIs(t, <-ends, evicted)
				require.NoError(t, s.end(), "Shutdown waits for a handler whose context has ended")
			})
		})
	}
}

// TestStuckWriter checks that a handler whose caller's Writer is stuck returns as soon as the bytes
// that it wrote have left or wait to leave, and the server may end: the call continues at its
// caller, until the Writer has got all, or the caller's ctx ends.
func TestStuckWriter(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := serverThatEnds(t, addr, qs.Config{ShutdownTimeout: 10 * time.Second}, func(n *qs.Node) { serveBulk(t, n) })
		client := open(t, scheme(addr)+"://", qs.Config{})
		to := peer(t, client, s.n.Addr().String())
		for _, how := range []string{"canceled", "later"} {
			end := newStuckStream()
			ctx, cancel := context.WithCancel(testContext(t))
			sink := qs.Writer(end)
			f := get.Go(ctx, to, getIn{"copy", 5000, sink})
			<-end.begun
			require.Eventually(t, func() bool { return s.n.HG().Stats().Active == 0 }, 30*time.Second, time.Millisecond, "the handler waits for the Writer")
			require.Eventually(t, func() bool { return client.HG().NA().Stats().Outstanding == 0 }, 30*time.Second, time.Millisecond, "the answer does not arrive")
			if how == "canceled" {
				cancel()
				_, err := f.Wait(testContext(t))
				require.ErrorIs(t, err, qs.ErrCanceled)
				require.Equal(t, qs.Ran, qs.FateOf(err))
				close(end.release)
				continue
			}
			require.NoError(t, s.end(), "Shutdown waits for the Writer")
			close(end.release)
			_, err := f.Wait(testContext(t))
			require.NoError(t, err)
			require.EqualValues(t, 5000, sink.Filled())
			cancel()
		}
	})
}

// An endingServer is a node in Serve, and how to end that.
type endingServer struct {
	n   *qs.Node
	end func() error // returns the result of Serve
}

func serverThatEnds(t *testing.T, addr string, cfg qs.Config, register func(n *qs.Node)) endingServer {
	t.Helper()
	n, err := qs.Open(addr, cfg)
	require.NoError(t, err)
	register(n)
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- n.Serve(ctx) }()
	end := sync.OnceValue(func() error { stop(); return <-served })
	t.Cleanup(func() { _ = end() })
	return endingServer{n, end}
}

func scheme(addr string) string {
	s, _, _ := strings.Cut(addr, "://")
	return s
}
