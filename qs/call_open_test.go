package qs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestOpenCallOutlived checks a duplex without a Receive, and without a goroutine that waits for
// its end. When its context ends the handler's does, too, and Receive returns that error.
func TestOpenCallOutlived(t *testing.T) {
	t.Parallel()
	waits := qs.DefineDuplex[int, int, int]("test/waits")
	for how, want := range map[string]error{"cancel": errEnough, "deadline": context.DeadlineExceeded} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			begun, ended := make(chan struct{}), make(chan struct{})
			s := server(t, qs.Config{}, func(n *qs.Node) {
				waits.Handle(n, func(ctx context.Context, _ int, _ *qs.DuplexServer[int, int]) error {
					close(begun)
					<-ctx.Done()
					close(ended)
					return ctx.Err()
				})
			})
			ctx, cancel := context.WithCancelCause(context.Background())
			if how == "deadline" {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, 300*time.Millisecond)
				defer stop()
			}
			c := open(t, "tcp://", qs.Config{})
			call := waits.Call(ctx, peer(t, c, s.Addr().String()), 1)
			<-begun
			if how == "cancel" {
				cancel(errEnough)
			}
			<-ended
			_, err := call.Receive()
			require.ErrorIs(t, err, want)
			call.Close()
			cancel(nil)
			(&rowSource{}).waitUntilIdle(t, c, s)
		})
	}
}

var errEnough = errors.New("enough")
