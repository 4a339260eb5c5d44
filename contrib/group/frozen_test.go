package group_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/internal/test/freeport"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestJoinFrozen checks that Join ends with its context although the seeds are frozen: they accept
// connections and send nothing.
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

// TestLeaveFrozen checks that Leave ends with its context although a failed member that is probed
// again is frozen.
func TestLeaveFrozen(t *testing.T) {
	t.Parallel()
	there, frozen := freeport.Addr(t), freeport.Addr(t)
	slow := func(o group.Options) group.Options { o.Probe = time.Second; return o }
	a := joinGroup(t, slow(newOptions("a", there)))
	b := joinGroup(t, slow(newOptions("b", frozen, there)))
	waitForEvent(t, a, isEvent(group.Joined, "b"))
	require.NoError(t, b.Close())
	l, err := net.Listen("tcp", frozen)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	waitForEvent(t, a, isEvent(group.Fails, "b"))
	for err == nil { // requests from before it failed
		require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(10*time.Millisecond)))
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			_ = c.Close()
		}
	}
	require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Time{}))
	c, err := l.Accept() // it is probed again
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	begun := time.Now()
	_ = a.Leave(ctx)
	require.Less(t, time.Since(begun), 2*time.Second)
}
