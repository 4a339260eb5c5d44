package qs_test

import (
	"context"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type uploadIn struct {
	Body qs.Source
	Room qs.Sink
}

var upload = qs.Define[uploadIn, int64]("inspect/upload")

// callsInFlight returns the calls of a node of one kind.
func callsInFlight(n *qs.Node, kind inspect.EventKind) (all []inspect.Call) {
	for _, c := range n.HG().Calls() {
		if c.Kind == kind {
			all = append(all, c)
		}
	}
	return all
}

// waitUntil waits until done.
func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for ctx := testContext(t); !done(); runtime.Gosched() {
		require.NoError(t, ctx.Err(), "it does not happen")
	}
}

// TestCallsShowProgress checks that hg.Context.Calls has for a call that lends memory, at both
// sides, the bytes that have been moved, and the transfers that belong to it.
func TestCallsShowProgress(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	goOn := make(chan struct{})
	read := make(chan int)
	var s *qs.Node
	c, p := pair(t, qs.Config{}, func(n *qs.Node) {
		s = n
		upload.Handle(n, func(ctx context.Context, in uploadIn) (int64, error) {
			r := in.Body.Reader(ctx)
			n, err := io.ReadFull(r, make([]byte, 4<<20))
			if err != nil {
				return 0, err
			}
			read <- n
			<-goOn
			rest, err := io.Copy(io.Discard, r)
			return int64(n) + rest, err
		})
	})
	call := upload.Go(testContext(t), p, uploadIn{Body: qs.Bytes(make([]byte, size))})
	require.Equal(t, 4<<20, <-read)
	// It reads 8 MiB ahead, and stands still then.
	waitUntil(t, func() bool { return len(callsInFlight(s, inspect.EventTransfer)) == 0 })
	targets := callsInFlight(s, inspect.EventTarget)
	require.Len(t, targets, 1)
	require.EqualValues(t, size, targets[0].Size)
	require.GreaterOrEqual(t, targets[0].Moved, int64(4<<20))
	require.Less(t, targets[0].Moved, int64(size))
	require.Nil(t, targets[0].Flow)
	origins := callsInFlight(c, inspect.EventOrigin)
	require.Len(t, origins, 1)
	require.EqualValues(t, size, origins[0].Size)
	require.GreaterOrEqual(t, origins[0].Moved, int64(4<<20))
	require.Equal(t, origins[0].ID, targets[0].ID)
	close(goOn)
	n, err := call.Wait(testContext(t))
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.Empty(t, callsInFlight(c, inspect.EventOrigin))
}

// TestTransfersNameTheirRequest checks that a transfer that a handler makes has the request to
// which it belongs, while it is in flight and when it ends.
func TestTransfersNameTheirRequest(t *testing.T) {
	t.Parallel()
	var ended []inspect.Event
	seen := make(chan []inspect.Call, 1)
	var s *qs.Node
	cfg := qs.Config{HG: hg.Config{Observe: func(e *inspect.Event) {
		if e.Kind == inspect.EventTransfer {
			ended = append(ended, *e)
		}
	}}}
	_, p := pair(t, cfg, func(n *qs.Node) {
		s = n
		upload.Handle(n, func(ctx context.Context, in uploadIn) (int64, error) {
			r := in.Body.Reader(ctx)
			if _, err := r.Read(make([]byte, 1)); err != nil { // the window is in flight
				return 0, err
			}
			seen <- s.HG().Calls()
			return 0, nil
		})
	})
	_, err := upload.Call(testContext(t), p, uploadIn{Body: qs.Bytes(make([]byte, 64<<20))})
	require.NoError(t, err)
	calls := <-seen
	at := slices.IndexFunc(calls, func(c inspect.Call) bool { return c.Kind == inspect.EventTarget })
	require.GreaterOrEqual(t, at, 0)
	for _, c := range calls {
		if c.Kind == inspect.EventTransfer {
			require.Equal(t, calls[at].ID, c.Of)
			require.NotZero(t, c.ID)
		}
	}
	require.NoError(t, s.Shutdown(testContext(t)))
	require.NotEmpty(t, ended)
	for _, e := range ended {
		require.Equal(t, "inspect/upload", e.Of)
	}
}

// TestCallsShowFlow checks that for a stream whose loop takes nothing both sides report that the
// window is full, and for how long it has been.
func TestCallsShowFlow(t *testing.T) {
	t.Parallel()
	var source rowSource
	var s *qs.Node
	c, p := pair(t, qs.Config{}, func(n *qs.Node) {
		s = n
		source.serve(n)
	})
	ctx, leave := context.WithCancel(testContext(t))
	defer leave()
	taken := 0
	for _, err := range rows.Call(ctx, p, rowsIn{N: 1000, Size: 10_000}) {
		if taken++; taken > 1 {
			if taken < 1000 {
				continue
			}
			require.NoError(t, err)
			break
		}
		require.NoError(t, err)
		var at inspect.Call
		waitUntil(t, func() bool {
			all := callsInFlight(s, inspect.EventTarget)
			require.Len(t, all, 1)
			at = all[0]
			return at.Flow.Stuck > 0 && at.Flow.Waiting > 0
		})
		require.EqualValues(t, source.sent.Load()+1, at.Flow.Items, "send waits with one")
		require.Greater(t, at.Flow.Bytes, 10_000*at.Flow.Items)
		of := callsInFlight(c, inspect.EventOrigin)
		i := slices.IndexFunc(of, func(c inspect.Call) bool { return c.RPC == "test/rows" })
		require.GreaterOrEqual(t, i, 0)
		require.NotNil(t, of[i].Flow)
		require.Positive(t, of[i].Flow.Stuck)
		require.Positive(t, of[i].Flow.Waiting)
		require.Zero(t, of[i].Flow.Items, "the loop has not returned")
		require.Equal(t, at.ID, of[i].ID)
	}
	require.Equal(t, 1000, taken)
	source.waitUntilIdle(t, c, s)
}
