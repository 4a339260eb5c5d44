package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/request"
)

func TestBulk(t *testing.T) {
	var out strings.Builder
	run(&out)
	require.Equal(t, "3100000 bytes: ALL THAT GLITTERS IS NOT GOLD ...\nall of them right: true\n", out.String())
}

// TestBulkRefused checks that a request that the target refuses is an error of the origin, and the
// target continues.
func TestBulkRefused(t *testing.T) {
	target, origin := open("tcp://127.0.0.1:0", upper), open("tcp://", nil)
	driven := make(chan struct{})
	go func() {
		defer close(driven)
		for target.Progress(-1) == nil {
			target.Trigger(0)
		}
	}()
	room, err := bulk.Create(origin, bulk.Options{Access: bulk.WriteOnly}, make([]byte, 1))
	require.NoError(t, err)
	long, err := bulk.Create(origin, bulk.Options{Access: bulk.ReadOnly}, make([]byte, maxText+1))
	require.NoError(t, err)
	h, err := origin.Create(target.Self(), hg.HashName("upper"))
	require.NoError(t, err)
	for _, job := range []Job{{}, {Text: room}, {Text: long, Room: room}} {
		done := request.NewClass(origin).Create(h.Cancel)
		require.NoError(t, h.Forward(job, func(_ *hg.Handle, err error) { done.Complete(err) }))
		err := done.WaitContext(t.Context())
		require.ErrorIs(t, err, hg.ErrHandler)
		require.ErrorContains(t, err, "no text, no room, or more than 16777216 bytes")
	}
	h.Close()
	require.NoError(t, room.CloseWait(t.Context()))
	require.NoError(t, long.CloseWait(t.Context()))
	require.NoError(t, origin.Class().Shutdown(t.Context()))
	require.NoError(t, target.Class().Shutdown(t.Context()))
	<-driven
}

func TestMain(m *testing.M) { leak.Main(m) }
