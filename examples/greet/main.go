// Command greet is a typed service and its client: "greet" serves, "greet NAME ..." calls it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var Greet = qs.Define[string, string]("greet") // both programs import it

func serve(ctx context.Context, addr string) error {
	node, err := qs.Open(addr, qs.Config{Inspect: true}) // for the tools: qs rpcs, qs call, qs top, qs ger
	if err != nil {
		return err
	}
	Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	return node.Serve(ctx) // until ctx ends; then calls that are under way may end
}

func client(ctx context.Context, w io.Writer, addr string, names ...string) error {
	node, err := qs.Open("tcp://", qs.Config{}) // one for the life of the program: it keeps its connections
	if err != nil {
		return err
	}
	defer node.Close()
	server, err := node.Peer(ctx, addr) // for any number of calls, from any goroutine
	if err != nil {
		return err
	}
	for _, name := range names {
		answer, err := Greet.Call(ctx, server, name)
		if err != nil {
			return err
		}
		fmt.Fprintln(w, answer)
	}
	return nil
}

const addr = "tcp://127.0.0.1:7117"

// run serves, or calls with names.
func run(ctx context.Context, w io.Writer, names ...string) error {
	if len(names) == 0 {
		fmt.Fprintf(w, "serving at %s until Ctrl-C; elsewhere: go run ./examples/greet Ada\n", addr)
		return serve(ctx, addr)
	}
	return client(ctx, w, addr, names...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]...); err != nil {
		log.Fatal(err)
	}
}
