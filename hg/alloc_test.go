package hg_test

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestRawCallsAllocateNothing checks that in the steady state a raw call allocates nothing, at
// either end: its records are from free lists.
func TestRawCallsAllocateNothing(t *testing.T) { testRawCalls(t, 100_000, 0, hg.Config{}) }

// TestCallsWithDeadlineAllocateNothing checks that raw calls with a deadline, whose timer is canceled in
// each, allocate nothing.
func TestCallsWithDeadlineAllocateNothing(t *testing.T) {
	testRawCalls(t, 20_000, time.Hour, hg.Config{})
}

// TestObservingAllocatesNothing checks that raw calls that are observed allocate nothing.
func TestObservingAllocatesNothing(t *testing.T) {
	events := 0
	testRawCalls(t, 20_000, 0, hg.Config{Observe: func(*inspect.Event) { events++ }})
	require.GreaterOrEqual(t, events, 20_000)
}

func testRawCalls(t *testing.T, calls int, timeout time.Duration, cfg hg.Config) {
	transports.Fast(t, func(t *testing.T, n *transports.Net) {
		inFlight, most := 16, 200
		if raceflag.Enabled {
			calls = 10_000
			most += calls + calls/4 // InputRaw returns a copy then, and the detector allocates now and then
			if cfg.Observe != nil {
				most += 2 * calls // and sync.Pool drops items
			}
		}
		p := newPair(t, n, cfg)
		id := p.rpc("echo", echo)
		in := make([]byte, 64)
		started, ended := 0, 0
		var failed error
		var cb hg.ForwardFunc
		cb = func(h *hg.Handle, err error) {
			ended++
			if err == nil && started < calls {
				started++
				err = h.ForwardRaw(in, cb)
			}
			if err != nil {
				failed = err
			}
		}
		handles := make([]*hg.Handle, inFlight)
		for i := range handles {
			handles[i] = p.handle(id)
			handles[i].SetTimeout(timeout)
			defer handles[i].Close()
		}
		round := func() uint64 {
			started, ended = inFlight, 0
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, h := range handles {
				require.NoError(t, h.ForwardRaw(in, cb))
			}
			for ended < calls && failed == nil {
				for _, c := range []*hg.Context{p.octx, p.tctx} {
					_ = c.Progress(0)
					c.Trigger(0)
				}
			}
			runtime.ReadMemStats(&after)
			require.NoError(t, failed)
			return after.Mallocs - before.Mallocs
		}
		round() // fills the lists
		require.Less(t, round(), uint64(most), "allocations of %d calls, both ends together", calls)
	})
}

// TestPostAllocatesNothing checks that post allocates nothing once a context has entries of its
// own.
func TestPostAllocatesNothing(t *testing.T) {
	transports.Fast(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		const rounds, assisted = 10_000, 50
		ran := 0
		fn := func() { ran++ }
		round := func() uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				_, _ = p.octx.Post(fn), p.octx.Post(fn)
				p.octx.Trigger(0)
			}
			runtime.ReadMemStats(&after)
			return after.Mallocs - before.Mallocs
		}
		round()
		require.LessOrEqual(t, round(), uint64(assisted))
		require.Equal(t, 4*rounds, ran)
	})
}

// TestBodiesAllocateNothing checks that calls with large bodies use the memory of earlier ones,
// whatever the size: there is none at which each call allocates its own. Bodies that are lent
// allocate a few records.
func TestBodiesAllocateNothing(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	buffers, records, few := 0.25, 4.0, 2000.0 // that a call may make: a pool may drop one, and a body may be lent, now and then
	if raceflag.Enabled {                      // sync.Pool drops one in four, more are lent, and InputRaw returns a copy
		buffers, records, few = 4, 80, 10_000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties the pools
	each := func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("echo", echo))
		defer h.Close()
		most := 0.0
		for _, size := range []int{64, 60_000, 64<<10 - 20, 64 << 10, na.MaxRoom - 20, na.MaxRoom, 100_000, 300 << 10, 1 << 20, 4 << 20, na.MaxBody, na.MaxBody + 1, 6 << 20} {
			in := sizedBytes(size)
			less := in[:min(size, 40_000)] // the buffer of a handle grows from one to the other, once
			if size > na.MaxRoom {
				less = in
			}
			var before, after runtime.MemStats
			calls := 10
			if size > 1<<20 || raceflag.Enabled {
				calls = 4
			}
			for i := range 2 * calls {
				if i == calls {
					runtime.ReadMemStats(&before)
				}
				require.NoError(t, p.callRaw(h, less))
				require.NoError(t, p.callRaw(h, in))
			}
			runtime.ReadMemStats(&after)
			mallocs, bytes := float64(after.Mallocs-before.Mallocs)/float64(2*calls), float64(after.TotalAlloc-before.TotalAlloc)/float64(2*calls)
			t.Logf("%d bytes: %.1f allocations a call, of %.0f bytes", size, mallocs, bytes)
			switch {
			case size == 64:
				most = mallocs + records // some are the test's
			case size <= 1<<20: // of the few that are longer, each waits for the network more often, and that is counted, too
				require.LessOrEqual(t, mallocs, most, "%d bytes", size)
			}
			if n.Name != "udp" { // a second goroutine that reads there makes room for 2 MiB of datagrams, now and then
				require.Less(t, bytes, max(buffers*float64(size), few), "%d bytes", size)
			}
		}
	}
	transports.Fast(t, each)
	t.Run("udp", func(t *testing.T) { transports.UDP(t, each) })
}
