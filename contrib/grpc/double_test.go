package grpcqs_test

import (
	"context"

	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
)

// A double is a service whose behavior each test sets.
type double struct {
	testgrpc.UnimplementedTestServiceServer
	unary func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	down  func(in *testgrpc.StreamingOutputCallRequest,
		s testgrpc.TestService_StreamingOutputCallServer) error
	up   func(s testgrpc.TestService_StreamingInputCallServer) error
	both func(s testgrpc.TestService_FullDuplexCallServer) error
}

func (d *double) register(s *grpcqs.Server) { testgrpc.RegisterTestServiceServer(s, d) }

func (d *double) UnaryCall(
	ctx context.Context, in *testgrpc.SimpleRequest,
) (*testgrpc.SimpleResponse, error) {
	return d.unary(ctx, in)
}

func (d *double) StreamingOutputCall(
	in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer,
) error {
	return d.down(in, s)
}

func (d *double) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	return d.up(s)
}

func (d *double) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error { return d.both(s) }

// failingDouble is a double whose methods all end with err, after what before does.
func failingDouble(before func(ctx context.Context), err error) *double {
	if before == nil {
		before = func(context.Context) {}
	}
	return &double{
		unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			before(ctx)
			return nil, err
		},
		down: func(_ *testgrpc.StreamingOutputCallRequest,
			s testgrpc.TestService_StreamingOutputCallServer) error {
			before(s.Context())
			return err
		},
		up: func(s testgrpc.TestService_StreamingInputCallServer) error {
			before(s.Context())
			return err
		},
		both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			before(s.Context())
			return err
		},
	}
}

// newResponse returns one of a stream with a body of n bytes.
func newResponse(n int) *testgrpc.StreamingOutputCallResponse {
	return &testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// newRequest is message for the other direction.
func newRequest(n int) *testgrpc.StreamingOutputCallRequest {
	return &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// newUnaryRequest returns the input of a unary call with a body of n bytes.
func newUnaryRequest(n int) *testgrpc.SimpleRequest {
	return &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// newUnaryResponse returns the output of one.
func newUnaryResponse(n int) *testgrpc.SimpleResponse {
	return &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: make([]byte, n)}}
}

// callKinds calls f for each kind of call with what makes one and returns its error.
func callKinds(c *grpcqs.Client) map[string]func(ctx context.Context) error {
	tc := testgrpc.NewTestServiceClient(c)
	return map[string]func(ctx context.Context) error{
		"unary": func(ctx context.Context) error {
			_, err := tc.UnaryCall(ctx, newUnaryRequest(1))
			return err
		},
		"down": func(ctx context.Context) error {
			s, err := tc.StreamingOutputCall(ctx, newRequest(1))
			for err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"up": func(ctx context.Context) error {
			s, err := tc.StreamingInputCall(ctx)
			if err == nil {
				_, err = s.CloseAndRecv()
			}
			return err
		},
		"both": func(ctx context.Context) error {
			s, err := tc.FullDuplexCall(ctx)
			for err == nil {
				_, err = s.Recv()
			}
			return err
		},
	}
}
