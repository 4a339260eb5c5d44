package grpcqs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	channelz "google.golang.org/grpc/channelz/grpc_channelz_v1"
	channelzservice "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
)

// TestServices checks that grpc-go's own services, health, reflection and channelz, register on a
// Server, and answer.
func TestServices(t *testing.T) {
	eachNetwork(t, func(t *testing.T, n network) {
		h := health.NewServer()
		c := n.pair(t, func(s *grpcqs.Server) {
			echoDouble().register(s)
			healthpb.RegisterHealthServer(s, h)
			reflection.Register(s)
			channelzservice.RegisterChannelzServiceToServer(s)
			info := s.GetServiceInfo()
			require.Len(t, info, 5)
			require.Len(t, info[testgrpc.TestService_ServiceDesc.ServiceName].Methods, 8)
		})
		ctx := testContext(t)

		hc := healthpb.NewHealthClient(c)
		w, err := hc.Watch(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING,
			healthpb.HealthCheckResponse_NOT_SERVING} {
			got, err := w.Recv()
			require.NoError(t, err)
			require.Equal(t, want, got.Status)
			h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		}
		_, err = hc.Check(ctx, &healthpb.HealthCheckRequest{Service: "nobody"})
		require.Equal(t, codes.NotFound, status.Code(err))

		r, err := reflectionpb.NewServerReflectionClient(c).ServerReflectionInfo(ctx)
		require.NoError(t, err)
		require.NoError(t, r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}))
		got, err := r.Recv()
		require.NoError(t, err)
		require.Len(t, got.GetListServicesResponse().Service, 5)
		require.NoError(t, r.CloseSend())

		_, err = channelz.NewChannelzClient(c).GetServers(ctx, &channelz.GetServersRequest{})
		require.NoError(t, err)
	})
}
