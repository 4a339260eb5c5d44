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

// The limits of messages that nothing else says, those of grpc-go.
const (
	defaultMaxReceive = 4 << 20
	defaultMaxSend    = math.MaxInt32
)

// A ServerOption says more about a Server.
type ServerOption interface{ applyServer(*Server) }

type serverOption func(*Server)

func (o serverOption) applyServer(s *Server) { o(s) }

// A ClientOption says more about a Client.
type ClientOption interface{ applyClient(*Client) }

type clientOption func(*Client)

func (o clientOption) applyClient(c *Client) { o(c) }

// An Option is one for both sides.
type Option interface {
	ServerOption
	ClientOption
}

type option struct {
	serverOption
	clientOption
}

// UnaryInterceptor has is run around the handlers of unary calls: the first is the outermost. Several such options add up.
func UnaryInterceptor(is ...grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(s *Server) { s.unary = append(s.unary, is...) })
}

// StreamInterceptor is UnaryInterceptor for streams.
func StreamInterceptor(is ...grpc.StreamServerInterceptor) ServerOption {
	return serverOption(func(s *Server) { s.stream = append(s.stream, is...) })
}

// MaxReceive bounds the messages that are received, in bytes: 4 MiB if it is not given, as in grpc-go. A CallOption replaces it. Requests are
// bounded by qs.Config.MaxInput, too, and answers and the messages of streams by hg.Config.MaxOutput: 64 MiB each.
func MaxReceive(bytes int) Option {
	return option{
		func(s *Server) { s.format.maxReceive = bytes },
		func(c *Client) { c.format.maxReceive = bytes },
	}
}

// MaxSend bounds the messages that are sent likewise. If it is not given only those of MaxReceive do.
func MaxSend(bytes int) Option {
	return option{
		func(s *Server) { s.format.maxSend = bytes },
		func(c *Client) { c.format.maxSend = bytes },
	}
}

// Stats has h see each call: TagRPC and HandleRPC as in grpc-go, but for connections, which are not those of gRPC. Several such options add up.
func Stats(h stats.Handler) Option {
	return option{
		func(s *Server) { s.stats = append(s.stats, h) },
		func(c *Client) { c.stats = append(c.stats, h) },
	}
}

// DefaultCallOptions has all calls of a Client have opts, before their own.
func DefaultCallOptions(opts ...grpc.CallOption) ClientOption {
	return clientOption(func(c *Client) { c.defaults = append(c.defaults, opts...) })
}

// UnaryClientInterceptor has is run around unary calls: the first is the outermost. They get a nil *grpc.ClientConn. Several such options add
// up.
func UnaryClientInterceptor(is ...grpc.UnaryClientInterceptor) ClientOption {
	return clientOption(func(c *Client) { c.unary = append(c.unary, is...) })
}

// StreamClientInterceptor is UnaryClientInterceptor for streams.
func StreamClientInterceptor(is ...grpc.StreamClientInterceptor) ClientOption {
	return clientOption(func(c *Client) { c.stream = append(c.stream, is...) })
}

// Idempotent says of which methods, by names as "/pkg.Service/Method", a call may run twice without harm, so that qs.Retry and qs.Hedge
// repeat it: beside those whose .proto says so (option idempotency_level).
func Idempotent(is func(method string) bool) ClientOption {
	return clientOption(func(c *Client) { c.idempotent = is })
}

// A callInfo is what the options of a call say.
type callInfo struct {
	*format      // shared with the Client until own is set
	own     bool // format is of this call
	wait    bool // WaitForReady
	creds   []credentials.PerRPCCredentials
	subtype string         // of the codec
	header  []*metadata.MD // where to
	trailer []*metadata.MD
	peer    []*peer.Peer
	finish  []func(error)
}

// set returns the format, to be changed.
func (i *callInfo) set() *format {
	if !i.own {
		f := *i.format
		i.format, i.own = &f, true
	}
	return i.format
}

// apply takes in options.
func (i *callInfo) apply(opts []grpc.CallOption) error {
	for _, o := range opts {
		switch o := o.(type) {
		case nil, grpc.EmptyCallOption, grpc.StaticMethodCallOption, *grpc.EmptyCallOption:
		case grpc.MaxRetryRPCBufferSizeCallOption: // nothing is kept to be repeated
		case grpc.HeaderCallOption:
			i.header = append(i.header, o.HeaderAddr)
		case grpc.TrailerCallOption:
			i.trailer = append(i.trailer, o.TrailerAddr)
		case grpc.PeerCallOption:
			i.peer = append(i.peer, o.PeerAddr)
		case grpc.OnFinishCallOption:
			i.finish = append(i.finish, o.OnFinish)
		case grpc.FailFastCallOption:
			i.wait = !o.FailFast
		case grpc.MaxRecvMsgSizeCallOption:
			i.set().maxReceive = o.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			i.set().maxSend = o.MaxSendMsgSize
		case grpc.PerRPCCredsCallOption:
			i.creds = append(i.creds[:0:0], o.Creds)
		case grpc.CompressorCallOption:
			f := i.set()
			f.compressor, f.expand = nil, nil
			if o.CompressorType != "" && o.CompressorType != encoding.Identity {
				c := encoding.GetCompressor(o.CompressorType)
				if c == nil {
					return refused(codes.Internal, "grpc: Compressor is not installed for requested grpc-encoding %q", o.CompressorType)
				}
				f.compressor, f.expand = c, c
			}
		case grpc.ContentSubtypeCallOption:
			subtype := strings.ToLower(o.ContentSubtype)
			c := encoding.GetCodecV2(subtype)
			if old := encoding.GetCodec(subtype); c == nil && old != nil {
				c = oldCodec{old}
			}
			if c == nil {
				return refused(codes.Internal, "no codec registered for content-subtype %s", subtype)
			}
			i.force(subtype, c)
		case grpc.ForceCodecV2CallOption:
			i.force(strings.ToLower(o.CodecV2.Name()), o.CodecV2)
		case grpc.ForceCodecCallOption:
			i.force(strings.ToLower(o.Codec.Name()), oldCodec{o.Codec})
		case grpc.AuthorityOverrideCallOption:
			return refused(codes.Unimplemented, "grpcqs: the option CallAuthority has no counterpart: the Peer says where calls go")
		case grpc.CustomCodecCallOption:
			return refused(codes.Unimplemented, "grpcqs: the option CallCustomCodec has no counterpart: use ForceCodec")
		default:
			inner := embeddedOption(o)
			if inner == nil {
				return refused(codes.Unimplemented, "grpcqs: the option %T is not known here", o)
			}
			if err := i.apply([]grpc.CallOption{inner}); err != nil {
				return err
			}
		}
	}
	return nil
}

// embeddedOption returns the option that a program's own type embeds, such as a grpc.EmptyCallOption with data for an interceptor: what such a
// type does by itself is that. It is nil if there is none.
func embeddedOption(o grpc.CallOption) grpc.CallOption {
	v := reflect.Indirect(reflect.ValueOf(o))
	if v.Kind() != reflect.Struct || v.Type().PkgPath() == reflect.TypeFor[grpc.EmptyCallOption]().PkgPath() {
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

// force sets the codec.
func (i *callInfo) force(subtype string, c encoding.CodecV2) {
	f := i.set()
	i.subtype, f.codec = subtype, c
	if subtype == "proto" && encoding.GetCodecV2(subtype) == c {
		i.subtype, f.codec = "", nil
	}
}

// An oldCodec is a codec of the first kind.
type oldCodec struct{ encoding.Codec }

// Marshal implements encoding.CodecV2.
func (c oldCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := c.Codec.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c oldCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return c.Codec.Unmarshal(data.Materialize(), v)
}

// metadata returns what goes with a request of a method: of ctx, the credentials, and what the target has to know.
func (c *Client) metadata(ctx context.Context, method string, i *callInfo) (metadata.MD, error) {
	md, has := metadata.FromOutgoingContext(ctx)
	if has {
		var err error
		if md, err = checkMetadata(md); err != nil {
			return nil, err
		}
	}
	if len(i.creds) > 0 {
		more, err := c.credentials(ctx, method, i.creds)
		if err != nil {
			return nil, err
		}
		if md, err = checkMetadata(metadata.Join(md, more)); err != nil {
			return nil, err
		}
	}
	long := longTimeout(ctx)
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

// credentials returns what credentials add.
func (c *Client) credentials(ctx context.Context, method string, all []credentials.PerRPCCredentials) (metadata.MD, error) {
	md := metadata.MD{}
	service := method[:max(strings.LastIndexByte(method, '/'), 0)]
	for _, creds := range all {
		if creds.RequireTransportSecurity() && !c.private(ctx) {
			return nil, refused(codes.Unauthenticated, "grpcqs: the credentials require a transport that nobody else can read: use TLS, or sm")
		}
		values, err := creds.GetRequestMetadata(ctx, "https://"+addrOf(c.to.Addr()).String()+service)
		if err != nil {
			if st, ok := status.FromError(err); ok {
				return nil, refused(st.Code(), "%s", st.Message())
			}
			return nil, refused(codes.Unauthenticated, "transport: per-RPC creds failed due to error: %v", err)
		}
		for key, value := range values {
			md.Append(key, value)
		}
	}
	return md, nil
}

// private reports whether nobody but the target can read what is sent to it. It connects if there is no connection.
func (c *Client) private(ctx context.Context) bool {
	if c.to.Addr().Scheme() == "sm" {
		return true
	}
	id, ok := c.to.Identity()
	if !ok {
		if _, err := c.to.Ping(ctx); err != nil {
			return false
		}
		if id, ok = c.to.Identity(); !ok {
			return false
		}
	}
	return id.Secure || id.Transport == "sm"
}

// waits is the interceptor of a method whose call waits until its target is ready.
func (c *Client) waits(ctx context.Context, k *qs.Call, next func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := next(ctx)
		if err == nil || ctx.Err() != nil || qs.FateOf(err) != qs.NotRun {
			return err
		}
		switch qs.CodeOf(err) {
		case qs.ErrUnreachable, qs.ErrPeerLost, qs.ErrNotReady, qs.ErrDraining:
		default:
			return err
		}
		if c.to.Node().HG().Sleep(ctx, pause) != nil {
			return err
		}
		k.Attempt++
	}
}
