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

// The pauses between two attempts of a call that waits until its target is ready: doubled from one to the other.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// A Client makes the calls of generated clients at a Peer. It is a grpc.ClientConnInterface, and is used by many goroutines at once. It holds nothing
// that has to be closed: that is the Node's.
type Client struct {
	to         qs.Peer
	format     format
	defaults   []grpc.CallOption
	unary      []grpc.UnaryClientInterceptor
	stream     []grpc.StreamClientInterceptor
	stats      []stats.Handler
	idempotent func(method string) bool

	methods sync.Map // methodKey: *qs.Method or *qs.Duplex
}

// A methodKey names a definition of a method.
type methodKey struct {
	name    string
	streams bool
	waits   bool // WaitForReady
}

type (
	unaryMethod  = qs.Method[request, response]
	streamMethod = qs.Duplex[request, *frame, item]
)

var _ grpc.ClientConnInterface = (*Client)(nil)

// NewClient returns what the New…Client functions of generated code take. The interceptors of the Node, qs.Retry among them, run around each
// call, and inside those of gRPC.
func NewClient(to qs.Peer, opts ...ClientOption) *Client {
	c := &Client{to: to, format: format{maxSend: defaultMaxSend, maxReceive: defaultMaxReceive}}
	for _, o := range opts {
		o.applyClient(c)
	}
	return c
}

// define returns the options of a method.
func (c *Client) define(key methodKey) []qs.Option {
	opts := []qs.Option{qs.WithCodec(wireCodec{})}
	if c.idempotent != nil && c.idempotent(key.name) || saysIdempotent(key.name) {
		opts = append(opts, qs.Idempotent())
	}
	if key.waits {
		opts = append(opts, qs.Interceptor(c.waits))
	}
	return opts
}

// unaryMethod returns the method of a name.
func (c *Client) unaryMethod(key methodKey) *unaryMethod {
	m, ok := c.methods.Load(key)
	if !ok {
		m, _ = c.methods.LoadOrStore(key, qs.Define[request, response](key.name, c.define(key)...))
	}
	return m.(*unaryMethod)
}

// streamMethod returns the streaming method of a name.
func (c *Client) streamMethod(key methodKey) *streamMethod {
	m, ok := c.methods.Load(key)
	if !ok {
		m, _ = c.methods.LoadOrStore(key, qs.DefineDuplex[request, *frame, item](key.name, c.define(key)...))
	}
	return m.(*streamMethod)
}

// saysIdempotent reports whether the .proto of a method says that it may run twice.
func saysIdempotent(method string) bool {
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

// checkMethod reports a name that cannot be.
func checkMethod(method string) error {
	if method == "" || len(method) > 255 {
		return refused(codes.Unimplemented, "the method name %q has %d bytes, there may be 255", method, len(method))
	}
	return nil
}

// Invoke makes a unary call, and implements grpc.ClientConnInterface. It blocks until the call has ended.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if len(c.unary) == 0 {
		return c.invoke(ctx, method, args, reply, nil, opts...)
	}
	return c.invokeFrom(0)(ctx, method, args, reply, nil, opts...)
}

// invokeFrom returns what the interceptor before the i-th calls.
func (c *Client) invokeFrom(i int) grpc.UnaryInvoker {
	if i == len(c.unary) {
		return c.invoke
	}
	return func(ctx context.Context, method string, args, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
		return c.unary[i](ctx, method, args, reply, cc, c.invokeFrom(i+1), opts...)
	}
}

// invoke is Invoke without interceptors.
func (c *Client) invoke(ctx context.Context, method string, args, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	i := callInfo{format: &c.format}
	err := i.apply(c.defaults)
	if err == nil {
		err = i.apply(opts)
	}
	if err == nil {
		err = checkMethod(method)
	}
	if err != nil {
		i.finished(err)
		return err
	}
	ctx, events := c.begin(ctx, method, &i, false, false)
	header, trailer, err := c.call(ctx, method, args, reply, &i, events)
	for _, to := range i.header {
		*to = orEmpty(header)
	}
	for _, to := range i.trailer {
		*to = orEmpty(trailer)
	}
	i.peers(c.to)
	events.end(err, trailer)
	i.finished(err)
	return err
}

// call makes the call of invoke.
func (c *Client) call(ctx context.Context, method string, args, reply any, i *callInfo, events *statsCall) (header, trailer metadata.MD, err error) {
	md, err := c.metadata(ctx, method, i)
	if err != nil {
		return nil, nil, err
	}
	events.outHeader(md, c.to)
	in := request{md, payload{f: i.format, msg: args}}
	out := response{payload: payload{f: i.format, msg: reply}}
	in.events = events
	err = c.unaryMethod(methodKey{method, false, i.wait}).CallInto(ctx, c.to, in, &out)
	if err == nil && out.body != nil && out.msg == nil {
		err = out.into(reply)
	}
	err, e := ended(err)
	if err == nil {
		e = out.end
		if out.body == nil {
			err = &statusError{status.New(codes.Internal, "grpcqs: the answer has no message"), qs.Errorf(qs.ErrInternal, "no message")}
		}
	}
	if e != nil {
		header, trailer = e.header, e.trailer
	}
	if err == nil && events != nil {
		events.inHeader(header)
		events.inPayload(reply, &out.payload)
	}
	return header, trailer, err
}

// orEmpty returns md, or an empty one.
func orEmpty(md metadata.MD) metadata.MD {
	if md == nil {
		return metadata.MD{}
	}
	return md
}

// peers fills in what grpc.Peer asks for.
func (i *callInfo) peers(to qs.Peer) {
	if len(i.peer) == 0 {
		return
	}
	p := targetPeer(to)
	for _, at := range i.peer {
		*at = *p
	}
}

// finished calls what grpc.OnFinish has given.
func (i *callInfo) finished(err error) {
	for _, f := range i.finish {
		f(err)
	}
}

// targetPeer describes the process that calls at to go to.
func targetPeer(to qs.Peer) *peer.Peer {
	id, _ := to.Identity()
	return &peer.Peer{Addr: addrOf(to.Addr()), AuthInfo: authInfo(id)}
}
