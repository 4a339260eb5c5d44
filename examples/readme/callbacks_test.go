package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// again returns whether a call that has ended with err may be made again.
func again(err error) string {
	switch hg.FateOf(err) {
	case hg.NotRun:
		return "again"
	case hg.MaybeRan, hg.Ran: // only if a second time does no harm
		return "perhaps"
	}
	return "?"
}

// TestCallbacks checks what docs/guide/callbacks.md shows of two processes.
func TestCallbacks(t *testing.T) {
	server, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	require.NoError(t, err)
	_, err = server.Register("greet", func(h hg.Request) error { return h.Respond("hello", nil) })
	require.NoError(t, err)
	sctx, err := server.NewContext()
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		loop(sctx)
	}()
	addr := sctx.Self().String()

	class, err := hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)

	greet, err := class.Register("greet", nil) // nil: this process only calls it
	check(err)
	target, err := hg.ParseAddr(addr) // tcp://10.0.0.7:9000; a name instead of a number: hctx.LookupWait
	check(err)
	h, err := hctx.Create(target, greet)
	check(err)

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	done := request.NewClass(hctx).Create(h.Cancel)
	require.NoError(t, h.Forward("Ada", func(_ *hg.Handle, err error) { done.Complete(err) }))
	require.NoError(t, done.WaitContext(ctx))
	var answer string
	require.NoError(t, h.Output(&answer))
	require.Equal(t, "hello", answer)
	h.Close()
	require.NoError(t, server.Shutdown(ctx))
	<-ended
	require.NoError(t, class.Shutdown(ctx))
	require.Equal(t, "again", again(&hg.Error{Fate: hg.NotRun}))
	require.Equal(t, "perhaps", again(&hg.Error{Fate: hg.MaybeRan}))
}

// loop drives a server until its context is closed.
func loop(hctx *hg.Context) {
	for hctx.Progress(-1) == nil {
		hctx.Trigger(0)
	}
}
