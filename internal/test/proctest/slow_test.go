//go:build unix

package proctest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestSlowTargetAmongTen checks that a target that is stopped with 8,192 requests waiting for it
// does not slow down ten others (G9, F67). Each round answers the same number of calls to the ten
// while none of the stopped one's ends; the test prints how long rounds take beside it and without
// it.
func TestSlowTargetAmongTen(t *testing.T) { eachCostly(t, testSlowTargetAmongTen) }

func testSlowTargetAmongTen(t *testing.T, tr transport) {
	const fast, flight = 10, 8
	calls := long.Or(2000, 4000)
	rounds := long.Or(2, *rounds)
	if raceflag.Enabled {
		rounds = 2 // they take long, and do not measure speed
	}
	slow := tr.startTarget(t, "")
	o := openAt(t, tr.origin, hg.Config{NA: na.Config{PeerTimeout: time.Hour}}, nil)
	o.connect(slow)
	h := o.newHandle("echo")
	defer h.Close()
	require.NoError(t, o.call(h, "before"))
	var handles []*hg.Handle
	for range fast {
		addr, err := na.ParseAddr(tr.startTarget(t, "").Addr)
		require.NoError(t, err)
		for range flight {
			h, err := o.hctx.Create(addr, hg.HashName("echo"))
			require.NoError(t, err)
			defer h.Close()
			handles = append(handles, h)
		}
	}
	round := func() time.Duration {
		begun, answered, left := time.Now(), 0, calls
		var again hg.ForwardFunc
		again = func(h *hg.Handle, err error) {
			require.NoError(t, err)
			answered++
			if left > 0 {
				left--
				require.NoError(t, h.ForwardRaw([]byte("work"), again))
			}
		}
		for _, h := range handles {
			left--
			require.NoError(t, h.ForwardRaw([]byte("work"), again))
		}
		o.driveUntil(func() bool { return answered == calls })
		return time.Since(begun)
	}
	round() // connects

	slow.stop()
	var times [2][]time.Duration
	stuck := make([]*hg.Handle, 8192)
	lost, canceled := 0, 0
	for i := range stuck {
		stuck[i] = o.newHandle("echo")
		defer stuck[i].Close()
	}
	for i := range 2 * rounds {
		beside := i%4 == 1 || i%4 == 2 // A B B A
		if beside {
			for _, h := range stuck {
				require.NoError(t, h.ForwardRaw([]byte("work"), func(_ *hg.Handle, err error) {
					lost++
					if na.CodeOf(err) == hg.ErrCanceled {
						canceled++
					}
				}))
			}
		}
		took := round()
		if !beside {
			times[0] = append(times[0], took)
			continue
		}
		times[1] = append(times[1], took)
		require.Zero(t, lost, "they wait")
		for _, h := range stuck {
			h.Cancel()
		}
		o.driveUntil(func() bool { return lost == len(stuck) })
		require.Equal(t, len(stuck), canceled)
		lost, canceled = 0, 0
	}
	for _, ts := range times {
		slices.Sort(ts)
	}
	alone, beside := times[0][len(times[0])/2], times[1][len(times[1])/2]
	t.Logf("%d calls to %d targets: %v alone, %v beside a stopped one: rate %.2f", calls, fast, alone, beside, float64(alone)/float64(beside))
	require.Zero(t, o.hctx.Stats().NA.PeersLost)
}
