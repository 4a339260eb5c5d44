// Command hedge sends each request to two targets, takes the first answer, and takes the request back from the other
// target, so that the work is not done twice. It counts how often the slower handler was spared.
//
//	origin                       quick target         slow target
//	Forward to both ───────────► handler ─┐    ─────► waits its turn
//	callback ◄────────────────────────────┘
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
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
)

const (
	calls = 50
	work  = 2 * time.Millisecond // of the slow target for each request
)

func main() { run(os.Stdout) }

func run(out io.Writer) (spared, slowRan int) {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	var quick, slow target
	quick.start()
	slow.delay = work
	slow.start()
	defer quick.stop(ctx)
	defer slow.stop(ctx)

	origin := must(hg.Open("tcp://", hg.Config{}))
	defer func() { check(origin.Shutdown(ctx)) }()
	answer := must(origin.Register("answer", nil))
	hctx := must(origin.NewContext())
	drive := func(until func() bool) {
		for !until() {
			check(hctx.Progress(10 * time.Second))
			hctx.Trigger(0)
		}
	}

	results := map[hg.WithdrawResult]int{}
	for range calls {
		a, b := must(hctx.Create(quick.hctx.Self(), answer)), must(hctx.Create(slow.hctx.Self(), answer))
		ended, told := 0, 0
		first := func(other *hg.Handle) hg.ForwardFunc {
			return func(_ *hg.Handle, err error) {
				if ended++; ended > 1 {
					return // the other one: canceled, or too late to be of use
				}
				check(err)
				check(other.Withdraw(time.Second, func(_ *hg.Handle, r hg.WithdrawResult) {
					results[r]++
					told++
				}))
			}
		}
		check(b.Forward(nil, first(a)))
		check(a.Forward(nil, first(b)))
		drive(func() bool { return ended == 2 && told == 1 })
		a.Close()
		b.Close()
	}
	spared = results[hg.Withdrawn]
	fmt.Fprintf(out, "%d calls to two targets each: in %d the other was spared, in %d it was too late\n", calls, spared, results[hg.TooLate])
	fmt.Fprintf(out, "handlers that ran: %d at the quick target, %d at the slow one\n", quick.ran.Load(), slow.ran.Load())
	return spared, int(quick.ran.Load() + slow.ran.Load())
}

// A target answers requests one at a time.
type target struct {
	delay time.Duration
	class *hg.Class
	hctx  *hg.Context
	ran   atomic.Int64
	ended chan struct{}
}

func (t *target) start() {
	t.class = must(hg.Open("tcp://127.0.0.1:0", hg.Config{}))
	must(t.class.Register("answer", func(h hg.Incoming) error {
		t.ran.Add(1)
		return h.Respond(42, nil)
	}))
	t.hctx = must(t.class.NewContext())
	t.ended = make(chan struct{})
	go func() {
		defer close(t.ended)
		for t.hctx.Progress(-1) == nil {
			time.Sleep(t.delay) // it has other things to do; its network works meanwhile
			t.hctx.Trigger(1)
		}
	}()
}

func (t *target) stop(ctx context.Context) {
	check(t.class.Shutdown(ctx))
	<-t.ended
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
