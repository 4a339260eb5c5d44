package request_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
)

// A sum is an operation as hg has them: it starts at once and its callback runs inside Trigger, once.
type sum struct {
	net *fakeProgressor
	cb  func(total int, err error)
}

func (s *sum) Forward(a, b int, cb func(total int, err error)) {
	s.cb = cb
	if a != 0 { // the sum is never 0
		s.net.sent = func() { cb(a+b, nil) }
	}
}

func (s *sum) Cancel() { s.net.ready = func() { s.cb(0, context.Canceled) } }

// Wait only reports, as in C Mercury: to give up, cancel and wait for the callback, which runs soon.
func ExampleRequest_Wait() {
	net := &fakeProgressor{}
	class := request.NewClass(net)
	h := &sum{net: net}

	r := class.Create(nil)
	h.Forward(2, 40, func(total int, err error) {
		r.SetData(total)
		r.Complete(err)
	})
	fmt.Println(r.Wait(time.Second), r.Data())

	r = class.Create(nil)
	h.Forward(0, 40, func(_ int, err error) { r.Complete(err) })
	if !r.Wait(time.Second) {
		fmt.Println("no answer after", net.Now())
		h.Cancel()
		r.Wait(-1)
	}
	fmt.Println(r.Err())
	// Output:
	// true 42
	// no answer after 1s
	// context canceled
}

// WaitContext cancels by itself when the context ends, and returns after the callback.
func ExampleRequest_WaitContext() {
	net := &fakeProgressor{}
	class := request.NewClass(net)
	h := &sum{net: net}

	ctx, cancel := context.WithTimeoutCause(context.Background(), 0, errors.New("lunch time"))
	defer cancel()
	r := class.Create(h.Cancel)
	h.Forward(0, 40, func(_ int, err error) { r.Complete(err) })
	err := r.WaitContext(ctx)
	fmt.Println(err)
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled))
	// Output:
	// context canceled: lunch time
	// true false
}
