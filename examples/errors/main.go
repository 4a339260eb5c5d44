// Command errors shows what a failed call says: why it failed, whether the request ran, and what Retry does about it.
//
//	client ── get ──► first    refuses: it is not ready
//	   └───── get ──► second   answers
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Server and client import these.
var (
	// Get may run twice without harm, so Retry also repeats it when nobody knows whether it ran.
	Get = qs.Define[string, string]("store/get", qs.Idempotent(), qs.Retry(qs.RetryPolicy{}))
	Put = qs.Define[string, int]("store/put")
	// ErrQuota is a code of this program: 128 to 255 are free. Logs, metrics and tools print its name.
	ErrQuota = qs.DefineCode(200, "quota used up")
)

// A Quota travels with ErrQuota.
type Quota struct{ Used, Limit int }

func main() {
	ctx := context.Background()
	hung := make(chan struct{}, 1)
	first, stopFirst := serve(func(n *qs.Node) {
		Get.Handle(n, func(context.Context, string) (string, error) {
			// Refuse says that the handler has done nothing: the call may be repeated, and Retry asks another server.
			return "", qs.Refuse(qs.Errorf(qs.ErrNotReady, "still loading"))
		})
		Put.Handle(n, func(ctx context.Context, key string) (int, error) {
			if key == "slow" {
				hung <- struct{}{}
				<-ctx.Done() // ends when the caller gives up
				return 0, ctx.Err()
			}
			return 0, qs.WithDetail(qs.Errorf(ErrQuota, "no room for %q", key), Quota{Used: 90, Limit: 100})
		})
	})
	defer stopFirst()
	second, stopSecond := serve(func(n *qs.Node) {
		Get.Handle(n, func(_ context.Context, key string) (string, error) {
			if key != "earth" {
				return "", qs.Errorf(qs.ErrNotFound, "no key %q", key)
			}
			return "third", nil
		})
	})
	defer stopSecond()

	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	defer client.Close()
	both, err := client.Peer(ctx, first, second) // one service at two addresses
	check(err)
	one, err := client.Peer(ctx, first)
	check(err)

	// The first server refuses, so Retry asks the second one.
	value, err := Get.Call(ctx, both, "earth")
	fmt.Println("get earth:", value, err)

	// A handler's error has a code, which errors.Is finds. That a key is not there is final: Retry leaves it alone.
	_, err = Get.Call(ctx, both, "pluto")
	fmt.Println("get pluto: not found:", errors.Is(err, qs.ErrNotFound), "- the request", qs.FateOf(err))

	// A code of the program, and a value with it.
	_, err = Put.Call(ctx, one, "mars")
	quota, _ := qs.DetailOf[Quota](err)
	fmt.Println("put mars:", qs.CodeOf(err), quota.Used, "of", quota.Limit)

	// The second server has no handler for put.
	two, err := client.Peer(ctx, second)
	check(err)
	_, err = Put.Call(ctx, two, "mars")
	fmt.Println("put at the other server: no such method:", errors.Is(err, qs.ErrNoMethod), "- the request", qs.FateOf(err))

	// The caller gives up while the handler runs: the call ends at once, and nobody can say whether the work is done.
	giveUp, cancel := context.WithCancel(ctx)
	go func() {
		<-hung
		cancel()
	}()
	_, err = Put.Call(giveUp, one, "slow")
	fmt.Println("put slow: canceled:", errors.Is(err, context.Canceled), "- the request", qs.FateOf(err))
}

// serve opens a node at a free port and serves until stop is called.
func serve(register func(*qs.Node)) (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	register(node)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node.Addr().String(), func() {
		cancel()
		check(<-ended)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
