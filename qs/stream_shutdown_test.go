package qs_test

import (
	"context"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestStreamCutOffByShutdown checks that whichever side shuts down or is closed, both get that as
// the cause of the end of their stream: in Receive, in a Send that is blocked, and by the cause of
// the handler's context.
func TestStreamCutOffByShutdown(t *testing.T) {
	t.Parallel()
	const left = "the process has shut down or closed its qs.Node or na.Context"
	const own, peers = "qs: node closed", "session closed by peer: " + left
	const shut = "interrupted by the shutdown of the process: the context of Shutdown ended: context deadline exceeded"
	for how, want := range map[string]struct{ receive, send, handler string }{
		"server shuts down": {"target: " + shut + " (ran", "EOF", shut}, // the cause that the handler returns, once
		"server closes":     {peers, "EOF", left},
		"client shuts down": {"has shut down", own, peers},
		"client closes":     {"has shut down", own, peers},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			unresponsive := qs.DefineDuplex[int, []byte, int]("test/deaf")
			s, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
			require.NoError(t, err)
			ended := make(chan error, 1)
			unresponsive.Handle(s, func(ctx context.Context, _ int, d *qs.DuplexServer[[]byte, int]) error {
				if err := d.Send(1); err != nil {
					return err
				}
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return context.Cause(ctx)
			})
			served := make(chan error, 1)
			go func() { served <- s.Serve(context.Background()) }()
			c, err := qs.Open("tcp://", qs.Config{})
			require.NoError(t, err)
			call := unresponsive.Call(testContext(t), peer(t, c, s.Addr().String()), 1)
			_, err = call.Receive()
			require.NoError(t, err)
			sent := make(chan error, 1)
			go func() {
				var err error
				for err == nil {
					err = call.Send(make([]byte, 10_000))
				}
				sent <- err
			}()
			for c.HG().Calls()[0].Flow == nil {
				runtime.Gosched()
			}
			over, stop := context.WithTimeout(context.Background(), time.Millisecond)
			defer stop()
			var cut *hg.ShutdownError
			switch how {
			case "server shuts down":
				require.ErrorAs(t, s.Shutdown(over), &cut)
			case "server closes":
				require.NoError(t, s.Close())
			case "client shuts down":
				require.ErrorAs(t, c.Shutdown(over), &cut)
			default:
				require.NoError(t, c.Close())
			}
			_, err = call.Receive()
			require.ErrorContains(t, err, want.receive)
			if err := <-sent; err != io.EOF || how != "client closes" { // the handler's answer to the loss may arrive before the node is closed: then Receive returns it
				require.ErrorContains(t, err, want.send)
			}
			require.ErrorContains(t, <-ended, want.handler)
			call.Close()
			_ = c.Close()
			_ = s.Close()
			<-served
		})
	}
}
