package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// startNode serves a node on which register has registered handlers, and returns its address.
func startNode(t *testing.T, register func(*qs.Node)) string {
	t.Helper()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	register(node)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- node.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return node.Addr().String()
}

// TestTypedCheck checks that a typed target that returns other bytes of the same length is found,
// as with the other APIs.
func TestTypedCheck(t *testing.T) {
	t.Parallel()
	for _, flipped := range []int{-1, 0, 99} {
		addr := startNode(t, func(node *qs.Node) {
			typedEcho.Handle(node, func(_ context.Context, in []byte) ([]byte, error) {
				if flipped >= 0 {
					in[flipped] ^= 1
				}
				return in, nil
			})
		})
		p := Perf{API: "typed", Size: 100}
		err := p.Open(hg.Config{}, "tcp://", addr)
		if flipped < 0 {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, "the response differs from the request")
		}
		require.NoError(t, p.node.Shutdown(context.Background()))
	}
}

// TestTypedTake checks that typed calls have no output after OfTake.
func TestTypedTake(t *testing.T) {
	t.Parallel()
	outputs := make(chan int64, 10)
	addr := startNode(t, RegisterTyped)
	p := Perf{API: "typed", Size: 100}
	cfg := hg.Config{Observe: func(e *inspect.Event) { outputs <- e.Received }}
	require.NoError(t, p.Open(cfg, "tcp://", addr))
	defer func() { require.NoError(t, p.node.Shutdown(context.Background())) }()
	require.Greater(t, <-outputs, int64(100), "the echo")
	require.NoError(t, p.OfTake())
	c, err := p.newCall(p.inputOf(p.Size))
	require.NoError(t, err)
	defer c.h.Close()
	require.NoError(t, c.callOnce())
	require.Less(t, <-outputs, int64(2), "an empty value")
}
