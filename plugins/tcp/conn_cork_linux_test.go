package tcp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestCorkedFramesLeave checks that output that is held back is sent after a while, also if no
// goroutine drives and the one that corked is busy.
func TestCorkedFramesLeave(t *testing.T) {
	n, r, to := openJoined(t, tcp.Options{}, na.Config{})
	require.True(t, n.ctx().Upper().Cork())
	defer n.ctx().Upper().Uncork()
	for i := range 10 { // after the first few the background poller rests, and must be called
		o, end := newOp(n.ctx())
		text := fmt.Sprint("held ", i)
		require.NoError(t, n.ctx().SendUnexpected(o, to, 1, []byte(text)))
		_, payload := r.readKind(frame.Unexpected)
		require.Equal(t, text, string(payload))
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n)
		require.NoError(t, end.Err)
	}
}

// TestCorkHolds checks that output under a cork is sent together, when the cork is removed or a
// goroutine drives.
func TestCorkHolds(t *testing.T) {
	n, r, to := openJoined(t, tcp.Options{Unassisted: true}, na.Config{})
	require.False(t, n.ctx().Upper().Cork(), "held output would not be sent while no goroutine drives")
	sent := 0
	n.ctx().Batch(func() {
		for range 10 {
			require.NoError(t, n.ctx().SendUnexpected(n.ctx().NewOp(func(*na.Op, na.Result) { sent++ }), to, 1, nil))
		}
		n.ctx().Trigger(0)
		require.Zero(t, sent, "all are held")
	})
	n.ctx().Trigger(0)
	require.Equal(t, 10, sent)
	for range 10 {
		r.readKind(frame.Unexpected)
	}
}

// TestFlushInBatch checks that a batch is a cork like any other, and Flush sends what it holds
// back.
func TestFlushInBatch(t *testing.T) {
	n, r, to := openJoined(t, tcp.Options{Unassisted: true}, na.Config{})
	n.ctx().Batch(func() {
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, to, 1, nil))
		n.ctx().Trigger(0)
		require.Zero(t, end.n, "it is held")
		n.ctx().Upper().Flush()
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n)
		require.NoError(t, end.Err)
	})
	r.readKind(frame.Unexpected)
}
