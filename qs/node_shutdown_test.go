package qs_test

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestShutdownUnderCalls checks a Node that is shut down while goroutines call. Nothing is cut off,
// each call has run or is refused, and so Shutdown returns nil.
func TestShutdownUnderCalls(t *testing.T) {
	t.Parallel()
	s := server(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
	})
	for range 30 {
		c, err := qs.Open("tcp://", qs.Config{})
		require.NoError(t, err)
		to := peer(t, c, s.Addr().String())
		var callers sync.WaitGroup
		var made atomic.Int64
		for range 4 {
			callers.Go(func() {
				for {
					if _, err := repeat.Call(testContext(t), to, "x"); err != nil {
						if qs.FateOf(err) != qs.NotRun {
							t.Errorf("a call was cut off: %v", err)
						}
						return
					}
					made.Add(1)
				}
			})
		}
		for made.Load() < 200 {
			runtime.Gosched()
		}
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		require.NoError(t, c.Shutdown(ctx))
		stop()
		callers.Wait()
	}
}

// TestShutdownUnderStream checks a stream whose handler has returned, and whose caller reads
// slowly: Shutdown waits for it, and returns an error when its time is over.
func TestShutdownUnderStream(t *testing.T) {
	t.Parallel()
	const items = 60 // of 1 KiB: more than a window of 16 KiB, less than may be written beyond
	big := qs.DefineStream[struct{}, []byte]("test/big")
	eachTransport(t, func(t *testing.T, addr string) {
		for _, reads := range []bool{true, false} {
			n := serverAt(t, addr, qs.Config{}, func(n *qs.Node) {
				big.Handle(n, func(_ context.Context, _ struct{}, send func([]byte) error) error {
					for range items {
						if err := send(make([]byte, 1<<10)); err != nil {
							return err
						}
					}
					return nil
				})
			})
			scheme, _, _ := strings.Cut(addr, ":")
			to := peer(t, open(t, scheme+"://", qs.Config{}), n.Addr().String())
			next, stop := iter.Pull2(big.Call(testContext(t), to, struct{}{}))
			_, err, _ := next()
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			if reads {
				ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
			}
			ended := make(chan error, 1)
			go func() { ended <- n.Shutdown(ctx) }()
			if reads {
				select {
				case err := <-ended:
					t.Errorf("Shutdown has not waited for the reader: %v", err)
				case <-time.After(time.Second): // peers have confirmed everything by then that has left
				}
			} else {
				err := <-ended
				// On a busy machine the handler has not returned, or its response is not confirmed.
				require.Regexp(t, `1 stream(, 1 handler|, 1 unconfirmed message)* left`, err.Error())
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			got := 1
			for _, err, ok := next(); ok && err == nil; _, err, ok = next() {
				got++
			}
			if reads {
				require.Equal(t, items, got)
				require.NoError(t, <-ended)
			} else {
				require.Less(t, got, items)
			}
			stop()
			cancel()
		}
	})
}

// TestServeBesideShutdown checks that Shutdown and Close may be called at any moment of Serve,
// before it too: Serve returns nil. It is a test for the race detector.
func TestServeBesideShutdown(t *testing.T) {
	t.Parallel()
	for i := range 300 {
		n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
		require.NoError(t, err)
		served := make(chan error, 1)
		go func() { served <- n.Serve(context.Background()) }()
		for range i % 20 {
			runtime.Gosched()
		}
		if i%4 == 0 {
			require.NoError(t, n.Close())
		} else {
			require.NoError(t, n.Shutdown(testContext(t)))
		}
		require.NoError(t, <-served)
	}
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	require.NoError(t, n.Shutdown(testContext(t)))
	require.NoError(t, n.Serve(context.Background()))
}

// TestShutdownInHandler checks that a Shutdown in a handler is refused, and leaves the node as it
// was: its names are looked up, and calls continue.
func TestShutdownInHandler(t *testing.T) {
	t.Parallel()
	ender, inline := qs.Define[int, int]("test/ender"), qs.Define[int, int]("test/ender/inline", qs.Inline())
	s := server(t, qs.Config{}, func(n *qs.Node) {
		end := func(context.Context, int) (int, error) {
			require.ErrorIs(t, n.Shutdown(context.Background()), na.ErrBusy)
			return 1, nil
		}
		ender.Handle(n, end)
		repeat.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
		inline.Handle(n, end)
	})
	c := open(t, "tcp://", qs.Config{})
	to := peer(t, c, s.Addr().String())
	for _, m := range []*qs.Method[int, int]{ender, inline} {
		_, err := m.Call(testContext(t), to, 1)
		require.NoError(t, err)
		p, err := s.PeerWith(testContext(t), qs.PeerOptions{Resolver: fixedResolver{s.Addr().String()}}, "itself")
		require.NoError(t, err)
		_, err = repeat.Call(testContext(t), p, "x")
		require.NoError(t, err)
	}
}

// A fixedResolver is a Resolver with a constant answer.
type fixedResolver [1]string

func (f fixedResolver) Watch(_ context.Context, _ string, update func([]string, error)) error {
	update(f[:], nil)
	return nil
}

// TestCloseInHandler checks that a Close in a handler does not wait for that handler.
func TestCloseInHandler(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	ender := qs.Define[int, int]("test/closer")
	var took time.Duration
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		ender.Handle(n, func(context.Context, int) (int, error) {
			begun := w.Now()
			require.NoError(t, n.Close())
			took = w.Now() - begun
			return 1, nil
		})
		require.NoError(t, n.Serve(context.Background()))
	})
	w.Go("client", func() {
		n := simulated(t, w, "sim://", qs.Config{})
		_, err := ender.Call(context.Background(), peer(t, n, "sim://server"), 1)
		require.Error(t, err)
		require.NoError(t, n.Close())
	})
	require.NoError(t, w.Run(time.Hour))
	require.Less(t, took, 10*time.Millisecond, "virtual time")
}

// TestHandleBesideCalls checks that a node that calls a method may begin to serve it, too: no call
// is affected.
func TestHandleBesideCalls(t *testing.T) {
	t.Parallel()
	a, b := server(t, qs.Config{}, func(*qs.Node) {}), server(t, qs.Config{}, func(*qs.Node) {})
	p := peer(t, a, b.Addr().String())
	for i := range 300 {
		m := qs.Define[int, int](fmt.Sprint("test/both", i))
		h := func(_ context.Context, i int) (int, error) { return i, nil }
		m.Handle(b, h)
		_, err := m.Call(testContext(t), p, 1)
		require.NoError(t, err)
		done := make(chan struct{})
		ends := make(chan error, 4)
		for range 4 {
			go func() {
				var err error
				for over := false; !over && err == nil; {
					_, err = m.Call(testContext(t), p, 1)
					select {
					case <-done:
						over = true
					default:
					}
				}
				ends <- err
			}()
		}
		m.Handle(a, h)
		close(done)
		for range 4 {
			require.NoError(t, <-ends)
		}
	}
}

// TestShutdownSeenLate checks that a handler that calls Context for the first time after Shutdown
// has canceled it gets a canceled one, as one does that has waited for it.
func TestShutdownSeenLate(t *testing.T) {
	t.Parallel()
	begun, canceled, seen := make(chan bool, 2), make(chan bool), make(chan error, 1)
	m := qs.Define[bool, bool]("test/seen-late")
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{ShutdownTimeout: -1})
	require.NoError(t, err)
	m.Handle(n, func(ctx context.Context, waits bool) (bool, error) {
		begun <- true
		if waits {
			<-ctx.Done()
			close(canceled)
		} else {
			<-canceled
			seen <- ctx.Err()
		}
		return true, nil
	})
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- n.Serve(ctx) }()
	client := open(t, "tcp://", qs.Config{})
	to := peer(t, client, n.Addr().String())
	futures := []*qs.Future[bool]{m.Go(testContext(t), to, true), m.Go(testContext(t), to, false)}
	<-begun
	<-begun
	stop()
	require.ErrorIs(t, <-seen, context.Canceled)
	require.Error(t, <-served, "two handlers were canceled")
	for _, f := range futures {
		_, _ = f.Wait(testContext(t)) // answered, or lost with the node
	}
}
