package qs_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestOneWayOptions: a one-way method has a codec, and a bound of its requests, of its own.
func TestOneWayOptions(t *testing.T) {
	t.Parallel()
	raw := qs.DefineOneWay[[]byte]("options/one-way", qs.WithCodec(codec.Raw), qs.MaxConcurrent(2), qs.MaxQueue(0))
	w := sim.NewWorld(sim.Config{})
	defer w.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var ran []string
	var dropped int64
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		raw.Handle(n, func(_ context.Context, in []byte) {
			ran = append(ran, string(in))
			w.Sleep(time.Second)
		})
		require.NoError(t, n.Serve(ctx))
		dropped = n.HG().Stats().Dropped
	})
	w.Go("client", func() {
		defer stop()
		w.Sleep(time.Millisecond)
		n := simulated(t, w, "sim://", qs.Config{})
		defer n.Close()
		to, err := n.Peer(ctx, "sim://server")
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, raw.Send(ctx, to, []byte("bytes as they are")))
		}
		w.Sleep(100 * time.Millisecond)
	})
	require.NoError(t, w.Run(time.Hour))
	require.Equal(t, []string{"bytes as they are", "bytes as they are"}, ran)
	require.Equal(t, int64(3), dropped)
}

// TestMethodWithoutQueue: with MaxQueue(0) one more than MaxConcurrent is refused at once; a later option replaces an earlier one.
func TestMethodWithoutQueue(t *testing.T) {
	t.Parallel()
	var active atomic.Int32
	at, leave := make(chan struct{}), make(chan struct{})
	m := qs.Define[int, int]("options/no-queue", qs.MaxConcurrent(7), qs.MaxConcurrent(1), qs.MaxQueue(0))
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(_ context.Context, in int) (int, error) {
			active.Add(1)
			close(at)
			<-leave
			return in, nil
		})
	})
	first := m.Go(within(t), to, 1)
	<-at
	_, err := m.Call(within(t), to, 2)
	require.ErrorIs(t, err, qs.ErrExhausted)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	close(leave)
	out, err := first.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, 1, out)
	require.Equal(t, int32(1), active.Load())
}

// TestBadOptions: what cannot be is a panic that names it.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for text, f := range map[string]func(){
		"qs: MaxConcurrent is -1, want a number of requests, or 0 for no bound of the method's own": func() { qs.MaxConcurrent(-1) },
		"qs: MaxQueue is -1, want a number of requests that may wait":                               func() { qs.MaxQueue(-1) },
		"qs: method options/nil has an Option that is nil":                                          func() { qs.Define[int, int]("options/nil", nil) },
	} {
		require.PanicsWithValue(t, text, f)
	}
}
