package grpcqs_test

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// echoDouble is a double that answers with as much as it gets, and sends the metadata of requests back as
// header and trailer.
func echoDouble() *double {
	mirror := func(ctx context.Context) {
		in, _ := metadata.FromIncomingContext(ctx)
		_ = grpc.SetHeader(ctx, in)
		_ = grpc.SetTrailer(ctx, in)
	}
	return &double{
		unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			mirror(ctx)
			return &testgrpc.SimpleResponse{Payload: in.Payload}, nil
		},
		down: func(in *testgrpc.StreamingOutputCallRequest,
			s testgrpc.TestService_StreamingOutputCallServer) error {
			mirror(s.Context())
			for range 3 {
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
					return err
				}
			}
			return nil
		},
		up: func(s testgrpc.TestService_StreamingInputCallServer) error {
			mirror(s.Context())
			sum := 0
			for {
				in, err := s.Recv()
				if err == io.EOF {
					return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
				}
				if err != nil {
					return err
				}
				sum += len(in.GetPayload().GetBody())
			}
		},
		both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			mirror(s.Context())
			for {
				in, err := s.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if err = s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
					return err
				}
			}
		},
	}
}

// TestMetadata checks that keys with several values, binary ones and 60 KB arrive, and come back as
// header and trailer of every kind of call; keys that gRPC reserves are left out; too much is
// ResourceExhausted, and a key or a value that cannot be is Internal, before anything is sent.
func TestMetadata(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		tc := testgrpc.NewTestServiceClient(n.pair(t, echoDouble().register))
		sent := metadata.MD{"a": {"1", "2"}, "b-bin": {"\x00\xff\n", ""},
			"long": {strings.Repeat("x", 60_000)}, "under_score.and.dot": {"~"}}
		ctx := metadata.NewOutgoingContext(testContext(t),
			metadata.Join(sent, metadata.MD{"grpc-status": {"0"}, "content-type": {"x"},
				"te": {"trailers"}}))

		var header, trailer metadata.MD
		_, err := tc.UnaryCall(ctx, newUnaryRequest(1), grpc.Header(&header), grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.Equal(t, sent, header)
		require.Equal(t, sent, trailer)

		s, err := tc.FullDuplexCall(ctx, grpc.Header(&header), grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.NoError(t, s.Send(newRequest(1)))
		_, err = s.Recv()
		require.NoError(t, err)
		got, err := s.Header()
		require.NoError(t, err)
		require.Equal(t, sent, got)
		require.NoError(t, s.CloseSend())
		_, err = s.Recv()
		require.Equal(t, io.EOF, err)
		require.Equal(t, sent, s.Trailer())
		require.Equal(t, sent, header)
		require.Equal(t, sent, trailer)

		for md, want := range map[*metadata.MD]codes.Code{
			{"long": {strings.Repeat("x", 65_536)}}: codes.ResourceExhausted,
			{"a b": {"x"}}:                          codes.Internal,
			{"a": {"\x01"}}:                         codes.Internal,
		} {
			ctx := metadata.NewOutgoingContext(testContext(t), *md)
			_, err = tc.UnaryCall(ctx, newUnaryRequest(1))
			require.Equal(t, want, status.Code(err))
			require.Equal(t, qs.NotRun, grpcqs.FateOf(err))
			_, err = tc.FullDuplexCall(ctx)
			require.Equal(t, want, status.Code(err))
		}
	})
}

// TestTrailerTooLong checks that a trailer of a stream that cannot be sent fails a call that would
// have ended well, and no other one.
func TestTrailerTooLong(t *testing.T) {
	for want, result := range map[codes.Code]error{codes.ResourceExhausted: nil,
		codes.NotFound: status.Error(codes.NotFound, "no")} {
		d := &double{both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			s.SetTrailer(metadata.Pairs("long", strings.Repeat("x", 65_536)))
			s.SetTrailer(metadata.Pairs("short", "x"))
			return result
		}}
		s, err := testgrpc.NewTestServiceClient(tcpNetwork(t).pair(t, d.register)).FullDuplexCall(testContext(t))
		require.NoError(t, err)
		_, err = s.Recv()
		require.Equal(t, want, status.Code(err))
		require.Equal(t, metadata.MD{"short": {"x"}}, s.Trailer())
	}
}

// TestHeaderEarly checks that the header of a stream arrives before the first message, while the
// handler waits.
func TestHeaderEarly(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		d := &double{both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			if err := s.SendHeader(metadata.Pairs("early", "yes")); err != nil {
				return err
			}
			if err := s.SetHeader(metadata.Pairs("late", "no")); status.Code(err) != codes.Internal {
				return errors.New("SetHeader after SendHeader has not failed")
			}
			_, err := s.Recv()
			return err
		}}
		s, err := testgrpc.NewTestServiceClient(n.pair(t, d.register)).FullDuplexCall(testContext(t))
		require.NoError(t, err)
		received := make(chan error, 1)
		go func() { // which takes the header
			_, err := s.Recv()
			received <- err
		}()
		header, err := s.Header()
		require.NoError(t, err)
		require.Equal(t, metadata.Pairs("early", "yes"), header)
		require.NoError(t, s.Send(newRequest(1)))
		require.Equal(t, io.EOF, <-received)
	})
}

// TestLongDeadline checks that a deadline of days passes whole, to calls of each kind.
func TestLongDeadline(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		const long = 100 * time.Hour
		left := make(chan time.Duration, 1)
		d := failingDouble(func(ctx context.Context) {
			by, _ := ctx.Deadline()
			left <- time.Until(by)
		}, errors.New("seen"))
		for kind, call := range callKinds(n.pair(t, d.register)) {
			ctx, cancel := context.WithTimeout(context.Background(), long)
			require.Error(t, call(ctx), kind)
			cancel()
			got := <-left
			require.LessOrEqual(t, got, long, kind)
			require.Greater(t, got, long-5*time.Minute, kind)
		}
	})
}

// TestMetadataForAuthorize: Config.Authorize sees what the context of a call has by
// qs.WithMetadata.

func TestMetadataForAuthorize(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		config := n.config
		n.config = func() qs.Config {
			cfg := config()
			cfg.Authorize = func(_ context.Context, c *qs.Call) error {
				if token, _ := c.Metadata.Get("token"); strings.HasPrefix(c.Method, "/") &&
					token != "good" {
					return qs.Errorf(qs.ErrPermission, "no good token")
				}
				return nil
			}
			return cfg
		}
		d := failingDouble(func(context.Context) {}, status.Error(codes.Aborted, "has run"))
		for kind, call := range callKinds(n.pair(t, d.register)) {
			require.Equal(t, codes.PermissionDenied, status.Code(call(testContext(t))), kind)
			require.Equal(t, codes.Aborted,
				status.Code(call(qs.WithMetadata(testContext(t), "token", "good"))), kind)
		}
	})
}

// TestDeadline checks that a call of each kind ends with DeadlineExceeded, and so does the context
// of its handler, which has the deadline.
func TestDeadline(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		ended := make(chan error, 100)
		d := failingDouble(func(ctx context.Context) {
			if _, ok := ctx.Deadline(); !ok {
				ended <- errors.New("no deadline")
				return
			}
			<-ctx.Done()
			ended <- ctx.Err()
		}, context.DeadlineExceeded)
		for kind, call := range callKinds(n.pair(t, d.register)) {
			for limit, ran := 50*time.Millisecond, false; !ran; limit *= 2 { // on a busy machine the request may arrive late, or too late
				ctx, cancel := context.WithTimeout(testContext(t), limit)
				err := call(ctx)
				cancel()
				require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%s: %v", kind, err)
				ctx, cancel = context.WithTimeout(testContext(t), limit)
				select {
				case err := <-ended:
					if ran = err == context.DeadlineExceeded; !ran { // the call ended first, since the request was in flight for long
						require.Equal(t, context.Canceled, err, kind)
					}
				case <-ctx.Done():
					require.Less(t, limit, 30*time.Second, kind)
				}
				cancel()
			}
		}
	})
}

// TestCancel checks that a call that is canceled ends with Canceled at once, and its handler's
// context ends, for all kinds.
func TestCancel(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		begun, ended := make(chan bool, 10), make(chan error, 10)
		d := failingDouble(func(ctx context.Context) {
			begun <- true
			<-ctx.Done()
			ended <- ctx.Err()
		}, nil)
		for kind, call := range callKinds(n.pair(t, d.register)) {
			ctx, cancel := context.WithCancel(testContext(t))
			go func() {
				<-begun
				cancel()
			}()
			err := call(ctx)
			require.Equal(t, codes.Canceled, status.Code(err), "%s: %v", kind, err)
			require.Equal(t, context.Canceled, <-ended, kind)
			require.Equal(t, codes.Canceled, status.Code(call(ctx)), "%s: before it begins", kind)
		}
	})
}

// TestAbandonedStream checks that a caller that ends the context of a stream, and uses the stream
// no more, leaves nothing behind: the handler's context ends, and OnFinish is called, once.
func TestAbandonedStream(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		ended := make(chan error, 1)
		d := &double{both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			_ = s.Send(newResponse(1))
			<-s.Context().Done()
			ended <- s.Context().Err()
			return nil
		}}
		tc := testgrpc.NewTestServiceClient(n.pair(t, d.register))
		ctx, cancel := context.WithCancel(testContext(t))
		finished := make(chan error, 10)
		s, err := tc.FullDuplexCall(ctx, grpc.OnFinish(func(err error) { finished <- err }))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		cancel()
		require.Equal(t, context.Canceled, <-ended)
		require.Equal(t, codes.Canceled, status.Code(<-finished))
		require.Equal(t, io.EOF, s.Send(newRequest(1)))
		_, err = s.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		require.Empty(t, finished)
	})
}

// TestMessageSize checks that each limit refuses longer messages with ResourceExhausted: for the
// client and the server, for sent and received messages.
func TestMessageSize(t *testing.T) {
	n := tcpNetwork(t)
	const most = 1000
	call := func(c *grpcqs.Client, size int, opts ...grpc.CallOption) map[string]error {
		tc := testgrpc.NewTestServiceClient(c)
		_, unary := tc.UnaryCall(testContext(t), newUnaryRequest(size), opts...)
		s, both := tc.FullDuplexCall(testContext(t), opts...)
		if both == nil {
			if both = s.Send(newRequest(size)); both == nil || both == io.EOF {
				_, both = s.Recv()
			}
			_ = s.CloseSend()
			if both == nil {
				_, err := s.Recv()
				require.Equal(t, io.EOF, err)
			}
		}
		return map[string]error{"unary": unary, "both": both}
	}
	for name, c := range map[string]*grpcqs.Client{
		"server receives": n.pair(t, echoDouble().register, serverOption{grpcqs.MaxReceive(most)}),
		"server sends":    n.pair(t, echoDouble().register, serverOption{grpcqs.MaxSend(most)}),
		"client receives": n.pair(t, echoDouble().register, clientOption{grpcqs.MaxReceive(most)}),
		"client sends":    n.pair(t, echoDouble().register, clientOption{grpcqs.MaxSend(most)}),
		"both":            n.pair(t, echoDouble().register, grpcqs.MaxReceive(most)),
		"options": n.pair(t, echoDouble().register,
			grpcqs.DefaultCallOptions(grpc.MaxCallSendMsgSize(most))),
	} {
		for kind, err := range call(c, most-20) {
			require.NoError(t, err, "%s, %s", name, kind)
		}
		for kind, err := range call(c, most+1) {
			require.Equal(t, codes.ResourceExhausted, status.Code(err), "%s, %s: %v", name, kind, err)
			require.Contains(t, err.Error(), "larger than max", name)
		}
	}
	c := n.pair(t, echoDouble().register)
	for kind, err := range call(c, 4<<20+1) {
		require.Equal(t, codes.ResourceExhausted, status.Code(err), kind)
	}
	big := n.pair(t, echoDouble().register, grpcqs.MaxReceive(16<<20))
	for kind, err := range call(big, 10<<20) {
		require.NoError(t, err, kind)
	}
}

// TestCompression checks that messages of a call with UseCompressor are compressed in both
// directions, of all kinds; identity is none, and a name that is not registered is refused. A
// message that would expand beyond the limit is not expanded.
func TestCompression(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		seen := &recorder{}
		c := n.pair(t, echoDouble().register, clientOption{grpcqs.Stats(seen)})
		tc := testgrpc.NewTestServiceClient(c)
		out, err := tc.UnaryCall(testContext(t), newUnaryRequest(100_000), grpc.UseCompressor("gzip"))
		require.NoError(t, err)
		require.Len(t, out.Payload.Body, 100_000)
		s, err := tc.FullDuplexCall(testContext(t), grpc.UseCompressor("gzip"))
		require.NoError(t, err)
		require.NoError(t, s.Send(newRequest(100_000)))
		in, err := s.Recv()
		require.NoError(t, err)
		require.Len(t, in.Payload.Body, 100_000)
		require.NoError(t, s.CloseSend())
		_, err = s.Recv()
		require.Equal(t, io.EOF, err)
		d, err := tc.StreamingOutputCall(testContext(t), newRequest(100_000), grpc.UseCompressor("gzip"))
		require.NoError(t, err)
		for range 3 {
			_, err = d.Recv()
			require.NoError(t, err)
		}
		_, err = d.Recv()
		require.Equal(t, io.EOF, err)
		for _, e := range seen.all() {
			switch e := e.(type) {
			case *stats.OutPayload:
				require.Less(t, e.CompressedLength, e.Length/10)
			case *stats.InPayload:
				require.Less(t, e.CompressedLength, e.Length/10)
			}
		}
		_, err = tc.UnaryCall(testContext(t), newUnaryRequest(10), grpc.UseCompressor("identity"))
		require.NoError(t, err)
		_, err = tc.UnaryCall(testContext(t), newUnaryRequest(10), grpc.UseCompressor("nobody"))
		require.Equal(t, codes.Internal, status.Code(err))
		_, err = tc.UnaryCall(testContext(t), newUnaryRequest(5<<20), grpc.UseCompressor("gzip"))
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Contains(t, err.Error(), "after decompression")
	})
}

// TestNoLimit checks that math.MaxInt, which programs use for no limit, is no limit, for compressed
// and other messages.
func TestNoLimit(t *testing.T) {
	tc := testgrpc.NewTestServiceClient(tcpNetwork(t).pair(t, echoDouble().register,
		grpcqs.MaxReceive(math.MaxInt)))
	for _, name := range []string{"identity", "gzip"} {
		out, err := tc.UnaryCall(testContext(t), newUnaryRequest(100_000), grpc.UseCompressor(name))
		require.NoError(t, err)
		require.Len(t, out.Payload.GetBody(), 100_000, name)
	}
}

// A bytesCodec is a codec that passes bytes through, and keeps those that it gets, as it may after Ref.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// TestCodecRetainsMemory checks that memory that a codec of a program keeps of a message does not change
// when later messages arrive.
func TestCodecRetainsMemory(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		c := n.pair(t, echoDouble().register)
		var got []mem.BufferSlice
		encoded := func(i int) *mem.BufferSlice {
			m := newUnaryRequest(1000)
			m.Payload.Body[0], m.Payload.Body[999] = byte(i), byte(i)
			b, err := proto.Marshal(m)
			require.NoError(t, err)
			return &mem.BufferSlice{mem.SliceBuffer(b)}
		}
		const all = 50
		for i := range all {
			var out mem.BufferSlice
			require.NoError(t, c.Invoke(testContext(t), testgrpc.TestService_UnaryCall_FullMethodName,
				encoded(i), &out, grpc.ForceCodecV2(bytesCodec{})))
			got = append(got, out)
		}
		s, err := c.NewStream(testContext(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
			testgrpc.TestService_FullDuplexCall_FullMethodName, grpc.ForceCodecV2(bytesCodec{}))
		require.NoError(t, err)
		for i := range all {
			m := newRequest(1000)
			m.Payload.Body[0], m.Payload.Body[999] = byte(i), byte(i)
			b, err := proto.Marshal(m)
			require.NoError(t, err)
			require.NoError(t, s.SendMsg(&mem.BufferSlice{mem.SliceBuffer(b)}))
			var out mem.BufferSlice
			require.NoError(t, s.RecvMsg(&out))
			got = append(got, out)
		}
		require.NoError(t, s.CloseSend())
		require.Equal(t, io.EOF, s.RecvMsg(new(mem.BufferSlice)))
		for i, b := range got {
			var m testgrpc.SimpleResponse // its payload has the number of that of a stream
			require.NoError(t, proto.Unmarshal(b.Materialize(), &m))
			require.Equal(t, []byte{byte(i % all), byte(i % all)},
				[]byte{m.Payload.Body[0], m.Payload.Body[999]}, i)
		}
	})
}

// TestOptionsRefused checks that an option without a counterpart is refused by its name, and
// nothing is sent.
func TestOptionsRefused(t *testing.T) {
	c := tcpNetwork(t).pair(t, echoDouble().register)
	tc := testgrpc.NewTestServiceClient(c)
	for name, o := range map[string]grpc.CallOption{
		"CallAuthority":               grpc.CallAuthority("elsewhere"),
		"CallCustomCodec":             grpc.CustomCodecCallOption{},
		"acceptCompressorsCallOption": experimental.AcceptCompressors("gzip"),
	} {
		_, err := tc.UnaryCall(testContext(t), newUnaryRequest(1), o)
		require.Equal(t, codes.Unimplemented, status.Code(err))
		require.Contains(t, err.Error(), name)
		require.Equal(t, qs.NotRun, grpcqs.FateOf(err))
		_, err = tc.FullDuplexCall(testContext(t), o)
		require.Contains(t, err.Error(), name)
	}
	_, err := c.NewStream(testContext(t), &grpc.StreamDesc{}, testgrpc.TestService_UnaryCall_FullMethodName)
	require.Equal(t, codes.Unimplemented, status.Code(err))
	for name, o := range map[string]grpc.CallOption{
		"a program's own": ownOption{note: "for an interceptor"}, "a pointer to one": &ownOption{},
		"one that wraps another": wrapOption{CallOption: grpc.WaitForReady(true)},
		"StaticMethod":           grpc.StaticMethod(), "Empty": grpc.EmptyCallOption{},
		"MaxRetryRPCBufferSize": grpc.MaxRetryRPCBufferSize(1),
		"ForceCodecV2":          grpc.CallContentSubtype("proto"), "FailFast": grpc.FailFast(true),
	} {
		_, err := tc.UnaryCall(testContext(t), newUnaryRequest(1), o)
		require.NoError(t, err, name)
	}
}

// Options of a program's own, which only its own interceptors use.
type (
	ownOption struct {
		grpc.EmptyCallOption
		note string
	}
	wrapOption struct{ grpc.CallOption }
)

// TestWaitForReady checks that with WaitForReady a call of each kind waits for a server that starts
// later; without it the call ends with Unavailable and has not run.
func TestWaitForReady(t *testing.T) {
	n := tcpNetwork(t)
	first := n.serve(t, nil, func(*qs.Node) {})
	addr := first.Addr()
	require.NoError(t, first.Close())
	c := grpcqs.NewClient(n.dial(t, addr, nil))
	for kind, call := range callKinds(c) {
		err := call(testContext(t))
		require.Equal(t, codes.Unavailable, status.Code(err), kind)
		require.Equal(t, qs.NotRun, grpcqs.FateOf(err), kind)
	}
	waiting := grpcqs.NewClient(n.dial(t, addr, nil), grpcqs.DefaultCallOptions(grpc.WaitForReady(true)))
	short, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	require.Equal(t, codes.DeadlineExceeded, status.Code(callKinds(waiting)["unary"](short)))
	cancel()
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for _, call := range callKinds(waiting) {
		wg.Go(func() { errs <- call(testContext(t)) })
	}
	n.server = addr.String()
	n.serve(t, nil, func(node *qs.Node) {
		failingDouble(nil, status.Error(codes.DataLoss, "it has run")).register(grpcqs.NewServer(node))
	})
	wg.Wait()
	for range 4 {
		require.Equal(t, codes.DataLoss, status.Code(<-errs))
	}
}

// perCallCredentials are credentials.
type perCallCredentials struct{ secure bool }

func (perCallCredentials) GetRequestMetadata(_ context.Context, uri ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer x", "uri": uri[0]}, nil
}
func (c perCallCredentials) RequireTransportSecurity() bool { return c.secure }

// TestCredentials checks that credentials that require a private transport go with a call over TLS
// and shared memory only, and are else Unauthenticated, before anything is sent; others go always.
func TestCredentials(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		tc := testgrpc.NewTestServiceClient(n.pair(t, echoDouble().register))
		for _, secure := range []bool{false, true} {
			var header metadata.MD
			_, err := tc.UnaryCall(testContext(t), newUnaryRequest(1), grpc.PerRPCCredentials(perCallCredentials{secure}),
				grpc.UseCompressor("gzip"), grpc.Header(&header))
			s, serr := tc.FullDuplexCall(testContext(t), grpc.PerRPCCredentials(perCallCredentials{secure}))
			if secure && !n.secure && !n.shared {
				require.Equal(t, codes.Unauthenticated, status.Code(err))
				require.Equal(t, qs.NotRun, grpcqs.FateOf(err))
				require.Equal(t, codes.Unauthenticated, status.Code(serr))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []string{"Bearer x"}, header["authorization"])
			require.True(t, strings.HasSuffix(header["uri"][0], "/grpc.testing.TestService"),
				header["uri"])
			require.NoError(t, serr)
			require.NoError(t, s.CloseSend())
			_, err = s.Recv()
			require.Equal(t, io.EOF, err)
		}
	})
}

// TestPeer checks that both sides know each other: the address, over TLS the verified certificate,
// over shared memory that it is private.
func TestPeer(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		var at atomic.Pointer[peer.Peer]
		d := &double{unary: func(ctx context.Context,
			_ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			p, _ := peer.FromContext(ctx)
			at.Store(p)
			if method, ok := grpc.Method(ctx); !ok ||
				method != testgrpc.TestService_UnaryCall_FullMethodName {
				return nil, errors.New("grpc.Method is " + method)
			}
			return newUnaryResponse(1), nil
		}}
		var target peer.Peer
		_, err := testgrpc.NewTestServiceClient(n.pair(t, d.register)).UnaryCall(testContext(t), newUnaryRequest(1),
			grpc.Peer(&target))
		require.NoError(t, err)
		for _, p := range []*peer.Peer{at.Load(), &target} {
			require.NotEmpty(t, p.Addr.Network())
			require.NotContains(t, p.Addr.String(), "://")
			switch info := p.AuthInfo.(type) {
			case credentials.TLSInfo:
				require.True(t, n.secure)
				require.Equal(t, spiffeID, info.SPIFFEID.String())
				require.NotEmpty(t, info.State.VerifiedChains)
			case grpcqs.AuthInfo:
				require.False(t, n.secure)
				require.Equal(t, n.shared, info.SecurityLevel == credentials.PrivacyAndIntegrity)
			default:
				t.Fatalf("AuthInfo is a %T", info)
			}
		}
	})
}

// A recorder is a stats.Handler that keeps what it gets.
type recorder struct {
	mu   sync.Mutex
	got  []stats.RPCStats
	tags []string
}

func (r *recorder) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags = append(r.tags, info.FullMethodName)
	return context.WithValue(ctx, r, info.FullMethodName)
}

func (r *recorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Value(r) == nil {
		panic("the context is not that of TagRPC")
	}
	r.got = append(r.got, s)
}

func (r *recorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (r *recorder) HandleConn(context.Context, stats.ConnStats)                       {}

func (r *recorder) all() []stats.RPCStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]stats.RPCStats(nil), r.got...)
}

// names returns the kinds of what was recorded.
func (r *recorder) names() (all []string) {
	for _, s := range r.all() {
		name := map[bool]string{true: "client ", false: ""}[s.IsClient()]
		switch s.(type) {
		case *stats.Begin:
			name += "Begin"
		case *stats.InHeader:
			name += "InHeader"
		case *stats.InPayload:
			name += "InPayload"
		case *stats.InTrailer:
			name += "InTrailer"
		case *stats.OutHeader:
			name += "OutHeader"
		case *stats.OutPayload:
			name += "OutPayload"
		case *stats.OutTrailer:
			name += "OutTrailer"
		case *stats.End:
			name += "End"
		}
		all = append(all, name)
	}
	return all
}

// TestStats checks that stats handlers of both sides see a call of each kind, and its handler has
// the context that they have made.
func TestStats(t *testing.T) {
	client, server := &recorder{}, &recorder{}
	tagged := make(chan any, 1)
	d := echoDouble()
	unary := d.unary
	d.unary = func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		tagged <- ctx.Value(server)
		if v := ctx.Value(client); v != nil { // which is a default
			return nil, errors.New("a value from nowhere")
		}
		return unary(ctx, in)
	}
	c := tcpNetwork(t).pair(t, d.register, clientOption{grpcqs.Stats(client)}, serverOption{grpcqs.Stats(server)})
	tc := testgrpc.NewTestServiceClient(c)
	_, err := tc.UnaryCall(testContext(t), newUnaryRequest(5))
	require.NoError(t, err)
	require.Equal(t, testgrpc.TestService_UnaryCall_FullMethodName, <-tagged)
	require.Equal(t, []string{"client Begin", "client OutHeader", "client OutPayload", "client InHeader",
		"client InPayload", "client InTrailer", "client End"}, client.names())
	require.Equal(t, []string{"InHeader", "Begin", "InPayload", "OutHeader", "OutPayload", "OutTrailer",
		"End"}, server.names())

	client.got = nil
	s, err := tc.FullDuplexCall(testContext(t))
	require.NoError(t, err)
	require.NoError(t, s.Send(newRequest(5)))
	_, err = s.Recv()
	require.NoError(t, err)
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
	require.Equal(t, []string{"client Begin", "client OutHeader", "client OutPayload", "client InHeader",
		"client InPayload", "client InTrailer", "client End"}, client.names())
}

// TestStatsOfPanic checks that stats handlers of a server see the end of a call whose handler, or
// interceptor, has panicked.
func TestStatsOfPanic(t *testing.T) {
	for name, opt := range map[string]any{
		"handler": nil,
		"interceptor": grpcqs.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo,
			grpc.UnaryHandler) (any, error) {
			panic("on purpose")
		}),
	} {
		server := &recorder{}
		c := tcpNetwork(t).pair(t, failingDouble(func(context.Context) { panic("on purpose") }, nil).register,
			serverOption{grpcqs.Stats(server)}, opt)
		for kind, call := range callKinds(c) {
			require.Equal(t, codes.Internal, status.Code(call(testContext(t))), "%s, %s", name, kind)
			all := server.all()
			end, ok := all[len(all)-1].(*stats.End)
			require.True(t, ok, "%s, %s: %v", name, kind, server.names())
			require.Equal(t, codes.Internal, status.Code(end.Error))
		}
	}
}

// TestInterceptors checks that interceptors of gRPC run in the order in which they were given, on
// both sides, and may change context, input and error.
func TestInterceptors(t *testing.T) {
	var mu sync.Mutex
	var order []string
	say := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	serverUnary := func(name string) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			say(name)
			out, err := handler(ctx, req)
			if err != nil {
				err = status.Error(codes.DataLoss, name)
			}
			return out, err
		}
	}
	serverStream := func(name string) grpc.StreamServerInterceptor {
		return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			say(name)
			return handler(srv, ss)
		}
	}
	clientUnary := func(name string) grpc.UnaryClientInterceptor {
		return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			say(name)
			return invoker(ctx, method, req, reply, cc, opts...)
		}
	}
	clientStream := func(name string) grpc.StreamClientInterceptor {
		return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			say(name)
			return streamer(ctx, desc, cc, method, opts...)
		}
	}
	c := tcpNetwork(t).pair(t, failingDouble(nil, errors.New("no")).register,
		grpcqs.UnaryInterceptor(serverUnary("s1"), serverUnary("s2")),
		grpcqs.StreamInterceptor(serverStream("s1"), serverStream("s2")),
		grpcqs.UnaryClientInterceptor(clientUnary("c1"), clientUnary("c2")),
		grpcqs.StreamClientInterceptor(clientStream("c1")),
		grpcqs.StreamClientInterceptor(clientStream("c2")))
	err := callKinds(c)["unary"](testContext(t))
	require.Equal(t, "s1", status.Convert(err).Message())
	require.Equal(t, []string{"c1", "c2", "s1", "s2"}, order)
	order = nil
	require.Equal(t, codes.Unknown, status.Code(callKinds(c)["both"](testContext(t))))
	require.Equal(t, []string{"c1", "c2", "s1", "s2"}, order)
}

// TestRetried checks that qs.Retry and qs.Hedge work for gRPC's calls: a method that Idempotent
// names is repeated when its server returns Unavailable.
func TestRetried(t *testing.T) {
	for name, i := range map[string]qs.Interceptor{"retry": qs.Retry(qs.RetryPolicy{Backoff: time.Millisecond}),
		"hedge": qs.Hedge(time.Millisecond)} {
		var n atomic.Int32
		d := &double{unary: func(_ context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse,
			error) {
			if n.Add(1) < 3 && name == "retry" {
				return nil, status.Error(codes.Unavailable, "not now")
			}
			return &testgrpc.SimpleResponse{Payload: in.Payload}, nil
		}}
		net := tcpNetwork(t)
		server := net.serve(t, nil, func(node *qs.Node) { d.register(grpcqs.NewServer(node)) })
		to := net.dial(t, server.Addr(),
			func(c *qs.Config) { c.ClientInterceptors = []qs.Interceptor{i} })
		_, err := testgrpc.NewTestServiceClient(grpcqs.NewClient(to)).UnaryCall(testContext(t), newUnaryRequest(7))
		if name == "retry" {
			require.Equal(t, codes.Unavailable, status.Code(err))
			n.Store(0)
		}
		c := grpcqs.NewClient(to, grpcqs.Idempotent(func(string) bool { return true }))
		out, err := testgrpc.NewTestServiceClient(c).UnaryCall(testContext(t), newUnaryRequest(7))
		require.NoError(t, err, name)
		require.Len(t, out.Payload.Body, 7)
	}
}

// TestSlowReader checks that a client that does not read stops its server after about 0.5 MB, while
// other calls continue; then it gets all messages, in order.
func TestSlowReader(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		const all = 2000
		var sent atomic.Int64
		d := echoDouble()
		d.down = func(_ *testgrpc.StreamingOutputCallRequest,
			s testgrpc.TestService_StreamingOutputCallServer) error {
			for i := range all {
				m := newResponse(1000)
				m.Payload.Body[0], m.Payload.Body[1] = byte(i), byte(i>>8)
				if err := s.Send(m); err != nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		}
		tc := testgrpc.NewTestServiceClient(n.pair(t, d.register))
		s, err := tc.StreamingOutputCall(testContext(t), newRequest(1))
		require.NoError(t, err)
		last := int64(-1)
		for last != sent.Load() { // it has stopped
			last = sent.Load()
			for range 50 {
				_, err := tc.UnaryCall(testContext(t), newUnaryRequest(100))
				require.NoError(t, err)
			}
		}
		require.Less(t, last, int64(all))
		for i := range all {
			m, err := s.Recv()
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i), byte(i >> 8)}, m.Payload.Body[:2])
		}
		_, err = s.Recv()
		require.Equal(t, io.EOF, err)
	})
}

// TestCardinality checks that a call without server streaming that gets no message, or a handler
// that answers twice, is Internal.
func TestCardinality(t *testing.T) {
	d := &double{up: func(testgrpc.TestService_StreamingInputCallServer) error { return nil }}
	tc := testgrpc.NewTestServiceClient(tcpNetwork(t).pair(t, d.register))
	call := func() error {
		s, err := tc.StreamingInputCall(testContext(t))
		require.NoError(t, err)
		_, err = s.CloseAndRecv()
		return err
	}
	require.Equal(t, codes.Internal, status.Code(call()))
	d.up = func(s testgrpc.TestService_StreamingInputCallServer) error {
		_ = s.SendMsg(&testgrpc.StreamingInputCallResponse{})
		return s.SendMsg(&testgrpc.StreamingInputCallResponse{})
	}
	require.Equal(t, codes.Internal, status.Code(call()))
}

// TestStreamsBeside checks that each of many concurrent streams gets the messages that were sent in
// it, in both directions, while others are canceled.
func TestStreamsBeside(t *testing.T) {
	const streams, messages = 100, 100
	for range 3 {
		tc := testgrpc.NewTestServiceClient(tcpNetwork(t).pair(t, echoDouble().register))
		var wg sync.WaitGroup
		for k := range byte(streams) {
			ctx, cancel := context.WithCancel(testContext(t))
			s, err := tc.FullDuplexCall(ctx)
			require.NoError(t, err)
			wg.Go(func() {
				for i := range byte(messages) {
					m := newRequest(1000)
					m.Payload.Body[0], m.Payload.Body[999] = k, i
					if err := s.Send(m); err != nil {
						return
					}
				}
				_ = s.CloseSend()
			})
			wg.Go(func() {
				defer cancel()
				for i := range byte(messages) {
					m, err := s.Recv()
					if err != nil || m.Payload.Body[0] != k || m.Payload.Body[999] != i {
						t.Errorf("message %d of stream %d: %v, %v", i, k, m.GetPayload().GetBody(), err)
						return
					}
					if k%2 == 1 && i == messages/2 {
						return
					}
				}
				if _, err := s.Recv(); err != io.EOF {
					t.Errorf("the end of stream %d: %v", k, err)
				}
			})
		}
		wg.Wait()
	}
}

// TestOneMessage checks that a call without client streaming sends one message, also when RecvMsg
// has begun before SendMsg; a second one is refused.
func TestOneMessage(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		c := n.pair(t, echoDouble().register)
		for _, early := range []bool{false, true} {
			s, err := c.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true},
				testgrpc.TestService_StreamingOutputCall_FullMethodName, grpc.UseCompressor("gzip"))
			require.NoError(t, err)
			header, begun := make(chan error, 1), make(chan struct{})
			go func() {
				close(begun)
				if early {
					_, err := s.Header() // which makes the call
					header <- err
				}
			}()
			<-begun
			require.NoError(t, s.SendMsg(newRequest(100)))
			require.Equal(t, codes.Internal, status.Code(s.SendMsg(newRequest(100))))
			require.NoError(t, s.CloseSend())
			if early {
				require.NoError(t, <-header)
			}
			for range 3 {
				m := &testgrpc.StreamingOutputCallResponse{}
				require.NoError(t, s.RecvMsg(m))
				require.Len(t, m.Payload.GetBody(), 100)
			}
			require.Equal(t, io.EOF, s.RecvMsg(&testgrpc.StreamingOutputCallResponse{}))
		}
	})
}
