// Command hello is an origin and a target. The origin sends its name, and the target returns a
// greeting.
//
//	go run ./examples/hello                                  both, in one process
//	go run ./examples/hello -target tcp://127.0.0.1:7000     the target, until it is interrupted
//	go run ./examples/hello -origin tcp://127.0.0.1:7000     the origin
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/request"
)

const greet = "hello/greet"

func main() {
	listen := flag.String("target", "", "be only the target, and listen at this `address`")
	call := flag.String("origin", "", "be only the origin, and call this `address`")
	flag.Parse()
	if *listen != "" {
		hctx := newTarget(*listen)
		fmt.Println("listening at", hctx.Self())
		serve(hctx)
		return
	}
	run(os.Stdout, *call)
}

// run calls the target at addr, or a target of its own if addr is empty.
func run(out io.Writer, addr string) {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if addr == "" {
		target := newTarget("tcp://127.0.0.1:0")
		go serve(target)
		defer func() { check(target.Class().Shutdown(ctx)) }()
		addr = target.Self().String()
	}
	origin(ctx, out, addr)
}

// newTarget opens a class that listens, and returns a context that serves greet.
func newTarget(listen string) *hg.Context {
	class := must(hg.Open(listen, hg.Config{}))
	must(class.Register(greet, func(h hg.Request) error {
		var name string
		if err := h.Input(&name); err != nil {
			return err
		}
		return h.Respond("hello, "+name, nil)
	}))
	return must(class.NewContext())
}

// serve moves bytes and runs handlers until the class is closed.
func serve(hctx *hg.Context) {
	for hctx.Progress(-1) == nil {
		hctx.Trigger(0)
	}
}

// origin looks up the address, forwards one call, and prints the answer.
func origin(ctx context.Context, out io.Writer, addr string) {
	class := must(hg.Open("tcp://", hg.Config{}))
	defer func() { check(class.Shutdown(ctx)) }()
	id := must(class.Register(greet, nil)) // no handler, because this process only calls
	hctx := must(class.NewContext())
	peer := must(hctx.LookupWait(ctx, addr))

	h := must(hctx.Create(peer, id))
	defer h.Close()
	done := request.NewClass(hctx).Create(h.Cancel)
	check(h.Forward("world", func(_ *hg.Handle, err error) { done.Complete(err) }))
	check(done.WaitContext(ctx))
	var answer string
	check(h.Output(&answer))
	fmt.Fprintln(out, answer)
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
