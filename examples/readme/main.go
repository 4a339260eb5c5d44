// Command readme is the program of docs/guide/callbacks.md, with callbacks and explicit progress: a process that calls itself.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/request"
)

func main() {
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	check(err)
	greet, err := class.Register("greet", func(h hg.Request) error { // the target's side
		var name string
		if err := h.Input(&name); err != nil {
			return err
		}
		return h.Respond("hello, "+name, nil)
	})
	check(err)
	hctx, err := class.NewContext()
	check(err)

	h, err := hctx.Create(hctx.Self(), greet) // the origin's side; Self may be the address of any process
	check(err)
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	done := request.NewClass(hctx).Create(h.Cancel)
	check(h.Forward("Ada", func(_ *hg.Handle, err error) { done.Complete(err) }))
	check(done.WaitContext(ctx)) // moves bytes, runs handler and callback; cancels when ctx ends first
	var answer string
	check(h.Output(&answer))
	fmt.Println(answer)
	h.Close()
	check(class.Shutdown(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
