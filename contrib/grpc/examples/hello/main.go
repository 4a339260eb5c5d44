// Command hello is the greeter of gRPC's examples over Quicksilver. The generated code is
// unchanged; two lines differ from the program for grpc-go.
package main

import (
	"context"
	"fmt"
	"log"

	pb "google.golang.org/grpc/examples/helloworld/helloworld"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type greeter struct{ pb.UnimplementedGreeterServer }

func (greeter) SayHello(_ context.Context, in *pb.HelloRequest) (*pb.HelloReply, error) {
	return &pb.HelloReply{Message: "hello, " + in.Name}, nil
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	server, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	pb.RegisterGreeterServer(grpcqs.NewServer(server), greeter{}) // grpc.NewServer() before
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()

	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	peer, err := client.Peer(ctx, server.Addr().String())
	check(err)
	greeting := pb.NewGreeterClient(grpcqs.NewClient(peer)) // grpc.NewClient(addr) before
	out, err := greeting.SayHello(ctx, &pb.HelloRequest{Name: "Ada"})
	fmt.Println(out.GetMessage(), err)
	check(client.Close())
	stop() // as GracefulStop
	check(<-ended)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
