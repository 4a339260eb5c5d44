package grpcqs

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A statsCall passes the events of one call to the stats handlers. A nil one passes none.
type statsCall struct {
	ctx      context.Context
	handlers []stats.Handler
	client   bool
	method   string
	begun    time.Time
}

// startStats returns the context of a call as the handlers tag it, and what passes events to them: nil without handlers.
func startStats(ctx context.Context, handlers []stats.Handler, client bool, method string, failFast bool) (context.Context, *statsCall) {
	if len(handlers) == 0 {
		return ctx, nil
	}
	for _, h := range handlers {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method, FailFast: failFast})
	}
	return ctx, &statsCall{ctx: ctx, handlers: handlers, client: client, method: method, begun: time.Now()}
}

func (t *statsCall) handle(s stats.RPCStats) {
	for _, h := range t.handlers {
		h.HandleRPC(t.ctx, s)
	}
}

// begin begins a call.
func (c *Client) begin(ctx context.Context, method string, i *callInfo, up, down bool) (context.Context, *statsCall) {
	ctx, t := startStats(ctx, c.stats, true, method, !i.wait)
	if t != nil {
		t.handle(&stats.Begin{Client: true, BeginTime: t.begun, FailFast: !i.wait, IsClientStream: up, IsServerStream: down})
	}
	return ctx, t
}

// outHeader says what goes to the target of a client.
func (t *statsCall) outHeader(md metadata.MD, to qs.Peer) {
	if t != nil {
		t.handle(&stats.OutHeader{Client: true, FullMethod: t.method, Header: md.Copy(), RemoteAddr: addrOf(to.Addr())})
	}
}

// outPayload says that a message was encoded.
func (t *statsCall) outPayload(p *payload) {
	t.handle(&stats.OutPayload{Client: t.client, Payload: p.msg, Length: p.size, CompressedLength: p.wire, WireLength: p.wire, SentTime: time.Now()})
}

// inPayload says that a message was decoded.
func (t *statsCall) inPayload(v any, p *payload) {
	if t != nil {
		t.handle(&stats.InPayload{Client: t.client, Payload: v, Length: p.size, CompressedLength: p.wire, WireLength: p.wire, RecvTime: time.Now()})
	}
}

// inHeader says what header a client has got.
func (t *statsCall) inHeader(header metadata.MD) {
	if t != nil {
		t.handle(&stats.InHeader{Client: true, Header: header.Copy(), FullMethod: t.method})
	}
}

// end ends a client's call, with what has come of the trailer.
func (t *statsCall) end(err error, trailer metadata.MD) {
	if t == nil {
		return
	}
	if t.client {
		t.handle(&stats.InTrailer{Client: true, Trailer: trailer.Copy()})
	}
	t.handle(&stats.End{Client: t.client, BeginTime: t.begun, EndTime: time.Now(), Trailer: trailer.Copy(), Error: err})
}
