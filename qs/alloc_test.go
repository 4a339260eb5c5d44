package qs_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestAllocations checks that a typed call allocates once, at the target: the context of the
// handler is of its request. Input and output are without memory of their own here. The cost of the
// origin is that of both, less that of the target for a caller with raw bytes.
func TestAllocations(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	listen := map[string]string{"tcp": "tcp://127.0.0.1:0", "udp": "udp://127.0.0.1:0"}
	if runtime.GOOS == "linux" {
		listen["sm"] = "sm://*"
	}
	for name, addr := range listen {
		t.Run(name, func(t *testing.T) { testAllocations(t, addr, name+"://") })
	}
}

func testAllocations(t *testing.T, listen, origin string) {
	s := serverAt(t, listen, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { return point{2 * p.X, 2 * p.Y}, nil })
	})
	c := open(t, origin, qs.Config{})
	to := peer(t, c, s.Addr().String())
	ctx := context.Background()
	call := func() {
		if got, err := double.Call(ctx, to, point{1, 21}); err != nil || got.Y != 42 {
			t.Fatal(got, err)
		}
	}
	for range 100 {
		call()
	}
	both := testing.AllocsPerRun(2000, call)

	id, err := hg.HashName("test/double"), error(nil)
	h, err := c.HG().Create(to.Addr(), id)
	require.NoError(t, err)
	defer h.Close()
	in := []byte{0x82, 0xa1, 'X', 1, 0xa1, 'Y', 21}
	target := testing.AllocsPerRun(2000, func() {
		if _, err := h.CallRaw(ctx, in); err != nil {
			t.Fatal(err)
		}
	})
	bounded, stop := context.WithTimeout(ctx, time.Hour)
	defer stop()
	ctx = bounded
	timed := testing.AllocsPerRun(2000, call)
	t.Logf("%.0f allocations at the target, %.0f at the origin, %.0f together with a deadline", target, both-target, timed)
	if raceflag.Enabled { // pools lose things on purpose
		return
	}
	require.LessOrEqual(t, target, 1.0, "at the target")
	require.Zero(t, both-target, "at the origin")
	require.LessOrEqual(t, timed, 1+3.0, "with a deadline: what wakes a goroutine that sleeps when its context ends is made then")
}

// TestIdleNodeKeepsNoOutputs checks that the memory of answers is given back when the calls have
// ended: a node that has made many calls at once keeps their handles for the next ones, but no
// outputs.
func TestIdleNodeKeepsNoOutputs(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	const calls, size = 32, 1 << 20
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	all := make(chan struct{})
	var came atomic.Int32
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		blob.Handle(n, func(context.Context, int) ([]byte, error) {
			if came.Add(1) == calls {
				close(all)
			}
			<-all
			return make([]byte, size), nil
		})
	})
	before := heap()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			out, err := blob.Call(context.Background(), to, 0)
			assert.NoError(t, err)
			assert.Len(t, out, size)
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return heap() < before+calls*size/4 }, 20*time.Second, 100*time.Millisecond)
}

var blob = qs.Define[int, []byte]("test/blob")
