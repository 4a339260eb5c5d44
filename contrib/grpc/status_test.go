package grpcqs_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestStatusArrives checks that every code, of 17 and of a program's own, comes back from every
// kind of call, with its text, and so does its code of package qs, which interceptors of the Node
// see.
func TestStatusArrives(t *testing.T) {
	want := map[codes.Code]qs.Code{
		codes.Canceled: 129, codes.Unknown: 130, codes.InvalidArgument: qs.ErrBadInput,
		codes.DeadlineExceeded: 132,
		codes.NotFound:         qs.ErrNotFound, codes.AlreadyExists: qs.ErrAlreadyExists,
		codes.PermissionDenied:  qs.ErrDenied,
		codes.ResourceExhausted: qs.ErrExhausted, codes.FailedPrecondition: 137,
		codes.Aborted: qs.ErrAborted, codes.OutOfRange: 139,
		codes.Unimplemented: 140, codes.Internal: qs.ErrInternal, codes.Unavailable: qs.ErrUnavailable,
		codes.DataLoss:        143,
		codes.Unauthenticated: 144, 4711: 130,
	}
	d := &double{}
	c := tcpNetwork(t).pair(t, d.register)
	for code, native := range want {
		st := status.New(code, "text of "+code.String())
		*d = *failingDouble(nil, st.Err())
		for kind, call := range callKinds(c) {
			err := call(testContext(t))
			require.Equal(t, code, status.Code(err), "%s: %v", kind, err)
			require.Equal(t, st.Message(), status.Convert(err).Message(), kind)
			require.Equal(t, native, qs.CodeOf(err), kind)
			require.Equal(t, qs.Ran, grpcqs.FateOf(err), kind)
			require.ErrorIs(t, err, st.Err(), kind)
		}
	}
}

// TestStatusLimits checks that details of up to 64 KiB arrive whole, from every kind of call, with
// the trailer; a status beyond the limit is ResourceExhausted and says so; a text that is no UTF-8
// is mended.
func TestStatusLimits(t *testing.T) {
	d := &double{}
	c := tcpNetwork(t).pair(t, d.register)
	for _, size := range []int{0, 1 << 10, 64 << 10} {
		st, err := status.New(codes.Aborted,
			"why").WithDetails(&errdetails.DebugInfo{Detail: strings.Repeat("x", size)})
		require.NoError(t, err)
		*d = *failingDouble(func(ctx context.Context) {
			require.NoError(t, grpc.SetTrailer(ctx,
				metadata.Pairs("t", "1", "t", "2", "t-bin", "\x00\xff")))
		}, st.Err())
		for kind, call := range callKinds(c) {
			err := call(testContext(t))
			require.True(t, proto.Equal(st.Proto(), status.Convert(err).Proto()), "%s, %d: %v", kind,
				size, err)
			require.Equal(t, qs.ErrAborted, qs.CodeOf(err))
		}
	}
	st, err := status.New(codes.Aborted,
		"why").WithDetails(&errdetails.DebugInfo{Detail: strings.Repeat("x", 70<<10)})
	require.NoError(t, err)
	*d = *failingDouble(nil, st.Err())
	for kind, call := range callKinds(c) {
		err := call(testContext(t))
		require.Equal(t, codes.ResourceExhausted, status.Code(err), kind)
		require.Contains(t, err.Error(), "Aborted")
	}
	*d = *failingDouble(nil, status.Error(codes.NotFound, "a\xffb"))
	for _, call := range callKinds(c) {
		require.Equal(t, "a\uFFFDb", status.Convert(call(testContext(t))).Message())
	}
}

// TestStatusOfErrors checks that errors that are no statuses become the status that grpc-go gives
// them, a panic is Internal, and a method that is not registered is Unimplemented and has not run.
func TestStatusOfErrors(t *testing.T) {
	d := &double{}
	c := tcpNetwork(t).pair(t, d.register)
	for err, want := range map[error]codes.Code{
		errors.New("plain"):      codes.Unknown,
		io.EOF:                   codes.Unknown,
		context.DeadlineExceeded: codes.DeadlineExceeded,
		context.Canceled:         codes.Canceled,
		hg.Errorf(qs.ErrNotFound, "of package qs"):   codes.Unknown,
		status.Error(codes.OK, "which is no error"):  codes.Unknown,
		&wrapped{status.Error(codes.DataLoss, "in")}: codes.DataLoss,
	} {
		if err == nil {
			continue
		}
		*d = *failingDouble(nil, err)
		for kind, call := range callKinds(c) {
			require.Equal(t, want, status.Code(call(testContext(t))), "%s: %v", kind, err)
		}
	}
	*d = *failingDouble(func(context.Context) { panic("a bug of the handler") }, nil)
	for kind, call := range callKinds(c) {
		require.Equal(t, codes.Internal, status.Code(call(testContext(t))), kind)
	}
	other := testgrpc.NewUnimplementedServiceClient(c)
	_, err := other.UnimplementedCall(testContext(t), &testgrpc.Empty{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorIs(t, err, qs.ErrNoMethod)
	require.Contains(t, status.Convert(err).Message(), "UnimplementedCall is not served by tcp://")
	require.Equal(t, qs.NotRun, grpcqs.FateOf(err))
}

type wrapped struct{ error }

func (w *wrapped) Unwrap() error { return w.error }

// TestForeignHandler checks that an answer of a handler of package qs has the status of the table.
func TestForeignHandler(t *testing.T) {
	for code, want := range map[qs.Code]codes.Code{
		qs.ErrBadInput: codes.InvalidArgument, qs.ErrNotFound: codes.NotFound,
		qs.ErrAlreadyExists: codes.AlreadyExists, qs.ErrDenied: codes.PermissionDenied,
		qs.ErrExhausted: codes.ResourceExhausted, qs.ErrAborted: codes.Aborted,
		qs.ErrInternal: codes.Internal, qs.ErrUnavailable: codes.Unavailable,
		qs.ErrNotReady: codes.Unavailable, qs.ErrDraining: codes.Unavailable, 143: codes.DataLoss,
		200: codes.Unknown, qs.ErrTimeout: codes.DeadlineExceeded,
		qs.ErrPermission: codes.PermissionDenied, hg.ErrOverflow: codes.ResourceExhausted,
	} {
		cfg := func(c *qs.Config) {
			c.ServerInterceptors = []qs.Interceptor{func(context.Context, *qs.Call,
				func(context.Context) error) error {
				return qs.Errorf(code, "in words")
			}}
		}
		n := tcpNetwork(t)
		server := n.serve(t, cfg, func(node *qs.Node) {
			failingDouble(nil,
				nil).register(grpcqs.NewServer(node))
		})
		err := callKinds(grpcqs.NewClient(n.dial(t, server.Addr(), nil)))["unary"](testContext(t))
		require.Equal(t, want, status.Code(err), "%v: %v", code, err)
		require.Equal(t, "in words", status.Convert(err).Message())
		require.Equal(t, qs.NotRun, grpcqs.FateOf(err))
	}
}
