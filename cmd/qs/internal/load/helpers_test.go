package load

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// patience bounds what has to happen at some time.
const patience = 30 * time.Second

// A target is a server in this process with the method "work", whose ledger counts the calls that have begun.
type target struct {
	node   *qs.Node
	ledger atomic.Int64
}

// newTarget returns a target whose handler answers with its input, or with the result of handle for
// the number of the call, counted from 1.
func newTarget(t testing.TB, handle func(ctx context.Context, n int64) error) *target {
	t.Helper()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	s := &target{node: node}
	qs.Define[string, string]("work").Handle(node, func(ctx context.Context, in string) (string, error) {
		n := s.ledger.Add(1)
		if handle != nil {
			return in, handle(ctx, n)
		}
		return in, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = node.Serve(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return s
}

func (s *target) addr() string { return s.node.Addr().String() }

// newConfig returns the configuration of a closed loop of one connection to each target.
func newConfig(t testing.TB, targets ...*target) Config {
	t.Helper()
	cfg := Config{Method: "work", Concurrency: 8, Connections: 1, Timeout: patience, Inputs: [][]byte{encode(t, "hello")}}
	for _, s := range targets {
		cfg.Nodes = append(cfg.Nodes, s.addr())
	}
	var err error
	cfg.Class, err = hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cfg.Class.Close() })
	return cfg
}

func encode(t testing.TB, in any) []byte {
	t.Helper()
	b, err := codec.Msgpack.Append(nil, in)
	require.NoError(t, err)
	return b
}

// boundedContext returns a context that ends with the test's patience.
func boundedContext(t testing.TB) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}
