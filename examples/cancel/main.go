// Command cancel forwards a call that is not answered, cancels it, and forwards the same handle
// again.
//
//	origin                                      target
//	Forward("wait") ─────────────────────────►  keeps the handle, does not answer
//	… nothing happens
//	Cancel, Trigger ─► callback: canceled       (hears nothing: Cancel is local)
//	Forward("answer") ───────────────────────►  answers the first, too late, and then the second
//	callback: success ◄───────────────────────
package main

import (
	"context"
	"errors"
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

	target := must(hg.Open("tcp://127.0.0.1:0", hg.Config{}))
	defer func() { check(target.Shutdown(ctx)) }()
	must(target.Register("ask", slowHandler()))
	tctx := must(target.NewContext())
	go func() {
		for tctx.Progress(-1) == nil {
			tctx.Trigger(0)
		}
	}()

	origin := must(hg.Open("tcp://", hg.Config{}))
	defer func() { check(origin.Shutdown(ctx)) }()
	ask := must(origin.Register("ask", nil))
	hctx := must(origin.NewContext())
	h := must(hctx.Create(tctx.Self(), ask))
	defer h.Close()

	r := request.NewClass(hctx).Create(nil)
	callback := func(_ *hg.Handle, err error) { r.Complete(err) }
	check(h.Forward("wait", callback))
	fmt.Fprintln(out, "answered in 200ms:", r.Wait(200*time.Millisecond))

	h.Cancel()      // returns at once and does not wait for the target
	hctx.Trigger(0) // runs the callback, without calling Progress first
	fmt.Fprintln(out, "callback has run:", r.Completed(), "- canceled:", errors.Is(r.Err(), context.Canceled))
	fmt.Fprintln(out, "the error:", r.Err())

	r.Reset(h.Cancel)
	check(h.Forward("answer", callback)) // the same handle
	check(r.WaitContext(ctx))
	var answer string
	check(h.Output(&answer))
	stats := hctx.Stats().NA
	fmt.Fprintf(out, "forwarded again: %s - late answers dropped: %d, connections lost: %d\n", answer, stats.LateDropped, stats.PeersLost)
}

// slowHandler returns a handler that keeps a request until one arrives that requires an answer, and
// then answers both.
func slowHandler() hg.Handler {
	var kept hg.Request
	return func(h hg.Request) error {
		var what string
		if err := h.Input(&what); err != nil {
			return err
		}
		if what == "wait" {
			kept = h
			return h.Detach()
		}
		_ = kept.Respond("too late", nil) // the origin has given up; this is not an error here
		return h.Respond("here you are", nil)
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
