package group_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	qs "github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/contrib/group"
)

// TestJoinFrozen: Join ends with its context although seeds are frozen, which take connections and say nothing.
func TestJoinFrozen(t *testing.T) {
	t.Parallel()
	var seeds []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		seeds = append(seeds, l.Addr().String())
	}
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	begun := time.Now()
	_, err = group.Join(ctx, n, group.Options{Name: "a", Seeds: seeds, Probe: time.Second})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begun), 4*time.Second)
}
