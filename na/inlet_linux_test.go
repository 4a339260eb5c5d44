package na

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A testInlet is an Inlet like that of shared memory: a peer puts letters in, and signals an
// eventfd if that is requested.
type testInlet struct {
	letters, taken atomic.Int64
	want           atomic.Bool // the bell
	rings, peeks   atomic.Int64
	fd             int
	onPeek         func() // runs when letters were taken
}

// post is the peer's.
func (b *testInlet) post() {
	b.letters.Add(1)
	if b.want.Swap(false) {
		b.rings.Add(1)
		one := [8]byte{1}
		_, _ = unix.Write(b.fd, one[:])
	}
}

func (b *testInlet) Peek() bool {
	b.peeks.Add(1)
	n := b.letters.Load()
	if n == b.taken.Load() {
		return false
	}
	b.taken.Store(n)
	if b.onPeek != nil {
		b.onPeek()
	}
	return true
}

func (b *testInlet) Arm() bool {
	b.want.Store(true)
	return b.letters.Load() != b.taken.Load()
}

func (b *testInlet) Disarm() { b.want.Store(false) }

// newTestInlet makes a context with a letterbox.
func newTestInlet(t *testing.T, p *fakePlugin) (*Context, *fakeCarrier, *testInlet) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(t, err)
	b := &testInlet{fd: fd}
	p.sources = func(c *Context) {
		_, err := c.poller.AddEdge(fd, readyFunc(func(bool, bool) {}))
		require.NoError(t, err)
		c.poller.AddInlet(b)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	c, f := newFakeOf(t, p, Config{})
	return c, f, b
}

// TestSource checks that the background poller takes in letters that arrive while no goroutine
// drives, each without another signal or a poll in between; and that a blocked leader takes them
// in.
func TestSource(t *testing.T) {
	c, f, b := newTestInlet(t, &fakePlugin{})
	op := c.NewOp(func(*Op, Result) {})
	b.onPeek = func() {
		f.end(op, Result{})
	}
	for i := int64(1); i < 100; i += 3 {
		b.post()
		eventually(t, "the background poller takes a letter", func() bool { return b.taken.Load() == i })
		b.post()
		eventually(t, "the background poller takes the next one", func() bool { return b.taken.Load() == i+1 })

		require.NoError(t, c.RecvUnexpected(op))
		done := startProgress(t, c, -1)
		b.post()
		require.NoError(t, receiveWithin(t, done, "the leader takes a letter"))
		require.Equal(t, 1, c.Trigger(0))
		require.Equal(t, i+2, b.taken.Load())
	}
}

// TestSourceAtRest checks that an idle context with a source costs nothing.
func TestSourceAtRest(t *testing.T) {
	c, _, b := newTestInlet(t, &fakePlugin{})
	for i := range int64(3) {
		peeks := int64(-1)
		eventually(t, "the background poller rests, with the bell armed", func() bool {
			before := peeks
			peeks = b.peeks.Load()
			return before == peeks && b.want.Load()
		})
		b.post()
		eventually(t, "the background poller gets the bell", func() bool { return b.taken.Load() == i+1 })
		_ = c.Progress(0)
	}
}

// TestSourceUnassisted checks that a context without a background poller takes letters in when it
// is driven, and only then. While a goroutine polls, peers do not signal.
func TestSourceUnassisted(t *testing.T) {
	c, f, b := newTestInlet(t, &fakePlugin{unassisted: true})
	op := c.NewOp(func(*Op, Result) {})
	b.onPeek = func() { f.end(op, Result{}) }
	for range 100 {
		require.NoError(t, c.RecvUnexpected(op))
		done := startProgress(t, c, time.Minute)
		b.post()
		require.NoError(t, receiveWithin(t, done, "the leader takes a letter"))
		require.Equal(t, 1, c.Trigger(0))
	}
	rings := b.rings.Load()
	for range 100 {
		require.NoError(t, c.RecvUnexpected(op))
		b.post()
		require.NoError(t, c.Progress(0))
		require.Equal(t, 1, c.Trigger(0))
	}
	require.Equal(t, rings, b.rings.Load())
}

// TestSourcesInOneProcess sends letters between two contexts of one process, each with a goroutine
// that drives it, so that both poll, or block, or are between the two.
func TestSourcesInOneProcess(t *testing.T) {
	const rounds = 2000
	a, fa, boxA := newTestInlet(t, &fakePlugin{})
	b, fb, boxB := newTestInlet(t, &fakePlugin{})
	play := func(c *Context, f *fakeCarrier, own, other *testInlet, begins bool) <-chan error {
		op := c.NewOp(func(*Op, Result) {})
		own.onPeek = func() {
			f.end(op, Result{})
		}
		done := make(chan error, 1)
		go func() {
			for i := range int64(rounds) {
				if err := c.RecvUnexpected(op); err != nil {
					done <- err
					return
				}
				if begins {
					other.post()
				}
				for op.Busy() {
					if own.taken.Load() == i+1 { // by the background poller, before the receive
						f.end(op, Result{})
					}
					if err := c.Progress(-1); err != nil {
						done <- err
						return
					}
					c.Trigger(0)
				}
				if !begins {
					other.post()
				}
			}
			done <- nil
		}()
		return done
	}
	first, second := play(a, fa, boxA, boxB, true), play(b, fb, boxB, boxA, false)
	require.NoError(t, receiveWithin(t, first, "the one who begins"))
	require.NoError(t, receiveWithin(t, second, "the other one"))
	require.EqualValues(t, rounds, boxA.taken.Load())
	require.EqualValues(t, rounds, boxB.taken.Load())
}

// TestReceiveAll checks that receiveAll looks at every descriptor that is ready, however many there
// are.
func TestReceiveAll(t *testing.T) {
	const n = 3*eventsAtOnce + 1
	c, _ := newFakeOf(t, &fakePlugin{unassisted: true}, Config{})
	seen := map[int]bool{}
	for i := range n {
		r, w := pipeFDs(t)
		_, err := c.poller.Add(r, readyFunc(func(bool, bool) { seen[i] = true }))
		require.NoError(t, err)
		_, err = unix.Write(w, []byte("x"))
		require.NoError(t, err)
	}
	require.True(t, c.loop.TryLead())
	c.receiveAll()
	c.loop.Unlead()
	require.Equal(t, n, len(seen))
}
