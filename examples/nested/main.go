// Command nested has a handler that calls a third party before it answers, in two ways.
//
//	origin ── "relay/callback" ──► relay ── "double" ──► worker
//	                               h.Ref, Forward; the callback answers: the handler has long returned
//	origin ── "relay/wait" ──────► relay ── "double" ──► worker
//	                               Forward, then Wait inside the handler: only the Trigger that runs it waits
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/request"
)

func main() { run(os.Stdout) }

func run(out io.Writer) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()

	worker := open("tcp://127.0.0.1:0", map[string]hg.Handler{"double": double})
	defer func() { check(worker.Class().Shutdown(ctx)) }()
	go serve(worker)

	relay := open("tcp://127.0.0.1:0", map[string]hg.Handler{"double": nil,
		"relay/callback": relayCallback(worker.Self()), "relay/wait": relayWait(worker.Self())})
	defer func() { check(relay.Class().Shutdown(ctx)) }()
	go serve(relay)
	go serve(relay) // a handler may block one of the two

	origin := open("tcp://", map[string]hg.Handler{"relay/callback": nil, "relay/wait": nil})
	defer func() { check(origin.Class().Shutdown(ctx)) }()
	for i, name := range []string{"relay/callback", "relay/wait"} {
		h := must(origin.Create(relay.Self(), hg.HashName(name)))
		done := request.NewClass(origin).Create(h.Cancel)
		check(h.Forward(21+i, func(_ *hg.Handle, err error) { done.Complete(err) }))
		check(done.WaitContext(ctx))
		var answer int
		check(h.Output(&answer))
		fmt.Fprintf(out, "%s: twice %d is %d\n", name, 21+i, answer)
		h.Close()
	}
}

func double(h hg.Incoming) error {
	var n int
	if err := h.Input(&n); err != nil {
		return err
	}
	return h.Respond(2*n, nil)
}

// relayCallback passes the request on and answers when the worker has: the handler does not wait.
func relayCallback(worker hg.Addr) hg.Handler {
	return func(h hg.Incoming) error {
		in, err := h.InputRaw() // passed on as it is
		if err != nil {
			return err
		}
		call, err := h.Queue().Create(worker, hg.HashName("double"))
		if err != nil {
			return err
		}
		defer call.Close()                 // the call under way goes on
		if err := h.Detach(); err != nil { // so that the request is not answered for us when the handler returns
			return err
		}
		return call.ForwardRaw(in, func(call *hg.Handle, err error) {
			if err != nil {
				_ = h.RespondError(err, nil)
				return
			}
			out, err := call.OutputRaw()
			if err != nil {
				_ = h.RespondError(err, nil)
				return
			}
			_ = h.RespondRaw(out, nil)
		})
	}
}

// relayWait does the same, and waits. Its Wait moves bytes and runs other callbacks meanwhile.
func relayWait(worker hg.Addr) hg.Handler {
	return func(h hg.Incoming) error {
		in, err := h.InputRaw()
		if err != nil {
			return err
		}
		call, err := h.Queue().Create(worker, hg.HashName("double"))
		if err != nil {
			return err
		}
		defer call.Close()
		ctx, stop := context.WithTimeout(h.Context(), time.Second) // ends, too, when whoever called us is gone
		defer stop()
		done := request.NewClass(h.Queue()).Create(call.Cancel)
		if err := call.ForwardRaw(in, func(_ *hg.Handle, err error) { done.Complete(err) }); err != nil {
			return err
		}
		if err := done.WaitContext(ctx); err != nil {
			return err
		}
		out, err := call.OutputRaw()
		if err != nil {
			return err
		}
		return h.RespondRaw(out, nil)
	}
}

// open returns a context of a new class that knows the given RPCs; those without a handler it only calls.
func open(addr string, rpcs map[string]hg.Handler) *hg.Context {
	class := must(hg.Open(addr, hg.Config{}))
	for name, handler := range rpcs {
		must(class.Register(name, handler))
	}
	return must(class.NewContext())
}

func serve(hctx *hg.Context) {
	for hctx.Progress(-1) == nil {
		hctx.Trigger(0)
	}
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
