package qs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// ExampleOpen checks the code of the error for a port that another program has.
func ExampleOpen() {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Name: "greeter"})
	if err != nil {
		panic(err)
	}
	defer node.Close()
	_, err = qs.Open(node.Addr().String(), qs.Config{})
	fmt.Println(errors.Is(err, syscall.EADDRINUSE))
	_, err = qs.Open("carrier-pigeon://", qs.Config{})
	fmt.Println(err != nil)
	// Output:
	// true
	// true
}

// ExampleNode_Serve stops a server at SIGTERM: calls in flight may end.
func ExampleNode_Serve() {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{ShutdownTimeout: 20 * time.Second})
	if err != nil {
		panic(err)
	}
	Greet.Handle(node, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	time.AfterFunc(10*time.Millisecond, stop) // in place of a signal
	fmt.Println(node.Serve(ctx))
	// Output: <nil>
}

// ExampleDefine defines a method with options: some for its callers, some for its server.
func ExampleDefine() {
	square := qs.Define[int, int]("example/square",
		qs.Idempotent(), qs.Retry(qs.RetryPolicy{Attempts: 5}), // callers: it may run twice; repeat it
		qs.MaxConcurrent(8), qs.MaxQueue(32), // the server: 8 handlers at a time, and 32 requests that wait
		qs.Timeout(time.Second)) // the server: a handler's ctx ends then
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		square.Handle(n, func(_ context.Context, n int) (int, error) { return n * n, nil })
	})
	defer stop()
	fmt.Println(square.Call(context.Background(), to, 12))
	fmt.Println(square.Name(), square.Shape())
	// Output:
	// 144 <nil>
	// example/square int -> int
}

// ExampleTimeout ends a handler that takes too long, and its caller gets ErrTimeout.
func ExampleTimeout() {
	slow := qs.Define[int, int]("example/slow", qs.Timeout(10*time.Millisecond))
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		slow.Handle(n, func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
	})
	defer stop()
	_, err := slow.Call(context.Background(), to, 1)
	fmt.Println(errors.Is(err, qs.ErrTimeout), qs.FateOf(err))
	// Output: true ran
}

// ExampleCallAll calls many servers at once; each has an output or an error.
func ExampleCallAll() {
	where := qs.Define[string, string]("example/where")
	var peers []qs.Peer
	for _, city := range []string{"Paris", "Rome"} {
		to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
			where.Handle(n, func(context.Context, string) (string, error) { return city, nil })
		})
		defer stop()
		peers = append(peers, to)
	}
	outs, errs := qs.CallAll(context.Background(), peers, where, "?")
	fmt.Println(outs, errors.Join(errs...))
	// Output: [Paris Rome] <nil>
}

// ExampleWaitFirst waits for the first of several calls; the others are abandoned.
func ExampleWaitFirst() {
	sleep := qs.Define[time.Duration, string]("example/sleep")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		sleep.Handle(n, func(ctx context.Context, d time.Duration) (string, error) {
			select {
			case <-time.After(d):
				return d.String(), nil
			case <-ctx.Done(): // abandoned
				return "", context.Cause(ctx)
			}
		})
	})
	defer stop()
	ctx := context.Background()
	fmt.Println(qs.WaitFirst(ctx, sleep.Go(ctx, to, time.Hour), sleep.Go(ctx, to, time.Millisecond)))
	// Output: 1 1ms <nil>
}

// ExampleRefuse refuses a request before anything was done: the call may be repeated, whatever the
// method.
func ExampleRefuse() {
	charge := qs.Define[int, string]("example/charge")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		charge.Handle(n, func(_ context.Context, cents int) (string, error) {
			if cents > 100 {
				return "", qs.Refuse(qs.Errorf(qs.ErrExhausted, "the day's limit is reached"))
			}
			return "charged", nil
		})
	})
	defer stop()
	_, err := charge.Call(context.Background(), to, 200)
	fmt.Println(qs.CodeOf(err), "-", qs.FateOf(err))
	// Output: exhausted - did not run
}

// ExampleWithDetail returns a value with the error of a handler.
func ExampleWithDetail() {
	type quota struct{ Used, Limit int }
	store := qs.Define[string, string]("example/store")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		store.Handle(n, func(context.Context, string) (string, error) {
			return "", qs.WithDetail(qs.Errorf(qs.ErrDenied, "full"), quota{100, 100})
		})
	})
	defer stop()
	_, err := store.Call(context.Background(), to, "x")
	fmt.Println(qs.DetailOf[quota](err))
	// Output: {100 100} true
}

// ExampleWithMetadata sends metadata with the input.
func ExampleWithMetadata() {
	tenant := qs.Define[string, string]("example/tenant")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		tenant.Handle(n, func(ctx context.Context, _ string) (string, error) {
			name, _ := qs.Metadata(ctx, "tenant")
			return name, nil
		})
	})
	defer stop()
	fmt.Println(tenant.Call(qs.WithMetadata(context.Background(), "tenant", "blue"), to, ""))
	// Output: blue <nil>
}

// ExampleHedge calls the second server when the first does not answer in time.
func ExampleHedge() {
	answer := qs.Define[int, string]("example/hedged", qs.Idempotent(), qs.Hedge(time.Millisecond))
	hangs, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		answer.Handle(n, func(ctx context.Context, _ int) (string, error) {
			<-ctx.Done() // abandoned
			return "", context.Cause(ctx)
		})
	})
	defer stop()
	works, stop2 := typedRequest(qs.Config{}, func(n *qs.Node) {
		answer.Handle(n, func(context.Context, int) (string, error) { return "from the second", nil })
	})
	defer stop2()
	client, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	both, err := client.Peer(context.Background(), hangs.String(), works.String())
	if err != nil {
		panic(err)
	}
	fmt.Println(answer.Call(context.Background(), both, 1))
	// Output: from the second <nil>
}

// ExampleDraining ends a subscription when its server stops.
func ExampleDraining() {
	news := qs.DefineStream[string, string]("example/news")
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	if err != nil {
		panic(err)
	}
	news.Handle(node, func(ctx context.Context, _ string, send func(string) error) error {
		if err := send("one"); err != nil {
			return err
		}
		select {
		case <-qs.Draining(ctx).Done():
			return qs.Errorf(qs.ErrDraining, "this server stops; subscribe at another")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	to, err := client.Peer(context.Background(), node.Addr().String())
	if err != nil {
		panic(err)
	}
	for item, err := range news.Call(context.Background(), to, "") {
		fmt.Println(item, errors.Is(err, qs.ErrDraining))
		stop()
	}
	fmt.Println(<-ended)
	// Output:
	// one false
	//  true
	// <nil>
}

// ExampleUpload sends items, and the handler answers once.
func ExampleUpload() {
	sum := qs.DefineUpload[string, int, int]("example/sum")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		sum.Handle(n, func(_ context.Context, _ string, items *qs.Receiver[int]) (total int, err error) {
			for n, err := range items.All() {
				if err != nil {
					return 0, err
				}
				total += n
			}
			return total, nil
		})
	})
	defer stop()
	call := sum.Call(context.Background(), to, "")
	defer call.Close()
	for n := range 5 {
		if err := call.Send(n); err != nil {
			break // CloseAndReceive returns the cause
		}
	}
	fmt.Println(call.CloseAndReceive())
	// Output: 10 <nil>
}

// ExampleDuplex sends items in both directions.
func ExampleDuplex() {
	twice := qs.DefineDuplex[string, int, int]("example/twice")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		twice.Handle(n, func(_ context.Context, _ string, s *qs.DuplexServer[int, int]) error {
			for n, err := range s.All() {
				if err != nil {
					return err
				}
				if err := s.Send(2 * n); err != nil {
					return err
				}
			}
			return nil
		})
	})
	defer stop()
	call := twice.Call(context.Background(), to, "")
	defer call.Close()
	fmt.Println(call.Send(21))
	fmt.Println(call.Receive())
	call.CloseSend()
	_, err := call.Receive()
	fmt.Println(err == io.EOF)
	// Output:
	// <nil>
	// 42 <nil>
	// true
}

// ExampleDuplexCall_ReceiveInto receives all items in one variable, and its memory is used again.
func ExampleDuplexCall_ReceiveInto() {
	letters := qs.DefineDuplex[int, int, []byte]("example/letters")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		letters.Handle(n, func(_ context.Context, most int, s *qs.DuplexServer[int, []byte]) error {
			for n := most; n > 0; n-- {
				if err := s.Send([]byte("letters")[:n]); err != nil {
					return err
				}
			}
			return nil
		})
	})
	defer stop()
	call := letters.Call(context.Background(), to, 3)
	defer call.Close()
	var item []byte
	for {
		if err := call.ReceiveInto(&item); err != nil {
			fmt.Println(err == io.EOF)
			return
		}
		fmt.Printf("%s\n", item)
	}
	// Output:
	// let
	// le
	// l
	// true
}

// ExampleConfig_authorize decides before the input is decoded. With TLS it also has the verified
// name of the caller.
func ExampleConfig_authorize() {
	open, secret := qs.Define[int, string]("public/open"), qs.Define[int, string]("admin/secret")
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{
		Authorize: func(_ context.Context, c *qs.Call) error {
			if token, _ := c.Metadata.Get("token"); c.Method == "admin/secret" && token != "s3cret" {
				return qs.Errorf(qs.ErrPermission, "%s is for administrators", c.Method)
			}
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	answer := func(context.Context, int) (string, error) { return "answered", nil }
	open.Handle(node, answer)
	secret.Handle(node, answer)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	to, err := client.Peer(ctx, node.Addr().String())
	if err != nil {
		panic(err)
	}
	fmt.Println(open.Call(ctx, to, 1))
	_, err = secret.Call(ctx, to, 1)
	fmt.Println(errors.Is(err, qs.ErrPermission), "-", qs.FateOf(err))
	fmt.Println(secret.Call(qs.WithMetadata(ctx, "token", "s3cret"), to, 1))
	stop()
	fmt.Println(<-ended)
	// Output:
	// answered <nil>
	// true - did not run
	// answered <nil>
	// <nil>
}

// ExampleCallerFrom identifies the caller in a handler. Name is verified by TLS, and empty without;
// Process is the name that the caller gives itself.
func ExampleCallerFrom() {
	who := qs.Define[string, string]("example/who")
	to, stop := typedRequest(qs.Config{Name: "billing-7"}, func(n *qs.Node) {
		who.Handle(n, func(ctx context.Context, _ string) (string, error) {
			caller := qs.CallerFrom(ctx)
			return fmt.Sprintf("%q %q over %s", caller.Name, caller.Process, caller.Transport), nil
		})
	})
	defer stop()
	fmt.Println(who.Call(context.Background(), to, ""))
	// Output: "" "billing-7" over tcp <nil>
}
