//go:build unix

package proctest

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A busyOrigin has calls to a live target in flight all the time, and cancels calls to another.
type busyOrigin struct {
	*origin
	answered int
	fail     error // the first of a call that is not canceled
	over     bool
	flying   int
}

const busyCalls = 32

// startBusyOrigin starts calls that are not canceled.
func startBusyOrigin(o *origin, addr string) *busyOrigin {
	b := &busyOrigin{origin: o}
	peer, err := na.ParseAddr(addr)
	require.NoError(o.t, err)
	var again hg.ForwardFunc
	again = func(h *hg.Handle, err error) {
		b.answered++
		b.flying--
		if err != nil && b.fail == nil {
			b.fail = err
		}
		if b.over || h.ForwardRaw([]byte("work"), again) != nil {
			h.Close()
			return
		}
		b.flying++
	}
	for range busyCalls {
		h, err := o.hctx.Create(peer, hg.HashName("echo"))
		require.NoError(o.t, err)
		require.NoError(o.t, h.ForwardRaw([]byte("work"), again))
		b.flying++
	}
	return b
}

// A cancelCount is what became of calls that were forwarded and canceled at once.
type cancelCount struct {
	callbacks, canceled, sent int
	took                      []time.Duration // Cancel to callback
}

// cancel forwards and cancels, over and over, on one handle.
func (b *busyOrigin) cancel(h *hg.Handle, rounds int) *cancelCount {
	b.t.Helper()
	c := &cancelCount{}
	ended := func(_ *hg.Handle, err error) {
		c.callbacks++
		if na.CodeOf(err) == hg.ErrCanceled {
			c.canceled++
		}
		if hg.FateOf(err) == na.MaybeRan {
			c.sent++
		}
	}
	for i := range rounds {
		require.NoError(b.t, h.ForwardRaw([]byte("x"), ended))
		if i%8 == 0 {
			_ = b.hctx.Progress(0)
		}
		if c.callbacks > i { // it had failed
			continue
		}
		begun := time.Now()
		h.Cancel()
		b.hctx.Trigger(0)
		c.took = append(c.took, time.Since(begun))
		require.Equal(b.t, i+1, c.callbacks)
	}
	return c
}

// TestCancelTenThousand checks that ten thousand calls are forwarded and canceled on one handle
// beside other calls, to a target that is alive, stopped, and killed (F44): each ends once; of
// those to the stopped one no more are sent than there are envelopes, memory does not grow, and
// when it continues the same session serves the handle's next call, with its own answer.
func TestCancelTenThousand(t *testing.T) { eachCostly(t, testCancelTenThousand) }

func testCancelTenThousand(t *testing.T, tr transport) {
	rounds := 10_000
	if raceflag.Enabled {
		rounds = 2000
	}
	p := tr.startTarget(t, "")
	b := startBusyOrigin(tr.newOrigin(t, p, hg.Config{NA: na.Config{PeerTimeout: time.Hour}}), tr.startTarget(t, "").Addr)
	h := b.newHandle("echo")
	defer h.Close()
	require.NoError(t, b.call(h, "before"))
	target := func() na.PeerStats {
		for _, s := range b.hctx.NA().Peers() {
			if s.Addr.Named() == b.peer {
				return s
			}
		}
		return na.PeerStats{}
	}
	idle := func() bool { return target().Free == target().Promised }

	alive := b.cancel(h, rounds)
	require.Equal(t, rounds, alive.callbacks)
	b.driveUntil(idle)

	p.stop()
	late := b.hctx.Stats().NA.LateDropped
	promised := target().Promised
	before := heapInUse()
	stopped := b.cancel(h, rounds)
	grown := heapInUse() - before
	require.Equal(t, rounds, stopped.callbacks)
	require.Equal(t, rounds, stopped.canceled)
	require.LessOrEqual(t, stopped.sent, promised, "as many may leave as there are envelopes")
	require.Zero(t, target().Queued)
	require.Less(t, grown, int64(1<<20), "bytes more")
	t.Logf("stopped: %d of %d left, %d envelopes; %d bytes more", stopped.sent, rounds, promised, grown)

	p.signal(syscall.SIGCONT)
	require.NoError(t, b.call(h, "own answer"))
	var out string
	require.NoError(t, h.Output(&out))
	require.Equal(t, "own answer", out)
	b.driveUntil(func() bool { return idle() && b.hctx.Stats().NA.LateDropped >= late+int64(stopped.sent) })
	require.Zero(t, b.hctx.Stats().NA.PeersLost)

	p.signal(syscall.SIGKILL)
	dead := b.cancel(h, rounds)
	require.Equal(t, rounds, dead.callbacks)
	b.driveUntil(func() bool { return b.hctx.Stats().NA.PeersLost == 1 })

	t.Logf("Cancel to callback, target alive:    %s, %d had left", durationsText(alive.took), alive.sent)
	t.Logf("Cancel to callback, target stopped:  %s", durationsText(stopped.took))
	t.Logf("Cancel to callback, target dead:     %s", durationsText(dead.took))
	b.over = true
	b.driveUntil(func() bool { return b.flying == 0 })
	require.NoError(t, b.fail, "a call that was not canceled")
	t.Logf("%d calls to a target that lived were answered meanwhile", b.answered)
}

// heapInUse is how many bytes of the heap are.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
