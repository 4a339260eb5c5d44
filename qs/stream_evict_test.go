package qs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var evictItems = qs.DefineStream[int, []byte]("test/evict/items")

// TestEvictWhileSending checks that a handler that returns while another goroutine of it is blocked
// in send ends that one, its error is behind the items, and nothing else is affected: so a server
// evicts a caller that does not read.
func TestEvictWhileSending(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := server(t, qs.Config{}, func(n *qs.Node) {
		evictItems.Handle(n, func(ctx context.Context, item int, send func([]byte) error) error {
			blocked := make(chan struct{})
			go func() {
				for i := 0; ; i++ {
					if i == 1<<20/item { // more than is sent without a reader
						close(blocked)
					}
					if err := send(make([]byte, item)); err != nil {
						ended <- err
						return
					}
				}
			}()
			select {
			case <-blocked:
			case <-t.Context().Done():
			}
			return qs.Errorf(200, "evicted")
		})
	})
	ctx, n := testContext(t), open(t, "tcp://", qs.Config{})
	to, err := n.Peer(ctx, s.Addr().String())
	require.NoError(t, err)
	for round := range 20 {
		var last error
		for item, err := range evictItems.Call(ctx, to, 1000+round) {
			if last = err; err == nil {
				assert.Len(t, item, 1000+round)
			}
		}
		require.ErrorContains(t, last, "evicted", "round %d", round)
		require.Error(t, <-ended, "round %d: the goroutine that sends", round)
		_, err := to.Ping(ctx)
		require.NoError(t, err, "round %d", round)
	}
}
