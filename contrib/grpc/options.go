package grpcqs

import (
	"context"
	"math"
	"reflect"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// defaultMaxReceive and defaultMaxSend are the default message size limits, which equal those of
// grpc-go.
const (
	defaultMaxReceive = 4 << 20
	defaultMaxSend    = math.MaxInt32
)

// A ServerOption configures a Server.
type ServerOption interface{ applyServer(*Server) }

type serverOption func(*Server)

func (o serverOption) applyServer(s *Server) { o(s) }

// A ClientOption configures a Client.
type ClientOption interface{ applyClient(*Client) }

type clientOption func(*Client)

func (o clientOption) applyClient(c *Client) { o(c) }

// An Option configures a Server or a Client.
type Option interface {
	ServerOption
	ClientOption
}

type option struct {
	serverOption
	clientOption
}

// UnaryInterceptor adds interceptors around the handlers of unary calls. The first interceptor is
// the outermost. If the option is used several times, the interceptors are concatenated.
func UnaryInterceptor(is ...grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(s *Server) { s.unary = append(s.unary, is...) })
}

// StreamInterceptor adds interceptors around the handlers of streaming calls. Ordering is as for
// UnaryInterceptor.
func StreamInterceptor(is ...grpc.StreamServerInterceptor) ServerOption {
	return serverOption(func(s *Server) { s.stream = append(s.stream, is...) })
}

// MaxReceive limits the size of received messages, in bytes. The default is 4 MiB, as in grpc-go. A
// CallOption overrides it. In addition, two limits of the Node apply, with defaults of 64 MiB:
// qs.Config.MaxInput limits requests, and the sender's hg.Config.MaxOutput limits responses and
// stream messages.
func MaxReceive(bytes int) Option {
	return option{
		func(s *Server) { s.format.maxReceive = bytes },
		func(c *Client) { c.format.maxReceive = bytes },
	}
}

// MaxSend limits the size of sent messages, in bytes. By default only the Node's limits apply,
// which are described at MaxReceive.
func MaxSend(bytes int) Option {
	return option{
		func(s *Server) { s.format.maxSend = bytes },
		func(c *Client) { c.format.maxSend = bytes },
	}
}

// Stats adds h, which receives the events of each call through TagRPC and HandleRPC, as in grpc-go.
// It receives no connection events, because Quicksilver's connections do not correspond to gRPC's.
// The option may be used several times to add several handlers.
func Stats(h stats.Handler) Option {
	return option{
		func(s *Server) { s.stats = append(s.stats, h) },
		func(c *Client) { c.stats = append(c.stats, h) },
	}
}

// DefaultCallOptions sets options for all calls of a Client. The options of a call are applied
// after them.
func DefaultCallOptions(opts ...grpc.CallOption) ClientOption {
	return clientOption(func(c *Client) { c.defaults = append(c.defaults, opts...) })
}

// UnaryClientInterceptor adds interceptors around unary calls. The first interceptor is the
// outermost. Interceptors receive a nil *grpc.ClientConn. If the option is used several times, the
// interceptors are concatenated.
func UnaryClientInterceptor(is ...grpc.UnaryClientInterceptor) ClientOption {
	return clientOption(func(c *Client) { c.unary = append(c.unary, is...) })
}

// StreamClientInterceptor adds interceptors around streaming calls. Ordering is as for
// UnaryClientInterceptor.
func StreamClientInterceptor(is ...grpc.StreamClientInterceptor) ClientOption {
	return clientOption(func(c *Client) { c.stream = append(c.stream, is...) })
}

// Idempotent marks the methods for which is returns true as idempotent, which means that qs.Retry
// and qs.Hedge may run them more than once. Method names have the form "/pkg.Service/Method".
// Methods whose .proto file sets the option idempotency_level are idempotent without it.
func Idempotent(is func(method string) bool) ClientOption {
	return clientOption(func(c *Client) { c.idempotent = is })
}

// A callInfo holds the options of one call.
type callInfo struct {
	*format           // shared with the Client unless ownsFormat
	ownsFormat   bool // format is a copy for this call
	waitForReady bool // see grpc.WaitForReady
	creds        []credentials.PerRPCCredentials
	subtype      string         // content-subtype of the codec; "" for protobuf
	headerAddrs  []*metadata.MD // where the header is stored
	trailerAddrs []*metadata.MD // where the trailer is stored
	peerAddrs    []*peer.Peer   // where the peer is stored
	onFinish     []func(error)  // called when the call completes
}

// editFormat returns the call's own copy of the Client's format, which the caller may modify. It
// creates the copy when it is first called.
func (i *callInfo) editFormat() *format {
	if !i.ownsFormat {
		f := *i.format
		i.format, i.ownsFormat = &f, true
	}
	return i.format
}

// apply applies opts. It returns Unimplemented for an option that has no counterpart here.
func (i *callInfo) apply(opts []grpc.CallOption) error {
	for _, o := range opts {
		switch o := o.(type) {
		case nil, grpc.EmptyCallOption, grpc.StaticMethodCallOption, *grpc.EmptyCallOption:
		case grpc.MaxRetryRPCBufferSizeCallOption: // no effect: retries encode the request again, so no buffer is kept
		case grpc.HeaderCallOption:
			i.headerAddrs = append(i.headerAddrs, o.HeaderAddr)
		case grpc.TrailerCallOption:
			i.trailerAddrs = append(i.trailerAddrs, o.TrailerAddr)
		case grpc.PeerCallOption:
			i.peerAddrs = append(i.peerAddrs, o.PeerAddr)
		case grpc.OnFinishCallOption:
			i.onFinish = append(i.onFinish, o.OnFinish)
		case grpc.FailFastCallOption:
			i.waitForReady = !o.FailFast
		case grpc.MaxRecvMsgSizeCallOption:
			i.editFormat().maxReceive = o.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			i.editFormat().maxSend = o.MaxSendMsgSize
		case grpc.PerRPCCredsCallOption:
			i.creds = append(i.creds[:0:0], o.Creds)
		case grpc.CompressorCallOption:
			f := i.editFormat()
			f.compressor, f.decompressor = nil, nil
			if o.CompressorType != "" && o.CompressorType != encoding.Identity {
				c := encoding.GetCompressor(o.CompressorType)
				if c == nil {
					return newUnsentError(codes.Internal,
						"grpc: Compressor is not installed for requested grpc-encoding %q",
						o.CompressorType)
				}
				f.compressor, f.decompressor = c, c
			}
		case grpc.ContentSubtypeCallOption:
			subtype := strings.ToLower(o.ContentSubtype)
			c := encoding.GetCodecV2(subtype)
			if old := encoding.GetCodec(subtype); c == nil && old != nil {
				c = codecV1{old}
			}
			if c == nil {
				return newUnsentError(codes.Internal, "no codec registered for content-subtype %s",
					subtype)
			}
			i.setCodec(subtype, c)
		case grpc.ForceCodecV2CallOption:
			i.setCodec(strings.ToLower(o.CodecV2.Name()), o.CodecV2)
		case grpc.ForceCodecCallOption:
			i.setCodec(strings.ToLower(o.Codec.Name()), codecV1{o.Codec})
		case grpc.AuthorityOverrideCallOption:
			return newUnsentError(codes.Unimplemented,
				"grpcqs: the option CallAuthority is not supported: the qs.Peer determines the server")
		case grpc.CustomCodecCallOption:
			return newUnsentError(codes.Unimplemented,
				"grpcqs: the option CallCustomCodec is not supported: use ForceCodec")
		default:
			inner := embeddedOption(o)
			if inner == nil {
				return newUnsentError(codes.Unimplemented, "grpcqs: the option %T is not supported", o)
			}
			if err := i.apply([]grpc.CallOption{inner}); err != nil {
				return err
			}
		}
	}
	return nil
}

// embeddedOption returns the grpc.CallOption embedded in o, or nil. A program may embed an option
// such as grpc.EmptyCallOption in its own type to pass data to an interceptor.
func embeddedOption(o grpc.CallOption) grpc.CallOption {
	v := reflect.Indirect(reflect.ValueOf(o))
	if v.Kind() != reflect.Struct ||
		v.Type().PkgPath() == reflect.TypeFor[grpc.EmptyCallOption]().PkgPath() {
		return nil
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); !f.Anonymous || !f.IsExported() {
			continue
		}
		if inner, ok := v.Field(i).Interface().(grpc.CallOption); ok {
			return inner
		}
	}
	return nil
}

// setCodec sets the call's codec and content-subtype.
func (i *callInfo) setCodec(subtype string, c encoding.CodecV2) {
	f := i.editFormat()
	i.subtype, f.codec = subtype, c
	if subtype == "proto" && encoding.GetCodecV2(subtype) == c {
		i.subtype, f.codec = "", nil
	}
}

// A codecV1 adapts an encoding.Codec to encoding.CodecV2.
type codecV1 struct{ encoding.Codec }

// Marshal implements encoding.CodecV2.
func (c codecV1) Marshal(v any) (mem.BufferSlice, error) {
	b, err := c.Codec.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codecV1) Unmarshal(data mem.BufferSlice, v any) error {
	return c.Codec.Unmarshal(data.Materialize(), v)
}

// requestMetadata returns the metadata of a request: the metadata of ctx, that of the credentials,
// and the reserved keys for timeout, compressor and codec. The credentials may block.
func (c *Client) requestMetadata(ctx context.Context, method string, i *callInfo) (metadata.MD, error) {
	md, has := metadata.FromOutgoingContext(ctx)
	if has {
		var err error
		if md, err = checkMetadata(md); err != nil {
			return nil, err
		}
	}
	if len(i.creds) > 0 {
		more, err := c.credentialMetadata(ctx, method, i.creds)
		if err != nil {
			return nil, err
		}
		if md, err = checkMetadata(metadata.Join(md, more)); err != nil {
			return nil, err
		}
	}
	long := encodeLongTimeout(ctx)
	if i.compressor == nil && i.subtype == "" && long == "" {
		return md, nil
	}
	if md == nil {
		md = metadata.MD{}
	}
	if long != "" {
		md["grpc-timeout"] = []string{long}
	}
	if i.compressor != nil {
		md["grpc-encoding"] = []string{i.compressor.Name()}
	}
	if i.subtype != "" {
		md["content-type"] = []string{"application/grpc+" + i.subtype}
	}
	return md, nil
}

// credentialMetadata returns the metadata that the given credentials generate for method.
func (c *Client) credentialMetadata(
	ctx context.Context, method string, all []credentials.PerRPCCredentials,
) (metadata.MD, error) {
	md := metadata.MD{}
	service := method[:max(strings.LastIndexByte(method, '/'), 0)]
	for _, creds := range all {
		if creds.RequireTransportSecurity() && !c.isPrivate(ctx) {
			return nil, newUnsentError(codes.Unauthenticated,
				"grpcqs: the credentials require a private transport: use TLS or sm")
		}
		values, err := creds.GetRequestMetadata(ctx,
			"https://"+netAddrOf(c.target.Addr()).String()+service)
		if err != nil {
			if st, ok := status.FromError(err); ok {
				return nil, newUnsentError(st.Code(), "%s", st.Message())
			}
			return nil, newUnsentError(codes.Unauthenticated,
				"transport: per-RPC creds failed due to error: %v", err)
		}
		for key, value := range values {
			md.Append(key, value)
		}
	}
	return md, nil
}

// isPrivate reports whether the transport to the target is encrypted or local to this host. It
// connects if there is no connection yet, since the transport is known only after the handshake.
func (c *Client) isPrivate(ctx context.Context) bool {
	if c.target.Addr().Scheme() == "sm" {
		return true
	}
	id, ok := c.target.Identity()
	if !ok {
		if _, err := c.target.Ping(ctx); err != nil {
			return false
		}
		if id, ok = c.target.Identity(); !ok {
			return false
		}
	}
	return id.Secure || id.Transport == "sm"
}

// retryUntilReady is the interceptor of WaitForReady calls. While the target is unreachable, not
// ready or draining, it repeats calls that certainly did not run, until ctx is done.
func (c *Client) retryUntilReady(
	ctx context.Context, k *qs.Call, next func(context.Context) error,
) error {
	for pause := minReadyBackoff; ; pause = min(2*pause, maxReadyBackoff) {
		err := next(ctx)
		if err == nil || ctx.Err() != nil || qs.FateOf(err) != qs.NotRun {
			return err
		}
		switch qs.CodeOf(err) {
		case qs.ErrUnreachable, qs.ErrPeerLost, qs.ErrNotReady, qs.ErrDraining:
		default:
			return err
		}
		if c.target.Node().HG().Sleep(ctx, pause) != nil {
			return err
		}
		k.Attempt++
	}
}
