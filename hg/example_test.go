package hg_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// ExampleHandle_Call calls the process itself and waits.
func ExampleHandle_Call() {
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	if err != nil {
		panic(err)
	}
	greet, err := class.Register("greet", func(r hg.Request) error {
		var name string
		if err := r.Input(&name); err != nil {
			return err
		}
		return r.Respond("hello, "+name, nil)
	})
	if err != nil {
		panic(err)
	}
	hctx, err := class.NewContext()
	if err != nil {
		panic(err)
	}
	h, err := hctx.Create(hctx.Self(), greet)
	if err != nil {
		panic(err)
	}
	var answer string
	err = h.Call(context.Background(), "Ada", &answer) // it drives the context meanwhile
	fmt.Println(answer, err)
	_ = h.Close()
	fmt.Println(class.Shutdown(context.Background()))
	// Output:
	// hello, Ada <nil>
	// <nil>
}

// ExampleHandle_Cancel cancels a call that has no answer: Trigger right after it runs the callback,
// and the handle is free for another call.
func ExampleHandle_Cancel() {
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	if err != nil {
		panic(err)
	}
	hang, err := class.Register("hang", func(r hg.Request) error { return r.Detach() })
	if err != nil {
		panic(err)
	}
	hctx, err := class.NewContext()
	if err != nil {
		panic(err)
	}
	h, err := hctx.Create(hctx.Self(), hang)
	if err != nil {
		panic(err)
	}
	if err := h.Forward("x", func(_ *hg.Handle, err error) { fmt.Println(errors.Is(err, hg.ErrCanceled)) }); err != nil {
		panic(err)
	}
	h.Cancel()
	hctx.Trigger(0)
	fmt.Println(h.Forward("again", func(*hg.Handle, error) {}))
	h.Cancel()
	_ = h.Close()
	_ = class.Close()
	hctx.Trigger(0)
	// Output:
	// true
	// <nil>
}
