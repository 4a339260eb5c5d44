package grpcqs

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Server serves what is registered with it on a Node. It is a grpc.ServiceRegistrar, which generated code takes, and a
// reflection.GRPCServer, so that reflection, health and channelz go on it. To serve, drain and close is the Node's.
type Server struct {
	node   *qs.Node
	format format
	unary  []grpc.UnaryServerInterceptor
	stream []grpc.StreamServerInterceptor
	stats  []stats.Handler

	mu       sync.Mutex // guards services
	services map[string]grpc.ServiceInfo
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer returns what the Register…Server functions of generated code take. Services are registered before node.Serve. The server interceptors of
// the Node, and its Authorize, run around those of gRPC.
func NewServer(node *qs.Node, opts ...ServerOption) *Server {
	s := &Server{node: node, format: format{maxSend: defaultMaxSend, maxReceive: defaultMaxReceive}, services: map[string]grpc.ServiceInfo{}}
	for _, o := range opts {
		o.applyServer(s)
	}
	return s
}

// GetServiceInfo returns what is registered, by the names of services.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.services)
}

// RegisterService registers a service, and implements grpc.ServiceRegistrar. It panics if impl is not what desc needs, and if the Node serves
// one of its methods already.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if want := reflect.TypeOf(desc.HandlerType); impl != nil && want != nil && !reflect.TypeOf(impl).Implements(want.Elem()) {
		panic(fmt.Sprintf("grpcqs: the handler of service %s is a %T, which is no %v", desc.ServiceName, impl, want.Elem()))
	}
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	for i := range desc.Methods {
		d := &desc.Methods[i]
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: d.MethodName})
		s.serveUnary("/"+desc.ServiceName+"/"+d.MethodName, d, impl)
	}
	for i := range desc.Streams {
		d := &desc.Streams[i]
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: d.StreamName, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams})
		s.serveStream("/"+desc.ServiceName+"/"+d.StreamName, d, impl)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[desc.ServiceName] = info
}

// A serverCall is a request: the context of its handler, and what grpc.SetHeader and the like find in that.
//
// The functions of gRPC that look into a context are asked with each request; so what they find is made when they ask, by the keys that they
// ask with.
type serverCall struct {
	context.Context                 // of package qs, with a deadline that the budget of the request could not say
	stop            func()          // ends Context; of a call with such a deadline, else it does nothing
	tagged          context.Context // of the handler: this, with what stats handlers have added
	method          string
	md              metadata.MD
	format          format
	events          *statsCall
	stream          *serverStream // nil for a unary call
	returned        bool          // the handler has: it has not panicked
	in              payload       // of a unary call

	mu      sync.Mutex // guards the fields below
	peer    *peer.Peer
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header
}

// Value implements context.Context.
func (c *serverCall) Value(key any) any {
	switch key {
	case transportKey:
		return grpc.ServerTransportStream(c)
	case incomingKey:
		if c.md == nil {
			return metadata.MD{}
		}
		return c.md
	case peerKey:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.peer == nil {
			c.peer = callerPeer(qs.CallerFrom(c.Context))
		}
		return c.peer
	}
	return c.Context.Value(key)
}

// A keyRecorder is a context that keeps the key it is asked for.
type keyRecorder struct {
	context.Context
	key any
}

// Value implements context.Context.
func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

// keyOf returns the key by which ask looks into a context.
func keyOf(ask func(ctx context.Context)) any {
	r := &keyRecorder{Context: context.Background()}
	ask(r)
	return r.key
}

var (
	transportKey = keyOf(func(ctx context.Context) { grpc.ServerTransportStreamFromContext(ctx) })
	incomingKey  = keyOf(func(ctx context.Context) { metadata.FromIncomingContext(ctx) })
	peerKey      = keyOf(func(ctx context.Context) { peer.FromContext(ctx) })
)

// Method implements grpc.ServerTransportStream.
func (c *serverCall) Method() string { return c.method }

// SetHeader implements grpc.ServerTransportStream.
func (c *serverCall) SetHeader(md metadata.MD) error {
	md, err := checkMetadata(md)
	if err != nil {
		return status.Convert(err).Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return status.Error(codes.Internal, "transport: the stream is done or WriteHeader was already called")
	}
	joined, err := joinMetadata(c.header, md)
	if err == nil {
		c.header = joined
	}
	return err
}

// SendHeader implements grpc.ServerTransportStream. The header of a unary call goes with its answer.
func (c *serverCall) SendHeader(md metadata.MD) error {
	if err := c.SetHeader(md); err != nil {
		return err
	}
	if c.stream != nil {
		return c.stream.head()
	}
	c.mu.Lock()
	c.sent = true
	c.mu.Unlock()
	return nil
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *serverCall) SetTrailer(md metadata.MD) error {
	md, err := checkMetadata(md)
	if err != nil {
		return status.Convert(err).Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	joined, err := joinMetadata(c.trailer, md)
	if err == nil {
		c.trailer = joined
	}
	return err
}

// joinMetadata joins what was checked, unless that is too much.
func joinMetadata(a, b metadata.MD) (metadata.MD, error) {
	if len(b) == 0 {
		return a, nil
	}
	joined := metadata.Join(a, b)
	if _, err := checkMetadata(joined); err != nil {
		return nil, status.Convert(err).Err()
	}
	return joined, nil
}

// takeHeader returns the header, to be sent now; ok is false if it was.
func (c *serverCall) takeHeader() (md metadata.MD, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = !c.sent
	c.sent = true
	return c.header, ok
}

// ends returns the end of the call.
func (c *serverCall) ends(st *status.Status) *end {
	c.mu.Lock()
	defer c.mu.Unlock()
	header := c.header
	if c.stream != nil { // it goes by itself
		header = nil
	} else {
		c.sent = true
	}
	return newEnd(st, header, c.trailer)
}

// begin begins a request with md. What says how its messages are encoded, and how long it may take, is for this package. The caller calls stop in the end.
func (s *Server) begin(ctx context.Context, method string, md metadata.MD, up, down bool) (*serverCall, error) {
	c := &serverCall{Context: ctx, stop: func() {}, method: method, md: md, format: s.format}
	c.tagged = c
	var err error
	if md != nil {
		if err = c.readTimeout(s.node); err == nil {
			err = c.readFormat()
		}
	}
	if len(s.stats) > 0 {
		c.tagged, c.events = startStats(c, s.stats, false, method, false)
		c.events.beginServer(c, up, down)
	}
	return c, err
}

// readTimeout takes in a time that the budget of a request cannot say.
func (c *serverCall) readTimeout(n *qs.Node) error {
	text := c.md["grpc-timeout"]
	if len(text) == 0 {
		return nil
	}
	delete(c.md, "grpc-timeout")
	left, err := parseTimeout(text[0])
	if err == nil {
		c.Context, c.stop = n.HG().NA().WithTimeout(c.Context, left)
	}
	return err
}

// readFormat takes in how messages are encoded.
func (c *serverCall) readFormat() error {
	if name := c.md["grpc-encoding"]; len(name) > 0 {
		delete(c.md, "grpc-encoding")
		compressor := encoding.GetCompressor(name[0])
		if compressor == nil {
			return status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", name[0])
		}
		c.format.compressor, c.format.expand = compressor, compressor
	}
	if kind := c.md["content-type"]; len(kind) > 0 {
		subtype, _ := strings.CutPrefix(kind[0], "application/grpc+")
		codec := encoding.GetCodecV2(subtype)
		if old := encoding.GetCodec(subtype); codec == nil && old != nil {
			codec = oldCodec{old}
		}
		if codec == nil {
			return status.Errorf(codes.Unimplemented, "grpc: no codec registered for content-subtype %q", subtype)
		}
		c.format.codec = codec
	}
	return nil
}

// beginServer says that a request has come.
func (t *statsCall) beginServer(c *serverCall, up, down bool) {
	from := callerPeer(qs.CallerFrom(c.Context))
	t.handle(&stats.InHeader{FullMethod: t.method, Header: c.md.Copy(), RemoteAddr: from.Addr, LocalAddr: from.LocalAddr})
	t.handle(&stats.Begin{BeginTime: t.begun, IsClientStream: up, IsServerStream: down})
}

// endServer says how a request has ended.
func (c *serverCall) endServer(st *status.Status) {
	if c.events == nil {
		return
	}
	c.mu.Lock()
	trailer := c.trailer.Copy()
	c.mu.Unlock()
	c.events.handle(&stats.OutTrailer{Trailer: trailer})
	c.events.end(st.Err(), nil)
}

// endPanicked tells the stats handlers that the handler has panicked, if it has. Package qs answers the call then. The caller defers it.
func (c *serverCall) endPanicked() {
	if !c.returned {
		c.endServer(status.New(codes.Internal, "the handler of "+c.method+" panicked"))
	}
}

// sentHeader says that the header has left, or is about to.
func (c *serverCall) sentHeader(md metadata.MD) {
	if c.events != nil {
		c.events.handle(&stats.OutHeader{Header: md.Copy()})
	}
}

// serveUnary serves a method.
func (s *Server) serveUnary(name string, d *grpc.MethodDesc, impl any) {
	qs.Define[request, response](name, qs.WithCodec(wireCodec{})).Handle(s.node, func(ctx context.Context, in request) (response, error) {
		c, err := s.begin(ctx, name, in.md, false, false)
		defer c.stop()
		defer c.endPanicked()
		var out any
		if err == nil {
			c.in = in.payload
			c.in.f = &c.format
			out, err = d.Handler(impl, c.tagged, c.decode, s.unaryInterceptor())
		}
		c.returned = true
		st := handlerStatus(ctx, err)
		e := c.ends(st)
		c.sentHeader(c.header)
		if e != nil && e.st != nil {
			c.endServer(st)
			if len(e.bytes()) <= maxDetail {
				return response{}, e.answerError()
			}
			return response{end: e}, nil
		}
		return response{end: e, payload: payload{f: &c.format, msg: out, events: c.events}, call: c}, nil
	})
}

// decode decodes the message of a unary call into v.
func (c *serverCall) decode(v any) error {
	if c.in.body == nil {
		return status.Convert(errNoMessage).Err()
	}
	if err := c.in.into(v); err != nil {
		return err
	}
	c.events.inPayload(v, &c.in)
	return nil
}

// unaryInterceptor returns the interceptors as one; nil if there is none.
func (s *Server) unaryInterceptor() grpc.UnaryServerInterceptor {
	if len(s.unary) == 0 {
		return nil
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return s.unaryFrom(0, info, handler)(ctx, req)
	}
}

// unaryFrom returns what the interceptor before the i-th calls.
func (s *Server) unaryFrom(i int, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) grpc.UnaryHandler {
	if i == len(s.unary) {
		return handler
	}
	return func(ctx context.Context, req any) (any, error) {
		return s.unary[i](ctx, req, info, s.unaryFrom(i+1, info, handler))
	}
}
