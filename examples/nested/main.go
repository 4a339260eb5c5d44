// Command nested has a handler that calls a third party before it answers, in two ways.
//
//	origin ── "relay/wait" ──────► relay ── "double" ──► worker
//	                               a typed handler that makes a typed call: only its own goroutine waits
//	origin ── "relay/callback" ──► relay ── "double" ──► worker
//	                               the same with callbacks of package hg: the handler detaches the request and returns, and the
//	                               callback answers
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	double        = qs.Define[int, int]("double")
	relayWait     = qs.Define[int, int]("relay/wait")
	relayCallback = qs.Define[int, int]("relay/callback")
)

func main() { run(os.Stdout) }

func run(out io.Writer) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()

	worker, end := serve()
	defer end()
	double.Handle(worker, func(_ context.Context, n int) (int, error) { return 2 * n, nil })

	relay, end := serve()
	defer end()
	to := must(relay.Peer(ctx, worker.Addr().String()))
	relayWait.Handle(relay, func(ctx context.Context, n int) (int, error) {
		return double.Call(ctx, to, n) // ctx ends when the origin gives up: then so does this call
	})

	below, end := serve() // a relay of its own: a node has a name either from package qs or from package hg
	defer end()
	must(below.HG().Class().Register(double.Name(), nil))
	must(below.HG().Class().Register(relayCallback.Name(), callback(worker.Addr())))

	origin := must(qs.Open("tcp://", qs.Config{}))
	defer origin.Close()
	call := func(m *qs.Method[int, int], relay *qs.Node, n int) {
		via := must(origin.Peer(ctx, relay.Addr().String()))
		fmt.Fprintf(out, "%s: twice %d is %d\n", m.Name(), n, must(m.Call(ctx, via, n)))
	}
	call(relayCallback, below, 21)
	call(relayWait, relay, 22)
}

// callback returns a handler that passes the request on and answers when the worker has: it does not wait.
func callback(worker hg.Addr) hg.Handler {
	return func(r hg.Request) error {
		var n int
		if err := r.Input(&n); err != nil {
			return err
		}
		call, err := r.HG().Create(worker, hg.HashName(double.Name()))
		if err != nil {
			return err
		}
		defer call.Close()                 // the call under way goes on
		if err := r.Detach(); err != nil { // so that the request is not answered for us when the handler returns
			return err
		}
		return call.Forward(n, func(call *hg.Handle, err error) {
			var twice int
			if err == nil {
				err = call.Output(&twice)
			}
			if err != nil {
				_ = r.RespondError(err, nil)
				return
			}
			_ = r.Respond(twice, nil)
		})
	}
}

// serve returns a node that serves until end is called.
func serve() (node *qs.Node, end func()) {
	node = must(qs.Open("tcp://127.0.0.1:0", qs.Config{}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node, func() {
		stop()
		must(0, <-ended)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
