// Package qsotel instruments calls and handlers with OpenTelemetry spans and metrics, using one interceptor for each
// side. The trace context travels as "traceparent" in the call's metadata.
//
// Client starts a span and adds "traceparent" to Call.Metadata. Server starts a span that is a child of the client's
// span, and runs the handler in it.
//
// The package uses only the OpenTelemetry API. The SDK that the program configures determines what is recorded and
// where it is exported. It is a separate module so that the library does not depend on OpenTelemetry.
package qsotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const scopeName = "github.com/quicksilver-rpc/quicksilver/contrib/otel"

// A Config selects the providers of spans and metrics. The zero value uses the global providers.
type Config struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator injects the trace context into metadata and extracts it. Its field names must have 1 to 63 characters
	// of a-z, 0-9, '.' and '-'. Nil means propagation.TraceContext.
	Propagator propagation.TextMapPropagator
}

// instruments holds the tracer and the metrics of one side's interceptor.
type instruments struct {
	kind       trace.SpanKind
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	duration   metric.Float64Histogram
	movedBytes metric.Int64Counter
}

func (c Config) newInstruments(kind trace.SpanKind, name string) (*instruments, error) {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	s := &instruments{kind: kind, tracer: c.TracerProvider.Tracer(scopeName), propagator: c.Propagator}
	meter := c.MeterProvider.Meter(scopeName)
	var err error
	s.duration, err = meter.Float64Histogram("rpc."+name+".call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls took."),
		metric.WithExplicitBucketBoundaries(1e-5, 4e-5, 1.6e-4, 6.4e-4, 2.5e-3, 1e-2, 4e-2, 0.16, 0.64, 2.5, 10, 40))
	if err != nil {
		return nil, err
	}
	s.movedBytes, err = meter.Int64Counter("quicksilver."+name+".moved", metric.WithUnit("By"),
		metric.WithDescription("Bytes moved from and to what calls lend."))
	return s, err
}

// Client returns an interceptor for qs.Config.ClientInterceptors. It creates a span for each call or, if it is placed
// after Retry, for each attempt. It returns an error if the provider cannot create the instruments.
func Client(c Config) (qs.Interceptor, error) {
	s, err := c.newInstruments(trace.SpanKindClient, "client")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, call *qs.Call, next func(context.Context) error) error {
		return s.runInSpan(ctx, call, func(ctx context.Context) error {
			meta := call.Metadata
			s.propagator.Inject(ctx, &metadataCarrier{&call.Metadata})
			defer func() { call.Metadata = meta }() // the next attempt has its own span
			return next(ctx)
		})
	}, nil
}

// Server returns an interceptor for qs.Config.ServerInterceptors. It creates a span for each request, as a child of the
// caller's span.
func Server(c Config) (qs.Interceptor, error) {
	s, err := c.newInstruments(trace.SpanKindServer, "server")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, call *qs.Call, next func(context.Context) error) error {
		return s.runInSpan(s.propagator.Extract(ctx, &metadataCarrier{&call.Metadata}), call, next)
	}, nil
}

// runInSpan runs next in a new span.
func (s *instruments) runInSpan(ctx context.Context, call *qs.Call, next func(context.Context) error) error {
	common := []attribute.KeyValue{attribute.String("rpc.system.name", "quicksilver"), attribute.String("rpc.method", call.Method)}
	ctx, span := s.tracer.Start(ctx, call.Method, trace.WithSpanKind(s.kind), trace.WithAttributes(common...))
	defer span.End() // even if the handler panics
	begun := time.Now()
	err := next(ctx)
	took := time.Since(begun)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("quicksilver.peer", call.Peer.String()))
		if call.Attempt > 1 {
			span.SetAttributes(attribute.Int("quicksilver.attempt", call.Attempt))
		}
		if call.BytesMoved > 0 {
			span.SetAttributes(attribute.Int64("quicksilver.moved", call.BytesMoved))
		}
	}
	if err != nil {
		code := codeName(err)
		common = append(common, attribute.String("error.type", code))
		span.SetAttributes(attribute.String("error.type", code))
		if s.kind == trace.SpanKindClient {
			span.SetAttributes(attribute.String("quicksilver.fate", qs.FateOf(err).String()))
		}
		span.SetStatus(codes.Error, err.Error())
	}
	with := metric.WithAttributeSet(attribute.NewSet(common...))
	s.duration.Record(ctx, took.Seconds(), with)
	if call.BytesMoved > 0 {
		s.movedBytes.Add(ctx, call.BytesMoved, with)
	}
	return err
}

// codeName returns the name of an error's code, which is the target's code if the target answered.
func codeName(err error) string {
	if remote, ok := hg.RemoteOf(err); ok {
		return remote.Code.Error()
	}
	return qs.CodeOf(err).Error()
}

// A metadataCarrier lets a propagator read and write metadata. A value that does not fit is omitted, and the call
// continues without a trace.
type metadataCarrier struct{ meta *hg.Metadata }

func (c *metadataCarrier) Get(key string) string {
	value, _ := c.meta.Get(key)
	return value
}

func (c *metadataCarrier) Set(key, value string) {
	if m, err := c.meta.With(key, value); err == nil {
		*c.meta = m
	}
}

func (c *metadataCarrier) Keys() (keys []string) {
	for key := range c.meta.All() {
		keys = append(keys, key)
	}
	return keys
}
