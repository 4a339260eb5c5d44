package grpcqs_test

import (
	"context"
	"testing"

	"github.com/fullstorydev/grpchan/grpchantesting"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
)

// TestChannel checks that the cases that grpchan has for channels pass.
func TestChannel(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		c := n.pair(t, func(s *grpcqs.Server) {
			grpchantesting.RegisterTestServiceServer(s,
				&grpchantesting.TestServer{})
		})
		grpchantesting.RunChannelTestCases(t, c, true)
	})
}

// A fatalLogger is a logger for package interop, whose cases report failures with Fatalf.
type fatalLogger struct {
	grpclog.LoggerV2
	t *testing.T
}

func (f *fatalLogger) FatalDepth(_ int, args ...any)   { f.t.Fatal(args...) }
func (f *fatalLogger) ErrorDepth(_ int, args ...any)   { f.t.Log(args...) }
func (f *fatalLogger) WarningDepth(_ int, args ...any) {}
func (f *fatalLogger) InfoDepth(_ int, args ...any)    {}

// TestInterop checks that the cases of grpc-go's own interoperability tests pass. Not among them
// are those that need Google's services (DoComputeEngineCreds, DoServiceAccountCreds,
// DoJWTTokenCreds, DoOauth2TokenCreds, DoPerRPCCreds, DoGoogleDefaultCredentials,
// DoComputeEngineChannelCredentials), those of grpc-go's balancers (DoPickFirstUnary,
// DoORCAPerRPCTest, DoORCAOOBTest), and DoSoakTest, which makes connections itself.
func TestInterop(t *testing.T) {
	log := &fatalLogger{}
	grpclog.SetLoggerV2(log)
	t.Cleanup(func() {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(testWriter{}, testWriter{},
			testWriter{}))
	})
	for _, n := range networks(t) { // one after the other: there is one logger
		c := n.pair(t, func(s *grpcqs.Server) {
			testgrpc.RegisterTestServiceServer(s,
				interop.NewTestServer())
		})
		tc := testgrpc.NewTestServiceClient(c)
		for name, f := range map[string]func(ctx context.Context){
			"EmptyUnaryCall":  func(ctx context.Context) { interop.DoEmptyUnaryCall(ctx, tc) },
			"LargeUnaryCall":  func(ctx context.Context) { interop.DoLargeUnaryCall(ctx, tc) },
			"ClientStreaming": func(ctx context.Context) { interop.DoClientStreaming(ctx, tc) },
			"ServerStreaming": func(ctx context.Context) { interop.DoServerStreaming(ctx, tc) },
			"PingPong":        func(ctx context.Context) { interop.DoPingPong(ctx, tc) },
			"EmptyStream":     func(ctx context.Context) { interop.DoEmptyStream(ctx, tc) },
			"TimeoutOnSleepingServer": func(ctx context.Context) {
				interop.DoTimeoutOnSleepingServer(ctx,
					tc)
			},
			"CancelAfterBegin": func(ctx context.Context) { interop.DoCancelAfterBegin(ctx, tc) },
			"CancelAfterFirstResponse": func(ctx context.Context) {
				interop.DoCancelAfterFirstResponse(ctx,
					tc)
			},
			"CustomMetadata": func(ctx context.Context) { interop.DoCustomMetadata(ctx, tc) },
			"StatusCodeAndMessage": func(ctx context.Context) {
				interop.DoStatusCodeAndMessage(ctx,
					tc)
			},
			"SpecialStatusMessage": func(ctx context.Context) {
				interop.DoSpecialStatusMessage(ctx,
					tc)
			},
			"UnimplementedService": func(ctx context.Context) {
				interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(c))
			},
			"UnimplementedMethod": func(ctx context.Context) { // DoUnimplementedMethod takes a *grpc.ClientConn
				err := c.Invoke(ctx, "/grpc.testing.TestService/UnimplementedCall", &testgrpc.Empty{},
					&testgrpc.Empty{})
				if status.Code(err) != codes.Unimplemented {
					log.t.Fatalf("got %v, want Unimplemented", err)
				}
			},
		} {
			t.Run(n.name+"/"+name, func(t *testing.T) {
				log.t = t
				f(testContext(t))
			})
		}
	}
}

type testWriter struct{}

func (testWriter) Write(b []byte) (int, error) { return len(b), nil }
