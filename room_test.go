package quicksilver_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
)

// TestQuietClientsMakeRoom: clients whose calls have ended make room for others, also those whose answers had to wait for the
// connection a moment ago.
func TestQuietClientsMakeRoom(t *testing.T) {
	big := qs.Define[int, []byte]("room/big")
	for _, c := range []struct {
		name string
		call func(ctx context.Context, to qs.Peer) error
		soon time.Duration // until there is room
	}{
		{"Answered", func(ctx context.Context, to qs.Peer) error {
			_, err := big.Call(ctx, to, 5<<20)
			return err
		}, 300 * time.Millisecond}, // a tick of the server comes each 500 ms
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(context.Background(), 50*time.Second)
			defer stop()
			server, err := qs.Open("tcp://127.0.0.1:0", qs.Config{MaxPeers: 2})
			require.NoError(t, err)
			defer server.Close()
			big.Handle(server, func(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil })
			go func() { _ = server.Serve(ctx) }()
			for i := range 4 {
				client, err := qs.Open("tcp://", qs.Config{})
				require.NoError(t, err)
				defer client.Close() // until then it stays, and does nothing any more
				to, err := client.Peer(ctx, server.Addr().String())
				require.NoError(t, err)
				for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
					if err = c.call(ctx, to); err == nil || time.Since(begun) > c.soon {
						break
					}
				}
				require.NoError(t, err, "client %d", i)
			}
		})
	}
}
