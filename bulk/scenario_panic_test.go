package bulk_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
)

// TestOnProgressPanics checks that a transfer whose OnProgress panics ends and releases its local
// memory.
func TestOnProgressPanics(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		for _, leave := range []func(){func() { panic("ouch") }, runtime.Goexit} {
			s := newTransferTest(t, p, dir, 300_000)
			var notified int64
			s.spec.OnProgress = func(_ *bulk.Op, moved int64) { notified = moved; leave() }
			s.start()
			for end := time.Now().Add(time.Minute); s.calls == 0 && time.Now().Before(end); {
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = p.octx.Progress(0), p.mctx.Progress(time.Millisecond)
					p.octx.Trigger(0)
					p.mctx.Trigger(0)
				}()
				<-ended
			}
			require.Equal(t, 1, s.calls)
			require.NoError(t, s.err)
			require.EqualValues(t, 300_000, notified, "the last one reported all bytes")
			closed := 0
			require.NoError(t, s.localHandle.CloseFunc(func(error) { closed++ }))
			s.Until(func() bool { return closed > 0 })
		}
	})
}
