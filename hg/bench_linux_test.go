package hg_test

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// BenchmarkCallCPU measures the cost of a call of 64 bytes for both of its ends together, by
// callbacks: one thread drives origin and target in turn and waits for nothing, so the processor
// time of that thread per call (cpu-ns/call) is the work of a call, whatever else the machine does.
// Caches, wake-ups and sleep are not in it.
func BenchmarkCallCPU(b *testing.B) {
	for _, c := range []struct {
		transport string
		inFlight  int
		timeout   time.Duration
	}{
		{"sm", 1, 0}, {"sm", 64, 0}, {"sm", 1, time.Minute}, {"sm", 64, time.Minute}, {"tcp", 1, 0}, {"tcp", 64, 0},
	} {
		name := fmt.Sprintf("%s/%d", c.transport, c.inFlight)
		if c.timeout != 0 {
			name += "/deadline"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			benchmarkCallCPU(b, c.transport, c.inFlight, c.timeout)
		})
	}
}

func benchmarkCallCPU(b *testing.B, transport string, inFlight int, timeout time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cfg := hg.Config{Codec: codec.Raw, NA: na.Config{Envelopes: 256, PeerTimeout: time.Minute, Spin: -1}}
	addr := map[string]string{"sm": "sm://*", "tcp": "tcp://127.0.0.1:0"}[transport]
	if transport == "sm" {
		cfg.NA.Plugins = []na.Plugin{sm.New(sm.Options{Unassisted: true})}
	}
	open := func(addr string, handler hg.Handler) *hg.Context {
		cls, err := hg.Open(addr, cfg)
		require.NoError(b, err)
		_, err = cls.RegisterRPC(hg.RPC{Name: "echo", Inline: true, Handler: handler})
		require.NoError(b, err)
		hctx, err := cls.NewContext()
		require.NoError(b, err)
		b.Cleanup(func() { _ = cls.Shutdown(context.Background()) })
		return hctx
	}
	target := open(addr, func(r hg.Request) error {
		in, err := r.InputRaw()
		if err != nil {
			return err
		}
		return r.RespondRaw(in, nil)
	})
	origin := open(transport+"://", nil)
	turn := func() {
		_ = target.Progress(0)
		target.Trigger(0)
		_ = origin.Progress(0)
		origin.Trigger(0)
	}

	in := make([]byte, 64)
	var ended, left int
	var fail error
	var cb hg.ForwardFunc
	cb = func(h *hg.Handle, err error) {
		if ended++; err == nil && left > 0 {
			left--
			err = h.ForwardRaw(in, cb)
		}
		if err != nil {
			fail = err
		}
	}
	handles := make([]*hg.Handle, inFlight)
	for i := range handles {
		var err error
		handles[i], err = origin.Create(target.Class().Addr(), hg.HashName("echo"))
		require.NoError(b, err)
		handles[i].SetTimeout(timeout)
	}
	calls := func(n int) {
		ended, left = 0, n
		for _, h := range handles[:min(n, inFlight)] {
			left--
			require.NoError(b, h.ForwardRaw(in, cb))
		}
		for ended < n {
			turn()
			require.NoError(b, fail)
		}
	}
	calls(4 * inFlight)
	before := threadTime(b)
	b.ResetTimer()
	calls(b.N)
	b.StopTimer()
	b.ReportMetric(float64(threadTime(b)-before)/float64(b.N), "cpu-ns/call")
	for _, h := range handles {
		require.NoError(b, h.Close())
	}
}

// threadTime is the processor time that this thread has used.
func threadTime(b *testing.B) time.Duration {
	const thisThread = 1 // RUSAGE_THREAD
	var r syscall.Rusage
	require.NoError(b, syscall.Getrusage(thisThread, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
