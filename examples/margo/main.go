// Command margo is a provider of a Margo service and a client of it. Either of them may be replaced by a C process:
//
//	margo                  both, in one process
//	margo serve            the provider; it prints its address
//	margo call ADDRESS     the client
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// In C: MERCURY_GEN_PROC(sum_in_t, ((int32_t)(a))((int32_t)(b))).
type sumIn struct{ A, B int32 }

// In C: MARGO_REGISTER_PROVIDER(mid, "sum", sum_in_t, int32_t, on_sum, provider_id, pool).
var sum = mercury.DefineMargo[sumIn, int32]("sum")

// serve begins provider 42, which calculates sums until its node is closed.
func serve() (*mercury.Node, error) {
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		return nil, err
	}
	provider, err := node.Provide(42, "calculator")
	if err != nil {
		return nil, err
	}
	sum.HandleAt(provider, func(_ context.Context, in sumIn) (int32, error) { return in.A + in.B, nil })
	return node, nil
}

// call has provider 42 of the process at addr add two numbers.
func call(ctx context.Context, addr string) (int32, error) {
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		return 0, err
	}
	defer node.Close()
	return sum.At(42).Call(ctx, node, addr, sumIn{40, 2})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == "call" {
		fmt.Println(call(ctx, os.Args[2]))
		return
	}
	node, err := serve()
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		fmt.Println(node.Addr())
		<-ctx.Done()
		return
	}
	fmt.Println(call(ctx, node.Addr()))
}
