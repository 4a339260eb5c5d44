package grpcqs

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A statsCall records the events of one call with the stats handlers. Its record methods accept a
// nil receiver, except where the caller has to compute something first.
type statsCall struct {
	ctx       context.Context // as tagged by the handlers
	handlers  []stats.Handler
	client    bool
	method    string
	startTime time.Time
}

// startStats lets the handlers tag ctx. It returns the tagged context and the statsCall, which is
// nil if there are no handlers.
func startStats(
	ctx context.Context, handlers []stats.Handler, client bool, method string, failFast bool,
) (context.Context, *statsCall) {
	if len(handlers) == 0 {
		return ctx, nil
	}
	for _, h := range handlers {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method, FailFast: failFast})
	}
	return ctx, &statsCall{
		ctx:       ctx,
		handlers:  handlers,
		client:    client,
		method:    method,
		startTime: time.Now(),
	}
}

// handle passes s to each stats handler.
func (t *statsCall) handle(s stats.RPCStats) {
	for _, h := range t.handlers {
		h.HandleRPC(t.ctx, s)
	}
}

// beginStats tags ctx and records the event Begin of a client's call.
func (c *Client) beginStats(
	ctx context.Context, method string, i *callInfo, clientStreams, serverStreams bool,
) (context.Context, *statsCall) {
	ctx, t := startStats(ctx, c.stats, true, method, !i.waitForReady)
	if t != nil {
		t.handle(&stats.Begin{
			Client: true, BeginTime: t.startTime, FailFast: !i.waitForReady,
			IsClientStream: clientStreams, IsServerStream: serverStreams,
		})
	}
	return ctx, t
}

// recordOutHeader records the event for a client's request header.
func (t *statsCall) recordOutHeader(md metadata.MD, to qs.Peer) {
	if t != nil {
		t.handle(&stats.OutHeader{
			Client: true, FullMethod: t.method, Header: md.Copy(), RemoteAddr: netAddrOf(to.Addr()),
		})
	}
}

// recordOutPayload records the event for an encoded message.
func (t *statsCall) recordOutPayload(p *payload) {
	t.handle(&stats.OutPayload{
		Client: t.client, Payload: p.msg, Length: p.msgSize, CompressedLength: p.wireSize,
		WireLength: p.wireSize, SentTime: time.Now(),
	})
}

// recordInPayload records the event for a decoded message.
func (t *statsCall) recordInPayload(v any, p *payload) {
	if t != nil {
		t.handle(&stats.InPayload{
			Client: t.client, Payload: v, Length: p.msgSize, CompressedLength: p.wireSize,
			WireLength: p.wireSize, RecvTime: time.Now(),
		})
	}
}

// recordInItem records the event for the message m that was decoded from i.
func (t *statsCall) recordInItem(m any, i *item) {
	if t != nil {
		t.recordInPayload(m, &payload{msgSize: i.msgSize, wireSize: i.wireSize})
	}
}

// recordInHeader records the event for a header received by a client.
func (t *statsCall) recordInHeader(header metadata.MD) {
	if t != nil {
		t.handle(&stats.InHeader{Client: true, Header: header.Copy(), FullMethod: t.method})
	}
}

// recordEnd records the event End, preceded by InTrailer on the client.
func (t *statsCall) recordEnd(err error, trailer metadata.MD) {
	if t == nil {
		return
	}
	if t.client {
		t.handle(&stats.InTrailer{Client: true, Trailer: trailer.Copy()})
	}
	t.handle(&stats.End{
		Client: t.client, BeginTime: t.startTime, EndTime: time.Now(), Trailer: trailer.Copy(),
		Error: err,
	})
}
