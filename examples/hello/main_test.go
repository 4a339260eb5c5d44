package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestOneProcess(t *testing.T) {
	var out strings.Builder
	run(&out, "")
	require.Equal(t, "hello, world\n", out.String())
}

// TestSplit runs the two halves as -target and -origin do.
func TestSplit(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	target := newTarget("tcp://127.0.0.1:0")
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(target)
	}()
	for range 3 {
		var out strings.Builder
		run(&out, target.Self().String())
		require.Equal(t, "hello, world\n", out.String())
	}
	require.NoError(t, target.Class().Shutdown(ctx))
	<-served
}

func TestMain(m *testing.M) { leak.Main(m) }
