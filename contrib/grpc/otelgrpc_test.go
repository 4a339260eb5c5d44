package grpcqs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestOpenTelemetry checks that the stats handlers of otelgrpc make a span at each side of a call
// of each kind, both of one trace, the server's below the client's, with the method, and with an
// error where the call has failed at the server.
func TestOpenTelemetry(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		spans := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		opts := []otelgrpc.Option{otelgrpc.WithTracerProvider(provider),
			otelgrpc.WithPropagators(propagation.TraceContext{})}
		seen := make(chan trace.SpanContext, 1)
		d := failingDouble(func(ctx context.Context) { seen <- trace.SpanContextFromContext(ctx) },
			status.Error(codes.Internal, "broken"))
		server := n.serve(t, nil, func(node *qs.Node) {
			d.register(grpcqs.NewServer(node, grpcqs.Stats(otelgrpc.NewServerHandler(opts...))))
		})
		client := grpcqs.NewClient(n.dial(t, server.Addr(), nil),
			grpcqs.Stats(otelgrpc.NewClientHandler(opts...)))
		for kind, call := range callKinds(client) {
			spans.Reset()
			require.Equal(t, codes.Internal, status.Code(call(testContext(t))), kind)
			inHandler := <-seen
			bySide := map[trace.SpanKind]sdktrace.ReadOnlySpan{}
			require.Eventually(t, func() bool { // the server's may end after the client's
				for _, s := range spans.Ended() {
					bySide[s.SpanKind()] = s
				}
				return len(bySide) == 2
			}, 30*time.Second, time.Millisecond, kind)
			client, server := bySide[trace.SpanKindClient], bySide[trace.SpanKindServer]
			require.Equal(t, client.SpanContext().TraceID(), server.SpanContext().TraceID(), kind)
			require.Equal(t, client.SpanContext().SpanID(), server.Parent().SpanID(), kind)
			require.Equal(t, server.SpanContext().SpanID(), inHandler.SpanID(), kind)
			require.Equal(t, client.Name(), server.Name(), kind)
			require.Contains(t, client.Name(), "grpc.testing.TestService/", kind)
			for _, s := range bySide {
				require.Equal(t, otelcodes.Error, s.Status().Code, kind)
				require.Contains(t, s.Attributes(),
					attribute.String("rpc.response.status_code", "INTERNAL"), kind)
			}
		}
	})
}
