package qs_test

import (
	"context"
	"io"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// endWithDrain is the server interceptor in the comment of Draining.
func endWithDrain(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(qs.Draining(ctx), func() { cancel(qs.Errorf(qs.ErrDraining, "the server stops")) })()
	return next(ctx)
}

// TestDrainWithStuckReaders checks a server with 200 subscriptions, none of whose readers reads,
// whose context ends: its handlers end, those that wait for Draining and those that wait in send by
// an interceptor, and Serve returns nil. It cuts nothing off, and needs next to nothing of its
// ShutdownTimeout.
func TestDrainWithStuckReaders(t *testing.T) {
	t.Parallel()
	const readers = 200
	subscribe := qs.DefineStream[bool, []byte]("test/subscribe")
	eachTransport(t, func(t *testing.T, addr string) {
		cfg := quietConfig()
		cfg.ShutdownTimeout = 5 * time.Minute
		cfg.ServerInterceptors = []qs.Interceptor{endWithDrain}
		var ended, stuck atomic.Int64
		var lastEnd atomic.Int64 // by wall clock, for the log
		s := serverThatEnds(t, addr, cfg, func(n *qs.Node) {
			subscribe.Handle(n, func(ctx context.Context, floods bool, send func([]byte) error) error {
				defer func() { ended.Add(1); lastEnd.Store(time.Now().UnixNano()) }()
				if err := send([]byte("first")); err != nil {
					return err
				}
				if !floods {
					<-qs.Draining(ctx).Done()
					return qs.Errorf(qs.ErrUnavailable, "no more news")
				}
				stuck.Add(1)
				return send(make([]byte, longItem)) // more than the reader has room for
			})
		})
		client := open(t, scheme(addr)+"://", qs.Config{})
		to := peer(t, client, s.n.Addr().String())
		for i := range readers {
			next, stop := iter.Pull2(subscribe.Call(testContext(t), to, i%2 == 0))
			defer stop()
			item, err, _ := next()
			require.NoError(t, err)
			require.Equal(t, "first", string(item))
		}
		for stuck.Load() < readers/2 {
			require.NoError(t, client.HG().Sleep(testContext(t), time.Millisecond))
		}
		require.Zero(t, ended.Load())
		require.NoError(t, s.end(), "nothing is cut off")
		t.Logf("Serve has returned %v after the last handler", time.Since(time.Unix(0, lastEnd.Load())).Round(time.Millisecond))
		require.Equal(t, int64(readers), ended.Load())
	})
}

// TestDraining checks that Draining ends with Serve, with Shutdown and with Close, for the ctx of a
// handler and its children; for another ctx it does not.
func TestDraining(t *testing.T) {
	t.Parallel()
	wait := qs.Define[struct{}, string]("test/draining")
	for _, how := range []string{"Serve", "Shutdown", "Close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			running := make(chan context.Context, 1)
			s := serverThatEnds(t, "tcp://127.0.0.1:0", quietConfig(), func(n *qs.Node) {
				wait.Handle(n, func(ctx context.Context, _ struct{}) (string, error) {
					ctx, stop := context.WithCancel(ctx)
					defer stop()
					running <- qs.Draining(ctx)
					<-qs.Draining(ctx).Done()
					return "drained", nil
				})
			})
			f := wait.Go(testContext(t), peer(t, open(t, "tcp://", qs.Config{}), s.n.Addr().String()), struct{}{})
			draining := <-running
			require.NoError(t, draining.Err())
			switch how {
			case "Serve":
				require.NoError(t, s.end())
			case "Shutdown":
				require.NoError(t, s.n.Shutdown(testContext(t)))
			case "Close":
				require.NoError(t, s.n.Close())
			}
			require.ErrorIs(t, draining.Err(), context.Canceled)
			out, err := f.Wait(testContext(t))
			if how == "Close" {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				require.Equal(t, "drained", out)
			}
		})
	}
	require.NoError(t, qs.Draining(testContext(t)).Err())
	require.Nil(t, qs.Draining(context.Background()).Done())
}

// TestDrainingSimulated checks that in the simulator a handler waits for Draining by
// hg.Context.Wait, which needs no other event.
func TestDrainingSimulated(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	wait := qs.Define[struct{}, string]("test/draining")
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var out string
	var once sync.Once
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		wait.Handle(n, func(ctx context.Context, _ struct{}) (string, error) {
			once.Do(stop)
			err := n.HG().Wait(ctx, func() bool { return qs.Draining(ctx).Err() != nil })
			return "drained", err
		})
		require.NoError(t, n.Serve(ctx))
	})
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{})
		defer n.Close()
		to, err := n.Peer(context.Background(), "sim://server")
		require.NoError(t, err)
		out, err = wait.Call(context.Background(), to, struct{}{})
		require.NoError(t, err)
	})
	require.NoError(t, w.Run(time.Hour))
	require.Equal(t, "drained", strings.TrimSpace(out))
}

// TestDrainingHandlerCallsBack checks that while a server drains it refuses the ordinary calls of a client,
// also of one that has a session with it; but the handler of the session calls the client back, and
// lends it data.
func TestDrainingHandlerCallsBack(t *testing.T) {
	t.Parallel()
	type job struct{ Data qs.Source }
	eachTransport(t, func(t *testing.T, addr string) {
		work, load := qs.DefineDuplex[string, string, string]("test/work"), qs.Define[job, int]("test/load")
		ask := qs.Define[string, string]("test/ask")
		queue, err := qs.Open(addr, qs.Config{})
		require.NoError(t, err)
		data := randomBytes(1, 100_000)
		work.Handle(queue, func(ctx context.Context, _ string, s *qs.DuplexServer[string, string]) error {
			worker := qs.CallFrom(ctx).Peer // the process that has called; good while its session lasts
			for range s.All() {
				if _, err := load.Call(ctx, worker, job{Data: qs.Bytes(data)}); err != nil {
					return err
				}
			}
			return nil
		})
		ask.Handle(queue, func(_ context.Context, in string) (string, error) { return in, nil })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- queue.Serve(ctx) }()

		client := open(t, scheme(addr)+"://", qs.Config{})
		loaded := make(chan []byte, 2)
		load.Handle(client, func(ctx context.Context, in job) (int, error) {
			b, err := io.ReadAll(in.Data.Reader(ctx))
			loaded <- b
			return len(b), err
		})
		to := peer(t, client, queue.Addr().String())
		session := work.Call(testContext(t), to, "")
		defer session.Close()
		_, err = ask.Call(testContext(t), to, "x")
		require.NoError(t, err)
		require.NoError(t, session.Send("before"))
		require.Equal(t, data, <-loaded)
		stop()
		for !queue.HG().NA().Draining() {
			runtime.Gosched()
		}
		_, err = ask.Call(testContext(t), to, "x")
		require.ErrorIs(t, err, qs.ErrDraining)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		require.NoError(t, session.Send("while it drains"))
		session.CloseSend()
		_, err = session.Receive()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, data, <-loaded)
		require.NoError(t, <-ended)
	})
}

// TestInterruptedHandler checks a handler that runs beyond ShutdownTimeout, whose ctx is canceled
// then: its error without a code of its own is ErrAborted with Ran at its caller, of a stream
// behind its items; its own code stays.
func TestInterruptedHandler(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	calls := qs.Define[bool, int]("test/interrupted")
	items := qs.DefineStream[bool, int]("test/interrupted-items")
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{ShutdownTimeout: time.Second})
		until := func(ctx context.Context, own bool) error {
			err := n.Sleep(ctx, time.Hour)
			if own {
				return qs.Errorf(qs.ErrUnavailable, "interrupted: %w", err)
			}
			return err
		}
		calls.Handle(n, func(ctx context.Context, own bool) (int, error) { return 0, until(ctx, own) })
		items.Handle(n, func(ctx context.Context, own bool, send func(int) error) error {
			if err := send(1); err != nil {
				return err
			}
			return until(ctx, own)
		})
		require.ErrorContains(t, n.Serve(ctx), "not complete within 1s (qs.Config.ShutdownTimeout)")
	})
	const interrupted = "target: interrupted by the shutdown of the process: not complete within 1s (qs.Config.ShutdownTimeout)"
	w.Go("client", func() {
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{})
		defer n.Close()
		to, err := n.Peer(context.Background(), "sim://server")
		require.NoError(t, err)
		plain, coded := calls.Go(context.Background(), to, false), calls.Go(context.Background(), to, true)
		arrived := 0
		for item, err := range items.Call(context.Background(), to, false) {
			if arrived += item; err != nil {
				require.ErrorIs(t, err, qs.ErrAborted)
				require.ErrorContains(t, err, interrupted)
				require.Equal(t, qs.Ran, qs.FateOf(err))
				break
			}
			stop()
		}
		require.Equal(t, 1, arrived)
		_, err = plain.Wait(context.Background())
		require.ErrorIs(t, err, qs.ErrAborted)
		require.ErrorContains(t, err, interrupted)
		require.Equal(t, qs.Ran, qs.FateOf(err))
		_, err = coded.Wait(context.Background())
		require.ErrorIs(t, err, qs.ErrUnavailable)
		require.NotContains(t, err.Error(), interrupted)
	})
	require.NoError(t, w.Run(time.Hour))
}
