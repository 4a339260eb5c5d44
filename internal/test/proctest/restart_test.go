//go:build linux

package proctest

import (
	"flag"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var restarts = flag.Int("proctest.restarts", long.Or(10, 100), "restarts of TestManyRestarts")

// TestRestart checks a target that is killed in the middle of a call, with another one that takes
// its address (F11): the call ends with ErrPeerLost, the next one of the same handle is served, and
// memory that the old one had lent is refused.
func TestRestart(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr transport) {
		p, o := tr.startPair(t, hg.Config{})
		lend := o.newHandle("lend")
		defer lend.Close()
		require.NoError(t, o.call(lend, nil))
		var ex exposedRegion
		require.NoError(t, lend.Output(&ex))
		h := o.newHandle("hold")
		defer h.Close()
		c := o.forward(h, nil)
		require.Equal(t, "began", p.readLine())
		p.kill()
		again := tr.startTarget(t, p.Addr)
		require.Equal(t, p.Addr, again.Addr)
		o.driveUntil(func() bool { return c.ended > 0 })
		require.ErrorIs(t, c.err, hg.ErrPeerLost)

		require.NoError(t, h.Reset(o.peer, hg.HashName("echo")))
		begun := time.Now()
		require.NoError(t, o.call(h, "who are you?"))
		t.Logf("served by the new one after %v", time.Since(begun))

		memory := make([]byte, 1<<20)
		local, err := bulk.Create(o.hctx, bulk.Options{Access: bulk.LocalOnly}, memory)
		require.NoError(t, err)
		ended := 0
		var got error
		_, err = bulk.Transfer(o.hctx, bulk.Spec{Dir: bulk.Pull, Peer: o.peer, Remote: ex.Region, Local: local, Size: 1 << 20},
			func(_ *bulk.Op, err error) { ended++; got = err })
		require.NoError(t, err)
		o.driveUntil(func() bool { return ended > 0 })
		t.Logf("an old key: %v", got)
		require.ErrorIs(t, got, na.ErrRevoked)
		require.Equal(t, make([]byte, 1<<20), memory)
		require.NoError(t, local.Close())
	})
}

// TestManyRestarts checks a target that is killed and started again many times under load (F12):
// every call ends, and neither descriptors nor memory grow.
func TestManyRestarts(t *testing.T) {
	n := *restarts
	eachTransport(t, func(t *testing.T, tr transport) {
		p, o := tr.startPair(t, hg.Config{})
		w := o.startWorker(8)
		descriptors := func() int {
			all, err := os.ReadDir("/proc/self/fd")
			require.NoError(t, err)
			return len(all)
		}
		heap := func() int64 {
			runtime.GC()
			runtime.GC() // what pools held the first time
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		good := func() int { return w.ended - w.failed[hg.ErrPeerLost] - w.failed[hg.ErrUnreachable] }
		var files int
		var memory int64
		for i := range n {
			seen := good()
			o.driveUntil(func() bool { return good() > seen+50 })
			if i == 1 {
				files, memory = descriptors(), heap()
			}
			p.kill()
			_ = p.in.Close()
			p = tr.startTarget(t, p.Addr)
		}
		seen := good()
		o.driveUntil(func() bool { return good() > seen+50 })
		t.Logf("%d restarts: %d calls, failed %v; descriptors %d and %d, heap %d and %d", n, w.ended, w.failed, files, descriptors(),
			memory, heap())
		require.LessOrEqual(t, descriptors(), files+2)
		require.Less(t, heap(), memory+1<<20)
		w.stop()
		require.EqualValues(t, n, o.hctx.Stats().NA.PeersLost)
	})
}
