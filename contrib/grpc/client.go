package grpcqs

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// minReadyBackoff and maxReadyBackoff bound the pause between two attempts of a WaitForReady call.
// The pause doubles after each attempt.
const (
	minReadyBackoff = 10 * time.Millisecond
	maxReadyBackoff = time.Second
)

// A Client makes the calls of generated clients to one Peer. It implements grpc.ClientConnInterface
// and is safe for concurrent use. It has no Close method, because the Node owns the connections.
type Client struct {
	target     qs.Peer
	format     format
	defaults   []grpc.CallOption
	unary      []grpc.UnaryClientInterceptor
	stream     []grpc.StreamClientInterceptor
	stats      []stats.Handler
	idempotent func(method string) bool

	methods sync.Map // caches definitions: methodKey to *unaryMethod or *streamMethod
}

// A methodKey identifies one definition of a method.
type methodKey struct {
	name         string
	streaming    bool
	waitForReady bool // the definition includes the interceptor retryUntilReady
}

type (
	unaryMethod  = qs.Method[request, response]
	streamMethod = qs.Duplex[request, *frame, item]
)

var _ grpc.ClientConnInterface = (*Client)(nil)

// NewClient returns a Client for use with the New…Client functions of generated code. It does not
// block. The Node's interceptors, such as qs.Retry, run inside the gRPC interceptors.
func NewClient(to qs.Peer, opts ...ClientOption) *Client {
	c := &Client{target: to, format: format{maxSend: defaultMaxSend, maxReceive: defaultMaxReceive}}
	for _, o := range opts {
		o.applyClient(c)
	}
	return c
}

// methodOptions returns the qs options used to define the method identified by key.
func (c *Client) methodOptions(key methodKey) []qs.Option {
	opts := []qs.Option{qs.WithCodec(wireCodec{})}
	if c.idempotent != nil && c.idempotent(key.name) || isDeclaredIdempotent(key.name) {
		opts = append(opts, qs.Idempotent())
	}
	if key.waitForReady {
		opts = append(opts, qs.Interceptor(c.retryUntilReady))
	}
	return opts
}

// unaryMethod returns the definition of a unary method, creating it on the first call.
func (c *Client) unaryMethod(key methodKey) *unaryMethod {
	m, ok := c.methods.Load(key)
	if !ok {
		m, _ = c.methods.LoadOrStore(key, qs.Define[request, response](key.name, c.methodOptions(key)...))
	}
	return m.(*unaryMethod)
}

// streamMethod returns the definition of a streaming method, creating it on the first call.
func (c *Client) streamMethod(key methodKey) *streamMethod {
	m, ok := c.methods.Load(key)
	if !ok {
		m, _ = c.methods.LoadOrStore(
			key,
			qs.DefineDuplex[request, *frame, item](key.name, c.methodOptions(key)...),
		)
	}
	return m.(*streamMethod)
}

// isDeclaredIdempotent reports whether the method's .proto file sets idempotency_level.
func isDeclaredIdempotent(method string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return false
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return false
	}
	m := s.Methods().ByName(protoreflect.Name(name))
	if m == nil {
		return false
	}
	o, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// checkMethod returns an error if the method name is empty or longer than the wire format allows.
func checkMethod(method string) error {
	if method == "" || len(method) > 255 {
		return newUnsentError(codes.Unimplemented,
			"grpcqs: the method name %q has %d bytes, want 1 to 255", method, len(method))
	}
	return nil
}

// Invoke implements grpc.ClientConnInterface. It makes a unary call and blocks until the call
// completes. The returned error carries a status, which status.Code reads, and wraps the error of
// package qs.
func (c *Client) Invoke(
	ctx context.Context,
	method string,
	args, reply any,
	opts ...grpc.CallOption,
) error {
	if len(c.unary) == 0 {
		return c.invoke(ctx, method, args, reply, nil, opts...)
	}
	return c.chainInvoker(0)(ctx, method, args, reply, nil, opts...)
}

// chainInvoker returns an invoker that runs the interceptors starting at index i, and then the
// call.
func (c *Client) chainInvoker(i int) grpc.UnaryInvoker {
	if i == len(c.unary) {
		return c.invoke
	}
	return func(
		ctx context.Context, method string, args, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption,
	) error {
		return c.unary[i](ctx, method, args, reply, cc, c.chainInvoker(i+1), opts...)
	}
}

// invoke makes the call for Invoke without running gRPC interceptors.
func (c *Client) invoke(
	ctx context.Context, method string, args, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption,
) error {
	i := callInfo{format: &c.format}
	err := i.apply(c.defaults)
	if err == nil {
		err = i.apply(opts)
	}
	if err == nil {
		err = checkMethod(method)
	}
	if err != nil {
		i.runOnFinish(err)
		return err
	}
	ctx, events := c.beginStats(ctx, method, &i, false, false)
	header, trailer, err := c.callUnary(ctx, method, args, reply, &i, events)
	for _, to := range i.headerAddrs {
		*to = orEmpty(header)
	}
	for _, to := range i.trailerAddrs {
		*to = orEmpty(trailer)
	}
	i.fillPeers(c.target)
	events.recordEnd(err, trailer)
	i.runOnFinish(err)
	return err
}

// callUnary sends the request of a unary call and decodes its response into reply.
func (c *Client) callUnary(
	ctx context.Context, method string, args, reply any, i *callInfo, events *statsCall,
) (header, trailer metadata.MD, err error) {
	md, err := c.requestMetadata(ctx, method, i)
	if err != nil {
		return nil, nil, err
	}
	events.recordOutHeader(md, c.target)
	in := request{md, payload{format: i.format, msg: args}}
	out := response{payload: payload{format: i.format, msg: reply}}
	in.events = events
	err = c.unaryMethod(methodKey{method, false, i.waitForReady}).CallInto(ctx, c.target, in, &out)
	if err == nil && out.body != nil && out.msg == nil {
		err = out.decodeInto(reply)
	}
	err, e := toStatusError(err)
	if err == nil {
		e = out.end
		if out.body == nil {
			err = &statusError{
				status.New(codes.Internal, "grpcqs: the response has no message"),
				qs.Errorf(qs.ErrInternal, "no message"),
			}
		}
	}
	if e != nil {
		header, trailer = e.header, e.trailer
	}
	if err == nil && events != nil {
		events.recordInHeader(header)
		events.recordInPayload(reply, &out.payload)
	}
	return header, trailer, err
}

// orEmpty returns md, or empty metadata if md is nil.
func orEmpty(md metadata.MD) metadata.MD {
	if md == nil {
		return metadata.MD{}
	}
	return md
}

// fillPeers sets the peer.Peer values of the grpc.Peer options.
func (i *callInfo) fillPeers(to qs.Peer) {
	if len(i.peerAddrs) == 0 {
		return
	}
	p := targetPeer(to)
	for _, at := range i.peerAddrs {
		*at = *p
	}
}

// runOnFinish calls the functions of the grpc.OnFinish options.
func (i *callInfo) runOnFinish(err error) {
	for _, f := range i.onFinish {
		f(err)
	}
}

// targetPeer returns the peer.Peer of the process to which calls are sent.
func targetPeer(to qs.Peer) *peer.Peer {
	id, _ := to.Identity()
	return &peer.Peer{Addr: netAddrOf(to.Addr()), AuthInfo: authInfo(id)}
}
