// Command ported is the program that docs/MERCURY.md shows next to its counterpart in C: a process
// that calls itself.
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
)

type sum struct{ A, B int }

func onSum(r hg.Request) error { // the target
	var in sum
	if err := r.Input(&in); err != nil {
		return err
	}
	return r.Respond(in.A+in.B, nil)
}

func origin(w io.Writer, hctx *hg.Context, addr string) error {
	id, err := hctx.Class().Register("sum", onSum)
	if err != nil {
		return err
	}
	target, err := hg.ParseAddr(addr)
	if err != nil {
		return err
	}
	h, err := hctx.Create(target, id)
	if err != nil {
		return err
	}
	defer h.Close()
	done := false
	onAnswer := func(h *hg.Handle, err error) { // the callback
		var out int
		if err == nil {
			err = h.Output(&out)
		}
		fmt.Fprintln(w, out, err)
		done = true
	}
	if err := h.Forward(sum{40, 2}, onAnswer); err != nil {
		return err
	}
	for !done {
		for hctx.Trigger(1) > 0 {
		}
		if !done && errors.Is(hctx.Progress(time.Second), hg.ErrTimeout) {
			h.Cancel()
		}
	}
	return nil
}

func run(w io.Writer, addr string) error {
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	if err != nil {
		return err
	}
	hctx, err := class.NewContext()
	if err != nil {
		return err
	}
	if addr == "" {
		addr = hctx.Self().String()
	}
	if err := origin(w, hctx, addr); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	return class.Shutdown(ctx)
}

func main() {
	if err := run(os.Stdout, ""); err != nil {
		log.Fatal(err)
	}
}
