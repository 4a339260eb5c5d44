package qs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// typedRequest opens a server for an example, which ends with stop, and a client of it.
func typedRequest(cfg qs.Config, register func(n *qs.Node)) (to qs.Peer, stop func()) {
	server, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	if err != nil {
		panic(err)
	}
	register(server)
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx) }()
	client, err := qs.Open("tcp://", cfg)
	if err != nil {
		panic(err)
	}
	if to, err = client.Peer(ctx, server.Addr().String()); err != nil {
		panic(err)
	}
	return to, func() {
		_ = client.Close()
		end()
		<-ended
	}
}

// ExampleStream sends rows from a handler, and the caller loops over them. A break ends the
// handler's context.
func ExampleStream() {
	primes := qs.DefineStream[int, int]("example/primes")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		primes.Handle(n, func(ctx context.Context, from int, send func(int) error) error {
		next:
			for p := from; ; p++ {
				for d := 2; d*d <= p; d++ {
					if p%d == 0 {
						continue next
					}
				}
				if err := send(p); err != nil {
					return err // the caller needs no more
				}
			}
		})
	})
	defer stop()
	for p, err := range primes.Call(context.Background(), to, 100) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(p)
		if p > 105 {
			break
		}
	}
	// Output:
	// 101
	// 103
	// 107
}

// ExampleSource lends bytes for the time of a call, and the handler reads them where it has room.
func ExampleSource() {
	type upload struct {
		Name string
		Body qs.Source
	}
	put := qs.Define[upload, int64]("example/put")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in upload) (int64, error) {
			return io.Copy(io.Discard, in.Body.Reader(ctx))
		})
	})
	defer stop()
	n, err := put.Call(context.Background(), to, upload{"memory", qs.Bytes(make([]byte, 5<<20))})
	fmt.Println(n, err)
	n, err = put.Call(context.Background(), to, upload{"a reader", qs.Reader(strings.NewReader("hello"))})
	fmt.Println(n, err)
	// Output:
	// 5242880 <nil>
	// 5 <nil>
}

// ExampleSink lends room for the time of a call, and the handler writes into it.
func ExampleSink() {
	type download struct {
		Name string
		Into qs.Sink
	}
	get := qs.Define[download, string]("example/get")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		get.Handle(n, func(ctx context.Context, in download) (string, error) {
			_, err := io.WriteString(in.Into.Writer(ctx), "hello, "+in.Name)
			return "text/plain", err
		})
	})
	defer stop()
	room := make([]byte, 100)
	in := download{"memory", qs.Buffer(room)}
	kind, err := get.Call(context.Background(), to, in)
	fmt.Println(kind, err, string(room[:in.Into.Filled()]))
	var b bytes.Buffer
	_, err = get.Call(context.Background(), to, download{"writer", qs.Writer(&b)})
	fmt.Println(b.String(), err)
	// Output:
	// text/plain <nil> hello, memory
	// hello, writer <nil>
}

// ExampleRetry repeats calls that did not run, and calls that may have run when the method is
// idempotent.
func ExampleRetry() {
	count := qs.Define[string, int]("example/count")
	calls := 0
	to, stop := typedRequest(qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}},
		func(n *qs.Node) {
			count.Handle(n, func(context.Context, string) (int, error) {
				if calls++; calls < 3 {
					return 0, qs.Refuse(qs.Errorf(qs.ErrUnavailable, "still starting"))
				}
				return calls, nil
			})
		})
	defer stop()
	fmt.Println(count.Call(context.Background(), to, ""))
	// Output: 3 <nil>
}

// ExampleErrorf gives an error of a handler a code, and the caller checks for it.
func ExampleErrorf() {
	find := qs.Define[string, string]("example/find")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		find.Handle(n, func(_ context.Context, key string) (string, error) {
			return "", qs.Errorf(qs.ErrNotFound, "no key %q", key)
		})
	})
	defer stop()
	_, err := find.Call(context.Background(), to, "x")
	fmt.Println(errors.Is(err, qs.ErrNotFound), qs.FateOf(err))
	// Output: true ran
}

// ExampleFuture_Withdraw withdraws a request that waits at its target, with the certainty that it
// has reached no handler.
func ExampleFuture_Withdraw() {
	work := qs.Define[string, string]("example/work", qs.MaxConcurrent(1))
	begun, release := make(chan string, 2), make(chan struct{})
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		work.Handle(n, func(_ context.Context, what string) (string, error) {
			begun <- what
			<-release
			return "did " + what, nil
		})
	})
	defer stop()
	ctx := context.Background()
	first := work.Go(ctx, to, "first")
	<-begun
	second := work.Go(ctx, to, "second") // it waits: one is handled at a time
	fmt.Println(second.Withdraw(ctx))
	close(release)
	fmt.Println(first.Wait(ctx))
	_, err := second.Wait(ctx)
	fmt.Println(qs.FateOf(err))
	// Output:
	// withdrawn
	// did first <nil>
	// did not run
}

// ExampleInterceptor runs around each call of a client, or each handler of a server.
func ExampleInterceptor() {
	tell := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		fmt.Println(c.Method, *c.In.(*string), *c.Out.(*string), err)
		return err
	}
	to, stop := typedRequest(qs.Config{ClientInterceptors: []qs.Interceptor{tell}}, func(n *qs.Node) {
		Greet.Handle(n, func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	})
	defer stop()
	_, _ = Greet.Call(context.Background(), to, "Ada")
	// Output: greet Ada hello, Ada <nil>
}

// ExampleLoadTLS uses one configuration for server and client. Without files there is no TLS.
func ExampleLoadTLS() {
	cfg, err := qs.LoadTLS("", "", "")
	fmt.Println(cfg == (*tls.Config)(nil), err)
	_, err = qs.LoadTLS("server.pem", "", "")
	fmt.Println(errors.Is(err, qs.ErrInvalid))
	// Output:
	// true <nil>
	// true
}

// ExampleMethod_Call makes a call whose deadline travels, and the context of its handler ends with
// it.
func ExampleMethod_Call() {
	wait := qs.Define[int, int]("example/wait")
	to, stop := typedRequest(qs.Config{}, func(n *qs.Node) {
		wait.Handle(n, func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
	})
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := wait.Call(ctx, to, 1)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// ExampleLeastLoaded makes a Peer of two servers, which sends each call to the one with the smaller
// load.
func ExampleLeastLoaded() {
	answer := qs.Define[int, string]("example/answer")
	serve := func(n *qs.Node) {
		answer.Handle(n, func(context.Context, int) (string, error) { return "done", nil })
	}
	one, stop := typedRequest(qs.Config{}, serve)
	defer stop()
	two, stop2 := typedRequest(qs.Config{}, serve)
	defer stop2()
	client, err := qs.Open("tcp://", qs.Config{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx := context.Background()
	to, err := client.PeerWith(ctx, qs.PeerOptions{Balancer: qs.LeastLoaded()}, one.String(), two.String())
	if err != nil {
		panic(err)
	}
	fmt.Println(to.String() == one.String()+","+two.String())
	fmt.Println(answer.Call(ctx, to, 1))
	// Output:
	// true
	// done <nil>
}
