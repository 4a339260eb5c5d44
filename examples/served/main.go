// Command served is a service with all that its operator wants: probes, gauges, a page for people, and an end that cuts nothing off.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

var Greet = qs.Define[string, string]("greet")

func serve(ctx context.Context, addr, page string) error {
	cfg := qs.Config{
		Name:               "greeter",                          // in the logs and tools of peers
		ShutdownTimeout:    20 * time.Second,                   // what calls under way get after SIGTERM
		Inspect:            true,                               // for qs rpcs, qs call, qs top and qs ger
		ServerInterceptors: []qs.Interceptor{qs.LogCalls(nil)}, // a line for each call that fails
	}
	shown := new(debug.Page)
	shown.Attach(&cfg) // counts, errors and times; debug.New(node) after Open shows the rest
	node, err := qs.Open(addr, cfg)
	if err != nil {
		return err
	}
	defer node.Close()
	listener, err := net.Listen("tcp", page) // before web.Serve, so that a port that is taken is an error
	if err != nil {
		return err
	}
	web := &http.Server{Handler: shown, ReadHeaderTimeout: 10 * time.Second}
	go web.Serve(listener)
	defer web.Close()
	Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	log.Printf("serving at %s, with a page at http://%s/", node.Addr(), listener.Addr())
	return node.Serve(ctx) // until SIGTERM: then new calls are refused, and those under way end
}

func main() {
	addr := flag.String("listen", "tcp://127.0.0.1:7119", "`address` to serve at")
	page := flag.String("page", "127.0.0.1:7120", "`host:port` of the page")
	flag.Parse()
	log.Printf("when it serves, call it: go run ./cmd/qs call %s greet '\"Ada\"'", *addr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *addr, *page); err != nil {
		log.Fatal(err)
	}
}
