package qs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestIdleClientsMakeRoom checks that the session of a client that had a large answer, and has
// been quiet since, ends for the next client at once: not only when the server has looked at its
// sessions again, which takes a tenth of PeerTimeout.
func TestIdleClientsMakeRoom(t *testing.T) {
	t.Parallel()
	big := qs.Define[int, []byte]("room/big")
	server := open(t, "tcp://127.0.0.1:0", qs.Config{MaxPeers: 2, PeerTimeout: 10 * time.Minute})
	big.Handle(server, func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil })
	go func() { _ = server.Serve(t.Context()) }()
	retry := qs.Retry(qs.RetryPolicy{Attempts: 100, Backoff: 10 * time.Millisecond, BudgetRatio: -1})
	for i := range 4 {
		client := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{retry}}) // it is open to the end, and does nothing any more
		_, err := big.Call(testContext(t), peer(t, client, server.Addr().String()), 5<<20)
		require.NoError(t, err, "client %d", i)
	}
}
