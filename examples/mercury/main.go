// Command mercury is a service for C programs that use Mercury, and a client of such programs.
//
//	mercury serve               prints its address; then, in C: hg_rate, hg_first, hg_bw_read or hg_bw_write
//	mercury call ADDRESS NAME   calls the method greet of another mercury serve, or of a C program that has registered it
//	mercury rate ADDRESS        measures C's hg_perf_server
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
)

// In C: MERCURY_REGISTER(class, "greet", hg_string_t, hg_string_t, on_greet).
var Greet = mercury.Define[string, string]("greet")

func serve(ctx context.Context, w io.Writer) error {
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		return err
	}
	defer node.Close()
	Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	perf.Serve(node, nil)
	fmt.Fprintln(w, node.Addr())
	// The C programs read the address from a file.
	if err := os.WriteFile("port.cfg", []byte(node.Addr()+"\n"), 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func call(ctx context.Context, addr, name string) (string, error) {
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		return "", err
	}
	defer node.Close()
	return Greet.Call(ctx, node, addr, name)
}

func rate(ctx context.Context, w io.Writer, addr string) error {
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		return err
	}
	defer node.Close()
	for _, n := range []int{1, 16, 64} {
		r, err := perf.Rate(ctx, node, addr, perf.Options{InFlight: n})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d in flight: %.0f calls/s\n", n, r.Rate())
	}
	return perf.Done(ctx, node, addr)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve(ctx, os.Stdout)
	case len(os.Args) == 4 && os.Args[1] == "call":
		var answer string
		answer, err = call(ctx, os.Args[2], os.Args[3])
		fmt.Println(answer)
	case len(os.Args) == 3 && os.Args[1] == "rate":
		err = rate(ctx, os.Stdout, os.Args[2])
	default:
		err = fmt.Errorf("usage: mercury serve | call ADDRESS NAME | rate ADDRESS")
	}
	if err != nil {
		log.Fatal(err)
	}
}
