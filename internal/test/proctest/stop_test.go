//go:build unix

package proctest

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// rounds is how often TestStoppedOwner cancels; more give a better picture of the times.
var rounds = flag.Int("rounds", long.Or(3, 6), "cancels of TestStoppedOwner")

var zeroes = make([]byte, 1<<20)

// durationsText describes durations.
func durationsText(d []time.Duration) string {
	slices.Sort(d)
	at := func(q float64) time.Duration { return d[min(int(q*float64(len(d))), len(d)-1)] }
	return fmt.Sprintf("n=%d p50=%v p99=%v p99.9=%v max=%v", len(d), at(0.5), at(0.99), at(0.999), d[len(d)-1])
}

// TestStoppedTarget checks a target that is stopped for 3 s (C-T28): 1,000 calls to it are canceled
// at once, and after it continues the same session is used.
func TestStoppedTarget(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, tr transport) {
		t.Parallel()
		testStoppedTarget(t, tr)
	})
}

func testStoppedTarget(t *testing.T, tr transport) {
	p := tr.startTarget(t, "")
	o := tr.newOrigin(t, p, hg.Config{NA: na.Config{PeerTimeout: 30 * time.Second}}) // a busy machine takes its time, too
	h := o.newHandle("echo")
	defer h.Close()
	require.NoError(t, o.call(h, "before"))
	sessions := o.hctx.Stats().NA

	p.stop()
	stopped := time.Now()
	var took []time.Duration
	canceled, callbacks := 0, 0
	ended := func(_ *hg.Handle, err error) {
		callbacks++
		if na.CodeOf(err) == hg.ErrCanceled {
			canceled++
		}
	}
	for i := range 1000 {
		require.NoError(t, h.Forward(i, ended))
		_ = o.hctx.Progress(100 * time.Microsecond)
		begun := time.Now()
		h.Cancel()
		o.hctx.Trigger(0)
		took = append(took, time.Since(begun))
		require.Equal(t, i+1, callbacks)
	}
	require.Equal(t, 1000, canceled)
	// The same with all of them in flight at once.
	handles := make([]*hg.Handle, 1000)
	for i := range handles {
		handles[i] = o.newHandle("echo")
		require.NoError(t, handles[i].Forward(i, ended))
	}
	var together []time.Duration
	for i, h := range handles {
		begun := time.Now()
		h.Cancel()
		o.hctx.Trigger(0)
		together = append(together, time.Since(begun))
		require.Equal(t, 1000+i+1, callbacks)
		h.Close()
	}
	require.Equal(t, 2000, canceled)
	t.Logf("Cancel to callback, one in flight:   %s", durationsText(took))
	t.Logf("Cancel to callback, 1000 in flight:  %s", durationsText(together))

	for time.Since(stopped) < 3*time.Second {
		_ = o.hctx.Progress(3*time.Second - time.Since(stopped))
		o.hctx.Trigger(0)
	}
	p.signal(syscall.SIGCONT)
	for i := range 1000 {
		require.NoError(t, o.call(h, i))
		var out int
		require.NoError(t, h.Output(&out))
		require.Equal(t, i, out)
	}
	after := o.hctx.Stats().NA
	require.Equal(t, sessions.Peers, after.Peers)
	require.Zero(t, after.PeersLost, "the same session serves on")
	t.Logf("late answers of canceled calls, which were dropped: %d", after.LateDropped)
}

// TestStoppedOwner checks an owner of a region that is stopped in the middle of a pull of 1 GiB:
// the pull is canceled at once, and after the owner continues the whole region is pulled in the
// same session, byte for byte.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	eachTransport(t, testStoppedOwner)
}

func testStoppedOwner(t *testing.T, tr transport) {
	p := tr.startTarget(t, "")
	o := tr.newOrigin(t, p, hg.Config{NA: na.Config{PeerTimeout: time.Minute}}) // filling a gigabyte may take its time
	h := o.newHandle("expose")
	defer h.Close()
	require.NoError(t, o.call(h, nil))
	var ex exposedRegion
	require.NoError(t, h.Output(&ex))

	local := make([]byte, regionSize)
	lh, err := bulk.Create(o.hctx, bulk.Options{Access: bulk.LocalOnly}, local)
	require.NoError(t, err)
	spec := bulk.Spec{Dir: bulk.Pull, Peer: o.peer, Remote: ex.Region, Local: lh, Size: int64(regionSize)}
	echo := o.newHandle("echo")
	defer echo.Close()
	var took []time.Duration
	for round := range *rounds {
		calls := 0
		var got error
		op, err := bulk.Transfer(o.hctx, spec, func(_ *bulk.Op, err error) { calls++; got = err })
		require.NoError(t, err)
		o.driveUntil(func() bool { return op.Moved() > int64(round%20)<<20 })
		p.stop()
		for range 50 { // until what was on its way has arrived
			_ = o.hctx.Progress(time.Millisecond)
			o.hctx.Trigger(0)
		}
		require.Zero(t, calls)
		begun := time.Now()
		op.Cancel()
		o.hctx.Trigger(0)
		took = append(took, time.Since(begun))
		require.Equal(t, 1, calls)
		require.ErrorIs(t, got, hg.ErrCanceled)
		if round < 20 {
			clear(local)
		}
		p.signal(syscall.SIGCONT)
		require.NoError(t, o.call(echo, "still here"))
		for at := 0; round < 20 && at < len(local); at += len(zeroes) {
			if !bytes.Equal(local[at:at+len(zeroes)], zeroes) {
				t.Fatalf("bytes near %d were written after the callback", at)
			}
		}
	}
	t.Logf("Cancel of a pull to callback: %s", durationsText(took))

	calls := 0
	var got error
	_, err = bulk.Transfer(o.hctx, spec, func(_ *bulk.Op, err error) { calls++; got = err })
	require.NoError(t, err)
	o.driveUntil(func() bool { return calls > 0 })
	require.NoError(t, got)
	require.Equal(t, ex.Sum, checksum(local))
	require.Zero(t, o.hctx.Stats().NA.PeersLost)
	require.NoError(t, lh.Close())
}
