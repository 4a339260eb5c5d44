package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestServed checks that the service answers calls, probes and requests for its methods and gauges,
// shows its page, and ends on its signal.
func TestServed(t *testing.T) {
	const at, page = "tcp://127.0.0.1:7121", "127.0.0.1:7122"
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	serving, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, at, page) }()

	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer node.Close()
	to, err := node.Peer(ctx, at)
	require.NoError(t, err)
	var answer string
	for answer, err = Greet.Call(ctx, to, "Ada"); err != nil && ctx.Err() == nil; {
		answer, err = Greet.Call(ctx, to, "Ada") // it is not there yet
	}
	require.NoError(t, err)
	require.Equal(t, "hello, Ada", answer)
	_, err = node.HG().Class().Register(inspect.GaugesRPC, nil)
	require.NoError(t, err)
	for _, rpc := range []string{hg.HealthRPC, inspect.RPCsRPC, inspect.GaugesRPC} {
		h, err := node.HG().Create(to.Addr(), hg.HashName(rpc))
		require.NoError(t, err)
		_, err = h.CallRaw(ctx, nil)
		require.NoError(t, err, rpc)
		require.NoError(t, h.Close())
	}
	defer http.DefaultClient.CloseIdleConnections()
	got, err := http.Get("http://" + page)
	for err != nil && ctx.Err() == nil {
		got, err = http.Get("http://" + page) // likewise
	}
	require.NoError(t, err)
	text, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	require.NoError(t, got.Body.Close())
	require.Contains(t, string(text), "greet")
	end()
	require.NoError(t, <-ended)
}

// TestPageTaken checks that a port of the page that another program has is an error, and nothing is
// served.
func TestPageTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	require.ErrorContains(t, serve(t.Context(), "tcp://127.0.0.1:0", taken.Addr().String()), "address already in use")
}

// TestShown checks that docs/OPERATIONS.md shows the service as it is here.
func TestShown(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(program), "\nfunc serve")
	require.True(t, ok)
	block, _, ok := strings.Cut("func serve"+rest, "\nfunc main")
	require.True(t, ok)
	doc, err := os.ReadFile("../../docs/OPERATIONS.md")
	require.NoError(t, err)
	require.Contains(t, string(doc), "```go\n"+block+"```\n")
}
