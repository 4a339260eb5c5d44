package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestGreet checks that server and client find each other, and the server ends on its signal.
func TestGreet(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	const at = "tcp://127.0.0.1:7118"
	serving, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, at) }()
	var output bytes.Buffer
	for err := errors.New("not yet"); err != nil && ctx.Err() == nil; { // the server may not be there
		output.Reset()
		err = client(ctx, &output, at, "Ada", "Grace")
	}
	require.Equal(t, "hello, Ada\nhello, Grace\n", output.String())
	end()
	require.NoError(t, <-ended)
}

// TestServing checks that a program that is run without arguments prints its address and what to do
// next.
func TestServing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var output bytes.Buffer
	require.NoError(t, run(ctx, &output))
	require.Equal(t, "serving at tcp://127.0.0.1:7117 until Ctrl-C; elsewhere: go run ./examples/greet Ada\n", output.String())
}
