// Command nested has a handler that calls a third process before it answers, in two ways.
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
		return double.Call(ctx, to, n) // ctx is done when the origin gives up, which also ends this call
	})

	below, end := serve() // a separate relay, because a node registers a name through either package qs or package hg
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

// callback returns a handler that forwards the request and answers when the worker has answered. It does not block.
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
		defer call.Close()                 // does not affect the call in progress
		if err := r.Detach(); err != nil { // otherwise returning from the handler would answer the request
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
