package qs_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestRequestBesideInline checks that a request that a goroutine of the program takes in, by
// Trigger, while an Inline handler keeps the driver, runs at once, and is not left to the driver.
func TestRequestBesideInline(t *testing.T) {
	t.Parallel()
	gate, entered := make(chan struct{}), make(chan struct{})
	var begun atomic.Bool // the handler of quick or items
	release := sync.OnceFunc(func() { close(gate) })
	keep, quick := qs.Define[struct{}, int]("test/keep", qs.Inline()), qs.Define[struct{}, int]("test/quick")
	items := qs.DefineStream[struct{}, int]("test/quick/items")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		keep.Handle(n, func(context.Context, struct{}) (int, error) {
			close(entered)
			<-gate
			return 1, nil
		})
		quick.Handle(n, func(context.Context, struct{}) (int, error) { begun.Store(true); return 2, nil })
		items.Handle(n, func(_ context.Context, _ struct{}, _ func(int) error) error { begun.Store(true); return nil })
	})
	t.Cleanup(release)
	p := peer(t, open(t, "tcp://", qs.Config{}), s.Addr().String())
	_, err := quick.Call(testContext(t), p, struct{}{})
	require.NoError(t, err)
	begun.Store(false)
	kept := keep.Go(testContext(t), p, struct{}{})
	<-entered
	// The background poller receives requests. They wait for ever if they are left to the driver.
	triggered := func(isOver func() bool) {
		require.Eventually(t, func() bool { s.HG().Trigger(0); return isOver() }, 30*time.Second, time.Millisecond)
	}
	var all sync.WaitGroup
	all.Go(func() {
		got, err := quick.Call(testContext(t), p, struct{}{})
		assert.NoError(t, err)
		assert.Equal(t, 2, got)
	})
	triggered(begun.Load)
	begun.Store(false)
	all.Go(func() {
		for _, err := range items.Call(testContext(t), p, struct{}{}) {
			assert.NoError(t, err)
		}
	})
	triggered(begun.Load)
	release()
	_, err = kept.Wait(testContext(t))
	require.NoError(t, err)
	all.Wait()
}
