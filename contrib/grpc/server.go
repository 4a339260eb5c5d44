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

// A Server serves gRPC services on a Node. It implements grpc.ServiceRegistrar, which generated
// code requires, and reflection.GRPCServer. The reflection, health and channelz services can be
// registered on it. The caller is responsible for serving, draining and closing the Node.
type Server struct {
	node   *qs.Node
	format format
	unary  []grpc.UnaryServerInterceptor
	stream []grpc.StreamServerInterceptor
	stats  []stats.Handler

	mu       sync.Mutex                  // guards services
	services map[string]grpc.ServiceInfo // by service name
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer returns a Server for use with the Register…Server functions of generated code. All
// services must be registered before node.Serve is called. The Node's server interceptors and its
// Authorize function run outside the gRPC interceptors.
func NewServer(node *qs.Node, opts ...ServerOption) *Server {
	s := &Server{
		node:     node,
		format:   format{maxSend: defaultMaxSend, maxReceive: defaultMaxReceive},
		services: map[string]grpc.ServiceInfo{},
	}
	for _, o := range opts {
		o.applyServer(s)
	}
	return s
}

// GetServiceInfo returns the registered services by name. It is safe for concurrent use.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.services)
}

// RegisterService implements grpc.ServiceRegistrar. It panics if impl does not implement
// desc.HandlerType, or if the Node already serves one of the methods.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if want := reflect.TypeOf(desc.HandlerType); impl != nil && want != nil &&
		!reflect.TypeOf(impl).Implements(want.Elem()) {
		panic(fmt.Sprintf("grpcqs: the handler of service %s is a %T, which does not implement %v",
			desc.ServiceName, impl, want.Elem()))
	}
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	for i := range desc.Methods {
		d := &desc.Methods[i]
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: d.MethodName})
		s.serveUnary("/"+desc.ServiceName+"/"+d.MethodName, d, impl)
	}
	for i := range desc.Streams {
		d := &desc.Streams[i]
		info.Methods = append(info.Methods, grpc.MethodInfo{
			Name: d.StreamName, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams,
		})
		s.serveStream("/"+desc.ServiceName+"/"+d.StreamName, d, impl)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[desc.ServiceName] = info
}

// A serverCall is one request at the server. It is both the handler's context and the transport
// stream behind grpc.SetHeader, SendHeader and SetTrailer.
//
// gRPC stores metadata, peer and transport stream in the context of each request. Most handlers use
// none of them, so Value creates each one only when it is requested with gRPC's own key (see
// keyOf). This saves three calls of context.WithValue per request.
type serverCall struct {
	context.Context                 // context of package qs, with the deadline of grpc-timeout, if any
	stop            func()          // releases the timer of grpc-timeout
	tagged          context.Context // handler's context: this call, as tagged by the stats handlers
	method          string
	md              metadata.MD // metadata of the request
	format          format
	events          *statsCall
	stream          *serverStream // nil for a unary call
	handlerReturned bool          // false while the handler runs and if it panicked
	input           payload       // request message of a unary call

	mu         sync.Mutex // guards the fields below
	peer       *peer.Peer // nil until Value is first called with its key
	header     metadata.MD
	trailer    metadata.MD
	headerSent bool
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

// A keyRecorder is a context that records the key of the last Value call.
type keyRecorder struct {
	context.Context
	key any
}

// Value implements context.Context.
func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}

// keyOf returns the context key that the lookup function uses. It is needed because gRPC's context
// keys are of unexported types.
func keyOf(lookup func(ctx context.Context)) any {
	r := &keyRecorder{Context: context.Background()}
	lookup(r)
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
	if c.headerSent {
		return status.Error(codes.Internal,
			"transport: the stream is done or WriteHeader was already called")
	}
	joined, err := joinMetadata(c.header, md)
	if err == nil {
		c.header = joined
	}
	return err
}

// SendHeader implements grpc.ServerTransportStream. The header of a unary call is sent with its
// response.
func (c *serverCall) SendHeader(md metadata.MD) error {
	if err := c.SetHeader(md); err != nil {
		return err
	}
	if c.stream != nil {
		return c.stream.ensureHeaderSent()
	}
	c.mu.Lock()
	c.headerSent = true
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

// joinMetadata joins a and b. It returns an error if the result exceeds the metadata limit.
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

// claimHeader marks the header as sent and returns it. If it was already sent, ok is false.
func (c *serverCall) claimHeader() (md metadata.MD, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = !c.headerSent
	c.headerSent = true
	return c.header, ok
}

// buildEnd returns the end of the call with status st, or nil if there is nothing to send.
func (c *serverCall) buildEnd(st *status.Status) *callEnd {
	c.mu.Lock()
	defer c.mu.Unlock()
	header := c.header
	if c.stream != nil { // the header of a stream is sent in a separate frame
		header = nil
	} else {
		c.headerSent = true
	}
	return newEnd(st, header, c.trailer)
}

// beginCall begins a request with metadata md. It removes the reserved keys from md and uses them
// to set the call's timeout, compressor and codec. The caller must call stop when the request is
// complete, even after an error.
func (s *Server) beginCall(
	ctx context.Context, method string, md metadata.MD, clientStreams, serverStreams bool,
) (*serverCall, error) {
	c := &serverCall{Context: ctx, stop: func() {}, method: method, md: md, format: s.format}
	c.tagged = c
	var err error
	if md != nil {
		if err = c.applyTimeout(s.node); err == nil {
			err = c.applyFormat()
		}
	}
	if len(s.stats) > 0 {
		c.tagged, c.events = startStats(c, s.stats, false, method, false)
		c.events.recordRequest(c, clientStreams, serverStreams)
	}
	return c, err
}

// applyTimeout sets the call's deadline from the metadata key grpc-timeout, which carries only
// timeouts above maxBudget.
func (c *serverCall) applyTimeout(n *qs.Node) error {
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

// applyFormat sets the compressor and the codec named in the request's metadata.
func (c *serverCall) applyFormat() error {
	if name := c.md["grpc-encoding"]; len(name) > 0 {
		delete(c.md, "grpc-encoding")
		compressor := encoding.GetCompressor(name[0])
		if compressor == nil {
			return status.Errorf(codes.Unimplemented,
				"grpc: Decompressor is not installed for grpc-encoding %q", name[0])
		}
		c.format.compressor, c.format.decompressor = compressor, compressor
	}
	if kind := c.md["content-type"]; len(kind) > 0 {
		subtype, _ := strings.CutPrefix(kind[0], "application/grpc+")
		codec := encoding.GetCodecV2(subtype)
		if old := encoding.GetCodec(subtype); codec == nil && old != nil {
			codec = codecV1{old}
		}
		if codec == nil {
			return status.Errorf(codes.Unimplemented, "grpc: no codec registered for content-subtype %q",
				subtype)
		}
		c.format.codec = codec
	}
	return nil
}

// recordRequest records the events InHeader and Begin of a request.
func (t *statsCall) recordRequest(c *serverCall, clientStreams, serverStreams bool) {
	from := callerPeer(qs.CallerFrom(c.Context))
	t.handle(&stats.InHeader{
		FullMethod: t.method, Header: c.md.Copy(), RemoteAddr: from.Addr, LocalAddr: from.LocalAddr,
	})
	t.handle(
		&stats.Begin{BeginTime: t.startTime, IsClientStream: clientStreams,
			IsServerStream: serverStreams},
	)
}

// recordEnd records the events OutTrailer and End of a request that ended with st.
func (c *serverCall) recordEnd(st *status.Status) {
	if c.events == nil {
		return
	}
	c.mu.Lock()
	trailer := c.trailer.Copy()
	c.mu.Unlock()
	c.events.handle(&stats.OutTrailer{Trailer: trailer})
	c.events.recordEnd(st.Err(), nil)
}

// recordPanic records the events of a call whose handler panicked. Package qs recovers the panic
// and answers the call. It must be deferred.
func (c *serverCall) recordPanic() {
	if !c.handlerReturned {
		c.recordEnd(status.New(codes.Internal, "the handler of "+c.method+" panicked"))
	}
}

// recordHeader records the event OutHeader.
func (c *serverCall) recordHeader(md metadata.MD) {
	if c.events != nil {
		c.events.handle(&stats.OutHeader{Header: md.Copy()})
	}
}

// serveUnary registers the handler of a unary method.
func (s *Server) serveUnary(name string, d *grpc.MethodDesc, impl any) {
	method := qs.Define[request, response](name, qs.WithCodec(wireCodec{}))
	method.Handle(s.node, func(ctx context.Context, in request) (response, error) {
		c, err := s.beginCall(ctx, name, in.md, false, false)
		defer c.stop()
		defer c.recordPanic()
		var out any
		if err == nil {
			c.input = in.payload
			c.input.format = &c.format
			out, err = d.Handler(impl, c.tagged, c.decodeInput, s.unaryInterceptor())
		}
		c.handlerReturned = true
		st := handlerStatus(ctx, err)
		e := c.buildEnd(st)
		c.recordHeader(c.header)
		if e != nil && e.st != nil {
			c.recordEnd(st)
			if len(e.bytes()) <= maxDetail {
				return response{}, e.answerError()
			}
			return response{end: e}, nil
		}
		return response{
			end:     e,
			payload: payload{format: &c.format, msg: out, events: c.events},
			call:    c,
		}, nil
	})
}

// decodeInput decodes the request message of a unary call into v.
func (c *serverCall) decodeInput(v any) error {
	if c.input.body == nil {
		return status.Convert(errNoMessage).Err()
	}
	if err := c.input.decodeInto(v); err != nil {
		return err
	}
	c.events.recordInPayload(v, &c.input)
	return nil
}

// unaryInterceptor chains the interceptors into one. It returns nil if there are none.
func (s *Server) unaryInterceptor() grpc.UnaryServerInterceptor {
	if len(s.unary) == 0 {
		return nil
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
		error) {
		return s.chainUnaryHandler(0, info, handler)(ctx, req)
	}
}

// chainUnaryHandler returns a handler that runs the interceptors starting at index i, and then
// handler.
func (s *Server) chainUnaryHandler(
	i int,
	info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) grpc.UnaryHandler {
	if i == len(s.unary) {
		return handler
	}
	return func(ctx context.Context, req any) (any, error) {
		return s.unary[i](ctx, req, info, s.chainUnaryHandler(i+1, info, handler))
	}
}
