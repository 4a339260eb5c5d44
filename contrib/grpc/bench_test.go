package grpcqs_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// BenchmarkCalls measures each kind of call of 64 bytes over tcp, between two nodes of this
// process. examples/beside compares processes.
func BenchmarkCalls(b *testing.B) {
	d := echoDouble()
	d.unary = func(_ context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return &testgrpc.SimpleResponse{Payload: in.Payload}, nil
	}
	d.down = func(in *testgrpc.StreamingOutputCallRequest,
		s testgrpc.TestService_StreamingOutputCallServer) error {
		m := &testgrpc.StreamingOutputCallResponse{Payload: in.Payload}
		for range in.ResponseParameters[0].Size {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}
	tc := testgrpc.NewTestServiceClient(tcpNetwork(b).pair(b, d.register))
	b.Run("unary", func(b *testing.B) {
		in := newUnaryRequest(64)
		b.ReportAllocs()
		for b.Loop() {
			_, err := tc.UnaryCall(b.Context(), in)
			require.NoError(b, err)
		}
	})
	b.Run("unary64", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			in := newUnaryRequest(64)
			for pb.Next() {
				_, err := tc.UnaryCall(b.Context(), in)
				require.NoError(b, err)
			}
		})
	})
	b.Run("down", func(b *testing.B) {
		in := newRequest(64)
		in.ResponseParameters = []*testgrpc.ResponseParameters{{Size: int32(b.N)}}
		b.ReportAllocs()
		s, err := tc.StreamingOutputCall(b.Context(), in)
		for err == nil {
			_, err = s.Recv()
		}
		require.Equal(b, io.EOF, err)
	})
	b.Run("pingpong", func(b *testing.B) {
		s, err := tc.FullDuplexCall(b.Context())
		require.NoError(b, err)
		in := newRequest(64)
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, s.Send(in))
			_, err = s.Recv()
			require.NoError(b, err)
		}
		require.NoError(b, s.CloseSend())
		_, err = s.Recv()
		require.Equal(b, io.EOF, err)
	})
}
