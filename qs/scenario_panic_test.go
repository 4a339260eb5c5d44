package qs_test

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A panickingValue value runs a function in its encoder.
type panickingValue struct{ What string }

func (r panickingValue) MarshalBinary() ([]byte, error) {
	switch r.What {
	case "panic":
		panic("rude")
	case "end":
		runtime.Goexit()
	}
	return []byte(r.What), nil
}

func (r *panickingValue) UnmarshalBinary(b []byte) error {
	r.What = string(b)
	return nil
}

// TestPanicsOfTheCaller checks that a panic of a call occurs where the program calls, waits or
// loops, never on a goroutine of the library; a goroutine that ends before anything was sent leaves
// NotRun.
func TestPanicsOfTheCaller(t *testing.T) {
	t.Parallel()
	m := qs.Define[panickingValue, string]("panic/method", qs.Idempotent())
	s := qs.DefineStream[panickingValue, string]("panic/stream")
	serve := func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in panickingValue) (string, error) {
			if in.What == "hedge" {
				<-ctx.Done()
			}
			return in.What, nil
		})
		s.Handle(n, func(_ context.Context, in panickingValue, send func(string) error) error { return send(in.What) })
	}
	again := false
	intercept := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		switch what := c.In.(*panickingValue).What; {
		case what == "intercept", what == "hedge" && again:
			panic("rude")
		case what == "hedge":
			again = true
		case what == "intercept end":
			runtime.Goexit()
		case what == "after":
			_ = next(ctx)
			panic("rude")
		}
		return next(ctx)
	}
	one, two := server(t, qs.Config{}, serve), server(t, qs.Config{}, serve)
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Hedge(time.Millisecond), intercept}})
	to := peer(t, n, one.Addr().String(), two.Addr().String())
	ctx := testContext(t)
	for _, what := range []string{"panic", "intercept", "after"} {
		in := panickingValue{what}
		require.PanicsWithValue(t, "rude", func() { _, _ = m.Call(ctx, to, in) }, what)
		require.PanicsWithValue(t, "rude", func() { _, _ = m.Go(ctx, to, in).Wait(ctx) }, what)
		require.PanicsWithValue(t, "rude", func() { _, _, _ = qs.WaitFirst(ctx, m.Go(ctx, to, in)) }, what)
		require.PanicsWithValue(t, "rude", func() { qs.CallAll(ctx, []qs.Peer{to}, m, in) }, what)
		require.PanicsWithValue(t, "rude", func() {
			for _, err := range s.Call(ctx, to, in) {
				require.NoError(t, err)
			}
		}, what)
	}
	require.PanicsWithValue(t, "rude", func() { _, _ = m.Call(ctx, to, panickingValue{"hedge"}) })
	for _, what := range []string{"end", "intercept end"} {
		_, err := m.Go(ctx, to, panickingValue{what}).Wait(ctx)
		require.ErrorIs(t, err, qs.ErrInvalid, what)
		require.Equal(t, qs.NotRun, qs.FateOf(err), what)
		for _, err := range s.Call(ctx, to, panickingValue{what}) {
			require.ErrorIs(t, err, qs.ErrInvalid, what)
			require.Equal(t, qs.NotRun, qs.FateOf(err), what)
		}
	}
	out, err := m.Call(ctx, to, panickingValue{"polite"})
	require.NoError(t, err)
	require.Equal(t, "polite", out)
}

// TestPanicsOfContexts checks that a context that is nil, or whose methods panic, ends the handler
// that reads or writes a stream with it, or a Ping. The handle of the call is closed: the node
// shuts down without an error.
func TestPanicsOfContexts(t *testing.T) {
	t.Parallel()
	var none context.Context
	n := open(t, "tcp://127.0.0.1:0", qs.Config{Logger: slog.New(slog.DiscardHandler)})
	take.Handle(n, func(_ context.Context, in struct{ Body qs.Source }) (int64, error) {
		return io.Copy(io.Discard, in.Body.Reader(none))
	})
	give.Handle(n, func(_ context.Context, in struct{ Body qs.Sink }) (int64, error) {
		return io.Copy(in.Body.Writer(none), io.LimitReader(rand.Reader, 2<<20))
	})
	serving, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(serving) }()
	client := open(t, "tcp://", qs.Config{})
	to := peer(t, client, n.Addr().String())
	for range 2 {
		_, err := take.Call(testContext(t), to, struct{ Body qs.Source }{qs.Reader(strings.NewReader("some"))})
		require.ErrorContains(t, err, "the handler of test/take panicked")
		_, err = give.Call(testContext(t), to, struct{ Body qs.Sink }{qs.Writer(io.Discard)})
		require.ErrorContains(t, err, "the handler of test/give panicked")
		require.Panics(t, func() { _, _ = to.Ping(none) })
	}
	require.NoError(t, client.Shutdown(testContext(t)))
	stop()
	require.NoError(t, <-ended)
}
