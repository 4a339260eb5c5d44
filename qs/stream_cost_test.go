package qs_test

import (
	"context"
	"iter"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	costItems = qs.DefineStream[costIn, []byte]("test/cost/items")
	costTalk  = qs.DefineDuplex[costIn, []byte, []byte]("test/cost/talk")
)

// costIn gives the number and the size of the items that a handler sends.
type costIn struct{ Items, Size int }

func serveCost(n *qs.Node) {
	costItems.Handle(n, func(ctx context.Context, in costIn, send func([]byte) error) error {
		for range in.Items {
			if err := send(make([]byte, in.Size)); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	})
	costTalk.Handle(n, func(ctx context.Context, in costIn, d *qs.DuplexServer[[]byte, []byte]) error {
		for {
			b, err := d.Receive()
			if err != nil {
				return err
			}
			for range in.Items {
				if err := d.Send(b); err != nil {
					return err
				}
			}
		}
	})
}

// usedMemory returns the bytes of the heap and of the stacks that are in use.
func usedMemory() int64 {
	var m runtime.MemStats
	for range 3 { // a pool releases its items at the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestStreamCost checks the memory of an open stream, of both sides together and with the
// goroutines of the program, of which each side has one: an idle one has 26 to 32 KiB, whatever
// was transferred on it; one whose reader has stopped has its window and the bytes that its handler
// may have sent beyond it.
func TestStreamCost(t *testing.T) {
	const (
		idle    = 40 << 10                                   // 26 KiB to 32 KiB with large items, and the rounding of memory allocators
		stalled = idle + 32<<10 + 64<<10 + 2*32<<10 + 16<<10 // a window that has grown once, and the other memory of sender and receiver
	)
	many := long.Or(512, 2048)
	type begin func(ctx context.Context, to qs.Peer, in costIn) (all iter.Seq2[[]byte, error], end func())
	stream := func(ctx context.Context, to qs.Peer, in costIn) (iter.Seq2[[]byte, error], func()) {
		return costItems.Call(ctx, to, in), func() {}
	}
	duplex := func(ctx context.Context, to qs.Peer, in costIn) (iter.Seq2[[]byte, error], func()) {
		call := costTalk.Call(ctx, to, in)
		_ = call.Send(make([]byte, in.Size))
		return call.All(), call.Close
	}
	for _, c := range []struct {
		name  string
		begin begin
		many  int
		in    costIn
		takes int
		most  int64
	}{
		{"idle stream", stream, many, costIn{2, 10}, 2, idle},
		{"idle duplex", duplex, many, costIn{2, 10}, 2, idle},
		{"idle stream of large items", stream, 200, costIn{2, 40_000}, 2, idle},
		{"idle duplex of large items", duplex, 200, costIn{2, 40_000}, 2, idle},
		{"stalled stream", stream, 200, costIn{1000, 1000}, 1, stalled},
		{"stalled duplex", duplex, 200, costIn{1000, 1000}, 1, stalled},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := server(t, qs.Config{}, serveCost)
			n := open(t, "tcp://", qs.Config{})
			to := peer(t, n, s.Addr().String())
			ctx, stop := context.WithCancel(testContext(t))
			defer stop()
			before, goroutines := usedMemory(), runtime.NumGoroutine()
			ready, done, leave := make(chan struct{}), make(chan error, c.many), make(chan struct{})
			for range c.many {
				go func() {
					all, end := c.begin(ctx, to, c.in)
					defer end()
					n := 0
					for _, err := range all {
						if err != nil {
							done <- err
							return
						}
						if n++; n == c.takes {
							ready <- struct{}{}
							if c.takes < c.in.Items {
								<-leave
							}
						}
					}
				}()
			}
			for range c.many {
				<-ready
			}
			for c.takes < c.in.Items && stuckSenders(s) < c.many {
				require.NoError(t, ctx.Err())
				runtime.Gosched()
			}
			each := (usedMemory() - before) / int64(c.many)
			started := runtime.NumGoroutine() - goroutines
			t.Logf("%d bytes and %.1f goroutines each", each, float64(started)/float64(c.many))
			if !raceflag.Enabled { // which has memory of its own for each goroutine
				require.Less(t, each, c.most)
			}
			require.Less(t, started, 2*c.many+100, "goroutines: one of each side's program, and a few of the library")
			stop()
			close(leave)
			for range c.many {
				assert.ErrorIs(t, <-done, context.Canceled)
			}
		})
	}
}

// stuckSenders is how many handlers of s wait in send.
func stuckSenders(s *qs.Node) (n int) {
	for _, c := range s.HG().Calls() {
		if c.Flow != nil && c.Flow.Stuck > 0 {
			n++
		}
	}
	return n
}
