package qs_test

import (
	"context"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Greet is a variable that both programs import.
var Greet = qs.Define[string, string]("greet")

// Example has a server and a client; here they are one program.
func Example() {
	server, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	if err != nil {
		panic(err)
	}
	Greet.Handle(server, func(ctx context.Context, name string) (string, error) { return "hello, " + name, nil })
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx) }()

	client, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	peer, err := client.Peer(ctx, server.Addr().String())
	if err != nil {
		panic(err)
	}
	answer, err := Greet.Call(ctx, peer, "Ada")
	fmt.Println(answer, err)

	stop() // Serve drains: handlers that run may end, for Config.ShutdownTimeout at most
	fmt.Println(<-ended)
	// Output:
	// hello, Ada <nil>
	// <nil>
}
