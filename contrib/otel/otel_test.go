package qsotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	qsotel "github.com/quicksilver-rpc/quicksilver/contrib/otel"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var greet = qs.Define[string, string]("test/greet")

// callCounts returns how many calls an instrument has seen, by error.type.
func callCounts(t *testing.T, r *metric.ManualReader, name string) map[string]uint64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, r.Collect(context.Background(), &all))
	n := map[string]uint64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			require.Equal(t, "s", m.Unit)
			for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
				method, _ := p.Attributes.Value("rpc.method")
				require.Equal(t, "test/greet", method.AsString())
				code, _ := p.Attributes.Value("error.type")
				n[code.AsString()] += p.Count
			}
		}
	}
	return n
}

// TestInterceptors checks that the span of a handler is under that of its caller, in the same
// trace, and each attempt has its own.
func TestInterceptors(t *testing.T) {
	spans, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	cfg := qsotel.Config{
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(reader)),
	}
	server, err := qsotel.Server(cfg)
	require.NoError(t, err)
	client, err := qsotel.Client(cfg)
	require.NoError(t, err)
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{ServerInterceptors: []qs.Interceptor{server}})
	require.NoError(t, err)
	refusals := 0
	greet.Handle(node, func(ctx context.Context, who string) (string, error) {
		if !api.SpanContextFromContext(ctx).IsValid() {
			return "", qs.Errorf(qs.ErrInternal, "the handler has no span")
		}
		switch who {
		case "":
			return "", qs.Errorf(qs.ErrBadInput, "who?")
		case "late":
			if refusals++; refusals == 1 {
				return "", qs.Refuse(qs.Errorf(qs.ErrUnavailable, "not yet"))
			}
		}
		return "hello " + who, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	caller, err := qs.Open("tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		qs.Retry(qs.RetryPolicy{Backoff: time.Millisecond, BudgetRatio: 10}), client,
	}})
	require.NoError(t, err)
	peer, err := caller.Peer(ctx, node.Addr().String())
	require.NoError(t, err)

	// at returns the spans of one kind, of the calls made since the last time.
	seen := 0
	at := func(n int) (origins, targets []trace.ReadOnlySpan) {
		require.Eventually(t, func() bool { return len(spans.Ended()) == seen+n }, 10*time.Second, time.Millisecond)
		for _, s := range spans.Ended()[seen:] {
			if s.SpanKind() == api.SpanKindClient {
				origins = append(origins, s)
			} else {
				targets = append(targets, s)
			}
		}
		seen += n
		return origins, targets
	}
	_, err = greet.Call(qs.WithMetadata(ctx, "own", "kept"), peer, "you")
	require.NoError(t, err)
	origins, targets := at(2)
	require.Equal(t, "test/greet", origins[0].Name())
	require.Equal(t, origins[0].SpanContext().TraceID(), targets[0].SpanContext().TraceID())
	require.Equal(t, origins[0].SpanContext().SpanID(), targets[0].Parent().SpanID())
	require.True(t, targets[0].Parent().IsRemote())
	require.Equal(t, codes.Unset, origins[0].Status().Code)
	require.Contains(t, origins[0].Attributes(), attribute.String("rpc.system.name", "quicksilver"))

	_, err = greet.Call(ctx, peer, "")
	require.ErrorIs(t, err, qs.ErrBadInput)
	origins, targets = at(2)
	for _, s := range []trace.ReadOnlySpan{origins[0], targets[0]} {
		require.Equal(t, codes.Error, s.Status().Code)
		require.Contains(t, s.Status().Description, "who?")
		require.Contains(t, s.Attributes(), attribute.String("error.type", "bad input"))
	}
	require.Contains(t, origins[0].Attributes(), attribute.String("quicksilver.fate", "ran"))

	_, err = greet.Call(ctx, peer, "late")
	require.NoError(t, err)
	origins, targets = at(4)
	require.Len(t, origins, 2)
	require.Contains(t, origins[1].Attributes(), attribute.Int("quicksilver.attempt", 2))
	for i := range origins {
		require.Equal(t, origins[i].SpanContext().SpanID(), targets[i].Parent().SpanID(), "attempt %d", i+1)
	}

	want := map[string]uint64{"": 2, "bad input": 1, qs.ErrUnavailable.Error(): 1}
	require.Equal(t, want, callCounts(t, reader, "rpc.client.call.duration"))
	require.Equal(t, want, callCounts(t, reader, "rpc.server.call.duration"))
	require.NoError(t, caller.Close())
	stop()
	require.NoError(t, <-ended)
}

// A server whose requests have spans, where the program has registered its providers with package otel.
func Example() {
	server, err := qsotel.Server(qsotel.Config{})
	if err != nil {
		panic(err)
	}
	node, err := qs.Open("tcp://:7000", qs.Config{ServerInterceptors: []qs.Interceptor{server}})
	if err != nil {
		panic(err)
	}
	greet.Handle(node, func(_ context.Context, who string) (string, error) { return "hello " + who, nil })
}
