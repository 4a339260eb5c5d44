// Command hedge sends each request to two targets, uses the first answer, and withdraws the request from the other
// target, so that the work is not done twice. It counts how often the slower target did not have to do the work.
//
//	origin                       quick target         slow target
//	Go to both ────────────────► handler ─┐    ─────► waits for a worker
//	Done ◄────────────────────────────────┘
//	Withdraw ───────────────────────────────────────► still waiting? destroyed: its handler will never run
//	Withdrawn, or TooLate ◄─────────────────────────┘
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	calls = 25
	work  = 10 * time.Millisecond // time that the slow target needs for each request
)

var answer = qs.Define[int, int]("answer")

func main() { run(os.Stdout) }

func run(out io.Writer) (spared, ran int) {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	quick, slow := serve(0), serve(work)
	origin := must(qs.Open("tcp://", qs.Config{}))
	defer origin.Close()
	a, b := must(origin.Peer(ctx, quick.Addr().String())), must(origin.Peer(ctx, slow.Addr().String()))

	late := 0
	for i := range calls {
		busy := answer.Go(ctx, b, -1) // another client's request
		<-slow.works                  // the target has begun it; Go does not guarantee an order
		first, second := answer.Go(ctx, a, i), answer.Go(ctx, b, i)
		other := second
		select {
		case <-first.Done():
		case <-second.Done():
			first, other = second, first
		}
		if got := must(first.Wait(ctx)); got != i {
			log.Fatalf("%d is no answer to %d", got, i)
		}
		if other.Withdraw(ctx) == hg.Withdrawn {
			spared++
		} else {
			late++
			must(other.Wait(ctx))
		}
		must(busy.Wait(ctx))
	}
	fmt.Fprintf(out, "%d calls to two targets each: in %d the other was spared, in %d it was too late\n", calls, spared, late)
	quick.stop()
	slow.stop()
	fmt.Fprintf(out, "handlers that ran for them: %d at the quick target, %d at the slow one\n", quick.ran.Load(), slow.ran.Load())
	return spared, int(quick.ran.Load() + slow.ran.Load())
}

// A target handles one request at a time.
type target struct {
	*qs.Node
	ran   atomic.Int64
	works chan struct{} // signals that it handles the other client's request
	stop  func()
}

func serve(work time.Duration) *target {
	t := &target{Node: must(qs.Open("tcp://127.0.0.1:0", qs.Config{HG: hg.Config{MaxActive: 1}})), works: make(chan struct{}, 1)}
	answer.Handle(t.Node, func(ctx context.Context, n int) (int, error) {
		if n < 0 {
			t.works <- struct{}{}
		} else {
			t.ran.Add(1)
		}
		select {
		case <-time.After(work):
			return n, nil
		case <-ctx.Done(): // the other target was faster
			return 0, context.Cause(ctx)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- t.Serve(ctx) }()
	t.stop = func() {
		cancel()
		must(0, <-ended)
	}
	return t
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
