package qs_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	loneItems = qs.DefineStream[string, int]("test/lone/items")
	loneByWho = qs.Define[struct{}, bool]("test/lone/who")
)

// TestStreamBeginsOnReceiver checks that a handler of a stream whose request arrives by itself
// begins on the goroutine that drives, whatever it does there: return, end the goroutine, panic,
// send more than there is room for, or wait for something. It keeps the goroutine then, another one
// drives, and runs other handlers as before.
func TestStreamBeginsOnReceiver(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	does := map[string]func(send func(int) error) error{
		"returns": func(send func(int) error) error { return send(1) },
		"panics":  func(func(int) error) error { panic("on purpose") },
		"exits":   func(func(int) error) error { runtime.Goexit(); return nil },
		"blocks": func(send func(int) error) error {
			err := send(1)
			<-gate
			return err
		},
		"fills": func(send func(int) error) (err error) {
			for i := 0; err == nil; i++ {
				err = send(i)
			}
			return err
		},
	}
	for what, does := range does {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var first sync.Once
			s := server(t, qs.Config{}, func(n *qs.Node) {
				loneItems.Handle(n, func(_ context.Context, _ string, send func(int) error) error {
					first.Do(func() { require.True(t, isOnDriver(), "the first one") })
					return does(send)
				})
				loneByWho.Handle(n, func(context.Context, struct{}) (bool, error) { return isOnDriver(), nil })
			})
			p := peer(t, open(t, "tcp://", qs.Config{}), s.Addr().String())
			ctx, stop := context.WithCancel(testContext(t))
			var all sync.WaitGroup
			defer all.Wait()
			defer stop()
			for range 5 {
				begun := make(chan error, 1)
				all.Go(func() {
					for _, err := range loneItems.Call(ctx, p, what) {
						select {
						case begun <- err:
						default:
						}
						if err == nil && what != "returns" { // it takes its time
							<-ctx.Done()
						}
					}
				})
				if err := <-begun; what == "panics" || what == "exits" {
					require.ErrorIs(t, err, hg.ErrPanic)
				} else {
					require.NoError(t, err)
				}
				for here := false; !here; { // in the end
					var err error
					here, err = loneByWho.Call(testContext(t), p, struct{}{})
					require.NoError(t, err)
				}
			}
			if what == "blocks" {
				close(gate)
			}
		})
	}
}
