// Command routeguide implements the route guide of the gRPC tutorial, with all four kinds of calls,
// over either grpc-go or Quicksilver. The generated code and the service are the same. The only two
// lines that differ are marked "line 1" and "line 2".
//
//	go run ./examples/routeguide             # over Quicksilver
//	go run ./examples/routeguide -grpc       # over grpc-go
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/examples/route_guide/routeguide"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func main() {
	over := flag.Bool("grpc", false, "over grpc-go")
	flag.Parse()
	run := overQuicksilver
	if *over {
		run = overGRPC
	}
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func overGRPC(out io.Writer) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer() // line 1
	pb.RegisterRouteGuideServer(server, newGuide())
	go func() { _ = server.Serve(lis) }()
	defer server.GracefulStop()

	creds := insecure.NewCredentials()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(creds)) // line 2
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return callAll(out, pb.NewRouteGuideClient(conn))
}

func overQuicksilver(out io.Writer) error {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	if err != nil {
		return err
	}
	server := grpcqs.NewServer(node) // line 1
	pb.RegisterRouteGuideServer(server, newGuide())
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- node.Serve(ctx) }()
	defer func() { stop(); <-served }()

	local, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = local.Close() }()
	peer, err := local.Peer(ctx, node.Addr().String())
	if err != nil {
		return err
	}
	conn := grpcqs.NewClient(peer) // line 2
	return callAll(out, pb.NewRouteGuideClient(conn))
}

// A guide serves a fixed list of features and stores the notes of RouteChat by location.
type guide struct {
	pb.UnimplementedRouteGuideServer
	features []*pb.Feature

	mu    sync.Mutex
	notes map[string][]*pb.RouteNote
}

func newGuide() *guide {
	g := &guide{notes: map[string][]*pb.RouteNote{}}
	for i, name := range []string{"harbor", "market", "old bridge", "observatory"} {
		g.features = append(
			g.features,
			&pb.Feature{Name: name, Location: &pb.Point{Latitude: int32(i), Longitude: int32(i)}},
		)
	}
	return g
}

// GetFeature returns the feature at a point. It is a unary method.
func (g *guide) GetFeature(_ context.Context, at *pb.Point) (*pb.Feature, error) {
	for _, f := range g.features {
		if proto.Equal(f.Location, at) {
			return f, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "nothing at %v", at)
}

// ListFeatures sends the features within a rectangle. It is a server-streaming method.
func (g *guide) ListFeatures(in *pb.Rectangle, s pb.RouteGuide_ListFeaturesServer) error {
	for _, f := range g.features {
		if l := f.Location.Latitude; l >= in.Lo.Latitude && l <= in.Hi.Latitude {
			if err := s.Send(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// RecordRoute counts the points of a route. It is a client-streaming method.
func (g *guide) RecordRoute(s pb.RouteGuide_RecordRouteServer) error {
	sum := &pb.RouteSummary{}
	for {
		at, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(sum)
		}
		if err != nil {
			return err
		}
		sum.PointCount++
		if _, err := g.GetFeature(s.Context(), at); err == nil {
			sum.FeatureCount++
		}
	}
}

// RouteChat answers each note with the earlier notes at its location. It streams in both
// directions.
func (g *guide) RouteChat(s pb.RouteGuide_RouteChatServer) error {
	for {
		note, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		g.mu.Lock()
		at := note.Location.String()
		before := append([]*pb.RouteNote(nil), g.notes[at]...)
		g.notes[at] = append(g.notes[at], note)
		g.mu.Unlock()
		for _, n := range before {
			if err := s.Send(n); err != nil {
				return err
			}
		}
	}
}

// callAll makes one call of each kind and prints the results.
func callAll(out io.Writer, guide pb.RouteGuideClient) error {
	ctx := context.Background()
	at, err := guide.GetFeature(ctx, &pb.Point{Latitude: 1, Longitude: 1})
	if err != nil {
		return err
	}
	_, missing := guide.GetFeature(ctx, &pb.Point{Latitude: 9})
	fmt.Fprintln(out, "here is the", at.Name, "and elsewhere", status.Code(missing))

	list, err := guide.ListFeatures(
		ctx,
		&pb.Rectangle{Lo: &pb.Point{Latitude: 1}, Hi: &pb.Point{Latitude: 2}},
	)
	for err == nil {
		var f *pb.Feature
		if f, err = list.Recv(); err == nil {
			fmt.Fprintln(out, "on the way:", f.Name)
		}
	}
	if err != io.EOF {
		return err
	}

	route, err := guide.RecordRoute(ctx)
	if err != nil {
		return err
	}
	for i := range int32(10) {
		if err = route.Send(&pb.Point{Latitude: i, Longitude: i}); err != nil {
			return err
		}
	}
	sum, err := route.CloseAndRecv()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, sum.PointCount, "points,", sum.FeatureCount, "places")

	chat, err := guide.RouteChat(ctx)
	if err != nil {
		return err
	}
	for _, text := range []string{"first", "second", "third"} {
		if err = chat.Send(&pb.RouteNote{Location: &pb.Point{}, Message: text}); err != nil {
			return err
		}
	}
	if err = chat.CloseSend(); err != nil {
		return err
	}
	for {
		note, err := chat.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "read a note:", note.Message)
	}
}
