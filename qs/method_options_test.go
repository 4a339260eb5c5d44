package qs_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestOneWayOptions checks that a one-way method has a codec, and a bound of its requests, of its
// own.
func TestOneWayOptions(t *testing.T) {
	t.Parallel()
	raw := qs.DefineOneWay[[]byte]("options/one-way", qs.WithCodec(codec.Raw), qs.MaxConcurrent(2), qs.MaxQueue(0))
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var ran []string
	var dropped int64
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		raw.Handle(n, func(_ context.Context, in []byte) {
			ran = append(ran, string(in))
			w.Sleep(time.Second)
		})
		require.NoError(t, n.Serve(ctx))
		dropped = n.HG().Stats().Dropped
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{})
		defer n.Close()
		to, err := n.Peer(ctx, "sim://server")
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, raw.Send(ctx, to, []byte("bytes as they are")))
		}
		w.Sleep(100 * time.Millisecond)
	})
	require.NoError(t, w.Run(time.Hour))
	require.Equal(t, []string{"bytes as they are", "bytes as they are"}, ran)
	require.Equal(t, int64(3), dropped)
}

// TestMethodWithoutQueue checks that with MaxQueue(0) one more than MaxConcurrent is refused at
// once; a later option replaces an earlier one.
func TestMethodWithoutQueue(t *testing.T) {
	t.Parallel()
	var active atomic.Int32
	at, leave := make(chan struct{}), make(chan struct{})
	m := qs.Define[int, int]("options/no-queue", qs.MaxConcurrent(7), qs.MaxConcurrent(1), qs.MaxQueue(0))
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(_ context.Context, in int) (int, error) {
			active.Add(1)
			close(at)
			<-leave
			return in, nil
		})
	})
	first := m.Go(testContext(t), to, 1)
	<-at
	_, err := m.Call(testContext(t), to, 2)
	require.ErrorIs(t, err, qs.ErrExhausted)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	close(leave)
	out, err := first.Wait(testContext(t))
	require.NoError(t, err)
	require.Equal(t, 1, out)
	require.Equal(t, int32(1), active.Load())
}

// TestQueueAndEnvelopes checks that requests in the queue of a method keep the 32 envelopes of
// their client process. So one process reaches a MaxQueue below that; two processes together reach
// one of 32.
func TestQueueAndEnvelopes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ queue, clients, refused int }{
		{31, 1, 40 - 1 - 31}, // each refusal gives its envelope back
		{32, 1, 0},           // the rest waits at the client
		{1000, 1, 0},
		{32, 2, 80 - 1 - 32},
	} {
		w := sim.NewWorld(sim.Config{Seed: 1})
		ctx, stop := context.WithCancel(context.Background())
		tight := qs.Define[int, int]("options/tight", qs.MaxConcurrent(1), qs.MaxQueue(c.queue))
		other := qs.Define[int, int]("options/other")
		refused, late, stalled, left := 0, 0, 0, c.clients
		w.Go("server", func() {
			n := simulated(t, w, "sim://server", qs.Config{})
			tight.Handle(n, func(ctx context.Context, i int) (int, error) { return i, n.Sleep(ctx, time.Hour) })
			other.Handle(n, func(_ context.Context, i int) (int, error) { return i, nil })
			_ = n.Serve(ctx)
		})
		for i := range c.clients {
			w.Go(fmt.Sprint("client", i), func() {
				w.Sleep(time.Millisecond)
				n := simulated(t, w, "sim://", qs.Config{})
				defer n.Close()
				to, err := n.Peer(ctx, "sim://server")
				require.NoError(t, err)
				soon, cancel := w.WithTimeout(ctx, time.Second)
				defer cancel()
				var all []*qs.Future[int]
				for range 40 {
					all = append(all, tight.Go(soon, to, 1))
				}
				w.Sleep(100 * time.Millisecond)
				before, cancel := w.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				if _, err := other.Call(before, to, 1); err != nil {
					require.ErrorIs(t, err, qs.ErrTimeout)
					require.Equal(t, qs.NotRun, qs.FateOf(err))
					stalled++
				}
				for _, f := range all {
					switch _, err := f.Wait(ctx); qs.CodeOf(err) {
					case qs.ErrExhausted:
						require.Equal(t, qs.NotRun, qs.FateOf(err))
						refused++
					default:
						require.ErrorIs(t, err, qs.ErrTimeout)
						late++
					}
				}
				if left--; left == 0 {
					stop()
				}
			})
		}
		require.NoError(t, w.Run(2*time.Hour))
		w.Close()
		stop()
		require.Equal(t, c.refused, refused, "%+v", c)
		require.Equal(t, 40*c.clients-c.refused, late, "%+v", c)
		if c.queue < 32 {
			require.Zero(t, stalled, "%+v", c)
		} else if c.clients == 1 {
			require.Equal(t, 1, stalled, "another method waits for an envelope, too: %+v", c)
		}
	}
}

// TestBadOptions checks that an invalid option is a panic that names it.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for text, f := range map[string]func(){
		"qs: MaxConcurrent is -1, want a positive number, or 0 for no limit": func() { qs.MaxConcurrent(-1) },
		"qs: MaxQueue is -1, want 0 or more":                                 func() { qs.MaxQueue(-1) },
		"qs: method options/none has a nil Interceptor":                      func() { qs.DefineOneWay[int]("options/none", qs.Interceptor(nil)) },
		"qs: method options/nil has a nil Option":                            func() { qs.Define[int, int]("options/nil", nil) },
	} {
		require.PanicsWithValue(t, text, f)
	}
}

// TestInterceptorOfMethod checks that the interceptor of a method wraps its calls, inside those of
// the node, and nothing at the target.
func TestInterceptorOfMethod(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	say := func(what string) qs.Interceptor {
		return func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			mu.Lock()
			order = append(order, fmt.Sprint(what, " ", c.Attempt))
			mu.Unlock()
			return next(ctx)
		}
	}
	ran := 0
	wrapped := qs.Define[int, int]("options/wrapped", qs.Idempotent(), say("method"), qs.Retry(qs.RetryPolicy{Backoff: -1}), say("attempt"))
	plain := qs.Define[int, int]("options/plain", qs.Idempotent())
	rows := qs.DefineStream[int, int]("options/rows", say("stream"))
	sent := qs.DefineOneWay[int]("options/sent", say("one-way"))
	got := make(chan int, 1)
	s := server(t, qs.Config{}, func(n *qs.Node) {
		fails := func(_ context.Context, in int) (int, error) {
			if ran++; ran == 1 {
				return 0, qs.Errorf(qs.ErrUnavailable, "not yet")
			}
			return in, nil
		}
		wrapped.Handle(n, fails)
		plain.Handle(n, fails)
		rows.Handle(n, func(_ context.Context, in int, send func(int) error) error { return send(in) })
		sent.Handle(n, func(_ context.Context, in int) { got <- in })
	})
	for _, c := range []struct {
		node []qs.Interceptor
		want []string
	}{
		{nil, []string{"method 1", "attempt 1", "attempt 2"}},
		{[]qs.Interceptor{say("node")}, []string{"node 1", "method 1", "attempt 1", "attempt 2"}},
	} {
		n := open(t, "tcp://", qs.Config{ClientInterceptors: c.node})
		to := peer(t, n, s.Addr().String())
		ran, order = 0, nil
		out, err := wrapped.Call(testContext(t), to, 5)
		require.NoError(t, err)
		require.Equal(t, 5, out)
		require.Equal(t, c.want, order)
		ran, order = 0, nil
		_, err = plain.Call(testContext(t), to, 5)
		require.ErrorIs(t, err, qs.ErrUnavailable)
		require.Len(t, order, len(c.node))
	}
	n := open(t, "tcp://", qs.Config{})
	to := peer(t, n, s.Addr().String())
	order = nil
	for item, err := range rows.Call(testContext(t), to, 7) {
		require.NoError(t, err)
		require.Equal(t, 7, item)
	}
	require.NoError(t, sent.Send(testContext(t), to, 8))
	require.Equal(t, 8, <-got)
	require.Equal(t, []string{"stream 1", "one-way 1"}, order)
}

// TestBudgetOfNode checks that nodes whose calls one Retry repeats have a budget each.
func TestBudgetOfNode(t *testing.T) {
	t.Parallel()
	ran := 0
	m := qs.Define[int, int]("options/budget", qs.Idempotent(), qs.Retry(qs.RetryPolicy{Attempts: 1000, Backoff: -1}))
	s := server(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(context.Context, int) (int, error) {
			ran++
			return 0, qs.Errorf(qs.ErrUnavailable, "never")
		})
	})
	for range 3 {
		n := open(t, "tcp://", qs.Config{})
		ran = 0
		_, err := m.Call(testContext(t), peer(t, n, s.Addr().String()), 1)
		require.ErrorContains(t, err, "RetryPolicy.BudgetRatio")
		require.Equal(t, 12, ran, "the first, 10, and a tenth of the first")
	}
}

// TestRetryOfMethodAndNode checks that the method's Retry counts, and not its node's, whichever
// allows more attempts.
func TestRetryOfMethodAndNode(t *testing.T) {
	t.Parallel()
	for _, attempts := range []struct{ node, method int }{{5, 2}, {2, 5}} {
		ran := 0
		m := qs.Define[int, int]("options/both", qs.Idempotent(), qs.Retry(qs.RetryPolicy{Attempts: attempts.method, Backoff: -1}))
		s := server(t, qs.Config{}, func(n *qs.Node) {
			m.Handle(n, func(context.Context, int) (int, error) { ran++; return 0, qs.Errorf(qs.ErrUnavailable, "never") })
		})
		n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
			qs.LogCalls(slog.New(slog.DiscardHandler)), qs.Retry(qs.RetryPolicy{Attempts: attempts.node, Backoff: -1}),
		}})
		_, err := m.Call(testContext(t), peer(t, n, s.Addr().String()), 1)
		require.ErrorIs(t, err, qs.ErrUnavailable)
		require.Equal(t, attempts.method, ran)
		require.Equal(t, 1, strings.Count(err.Error(), " attempts in "), err.Error())
	}
}

// TestLogCallsWithoutPeer checks that a call is refused when an interceptor before LogCalls has
// removed its Peer.
func TestLogCallsWithoutPeer(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			c.Peer = qs.Peer{}
			return next(ctx)
		},
		qs.LogCalls(slog.New(slog.DiscardHandler)),
	}})
	s := server(t, qs.Config{}, func(*qs.Node) {})
	_, err := qs.Define[int, int]("options/nobody").Call(testContext(t), peer(t, n, s.Addr().String()), 1)
	require.ErrorIs(t, err, qs.ErrInvalid)
}
