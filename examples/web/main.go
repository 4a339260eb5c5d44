// Command web is a service that browsers and curl call, too: its methods over HTTP, as JSON, with a page.
//
//	go run ./examples/web
//	curl --json '"Ada"' http://127.0.0.1:7124/rpc/greet
//	curl -N --json 3 http://127.0.0.1:7124/rpc/countdown
package main

import (
	"context"
	_ "embed"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/httpgate"
)

var (
	Greet     = qs.Define[string, string]("greet")
	Countdown = qs.DefineStream[int, int]("countdown")
)

//go:embed page.html
var page string

// handler returns what serves the methods of a node, and the page, over HTTP.
func handler(node *qs.Node) (http.Handler, error) {
	own, err := node.Peer(context.Background(), node.Addr().String())
	if err != nil {
		return nil, err
	}
	gate := httpgate.New(own, httpgate.Options{Timeout: 10 * time.Second}, httpgate.Unary(Greet), httpgate.Stream(Countdown))
	mux := http.NewServeMux()
	mux.Handle("/rpc/", http.StripPrefix("/rpc/", gate))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(page)) })
	return mux, nil
}

func serve(ctx context.Context, addr, web string) error {
	node, err := qs.Open(addr, qs.Config{})
	if err != nil {
		return err
	}
	defer node.Close()
	Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	Countdown.Handle(node, func(ctx context.Context, from int, send func(int) error) error {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ; from > 0; from-- {
			if err := send(from); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done(): // the page was closed
				return ctx.Err()
			case <-qs.Draining(ctx).Done():
				return qs.Errorf(qs.ErrDraining, "the server stops")
			}
		}
		return nil
	})
	h, err := handler(node)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", web)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	defer server.Close()
	log.Printf("serving at %s, and at http://%s/", node.Addr(), listener.Addr())
	return node.Serve(ctx)
}

func main() {
	addr := flag.String("listen", "tcp://127.0.0.1:7123", "`address` to serve at")
	web := flag.String("web", "127.0.0.1:7124", "`host:port` of HTTP")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *addr, *web); err != nil {
		log.Fatal(err)
	}
}
