package sm

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A pair is two classes of this process that a test drives.
type pair struct {
	t    *testing.T
	ctxs [2]*na.Context // the first listens
}

func newPair(t *testing.T, cfg na.Config) *pair {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	p := &pair{t: t}
	cfg.Plugins = []na.Plugin{New(Options{Dir: dir, Unassisted: true})}
	for i, addr := range []string{"sm://host", "sm://"} {
		cls, err := na.Open(addr, cfg)
		require.NoError(t, err)
		p.ctxs[i], err = cls.NewContext()
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for _, c := range p.ctxs {
			require.NoError(t, c.Class().Close())
		}
		p.until("all is closed", func() bool { return p.ctxs[0].Class().Closed() && p.ctxs[1].Class().Closed() })
		require.NoError(t, os.RemoveAll(dir))
	})
	return p
}

func (p *pair) until(what string, done func() bool) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		for _, c := range p.ctxs {
			_ = c.Progress(0)
			c.Trigger(0)
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// send sends one message from the second class to the first, and returns how that ended.
func (p *pair) send() error {
	p.t.Helper()
	var ended, got bool
	var err error
	recv := p.ctxs[0].NewOp(func(_ *na.Op, r na.Result) {
		if r.Err == nil {
			got = true
			r.Envelope.Free()
		}
	})
	require.NoError(p.t, p.ctxs[0].RecvUnexpected(recv))
	send := p.ctxs[1].NewOp(func(_ *na.Op, r na.Result) { ended, err = true, r.Err })
	require.NoError(p.t, p.ctxs[1].SendUnexpected(send, p.ctxs[0].Class().Addr(), 1, []byte("x")))
	p.until("the message has arrived, or failed", func() bool { return ended && (got || err != nil) })
	if !got {
		recv.Cancel()
	}
	return err
}

// refuse has the system refuse packets of a kind with so many descriptors, the first n of them; n < 0: all.
func refuse(t *testing.T, kind uint16, fds, n int, err error) (left *int) {
	refuseSend = func(k uint16, f int) error {
		if k != kind || f != fds || n == 0 {
			return nil
		}
		n--
		return err
	}
	t.Cleanup(func() { refuseSend = nil })
	return &n
}

// TestTooManyReferences: descriptors on their way through sockets are counted by user, and the system refuses more than RLIMIT_NOFILE of
// them: when many processes start together. Each packet with which a session begins is sent again then, and no call fails.
func TestTooManyReferences(t *testing.T) {
	for name, c := range map[string]struct {
		kind uint16
		fds  int
	}{"HELLO": {kindHello, 1}, "its answer": {kindHello, 2}, "the segment": {kindSegment, 1}} {
		t.Run(name, func(t *testing.T) {
			left := refuse(t, c.kind, c.fds, 3, unix.ETOOMANYREFS)
			p := newPair(t, na.Config{})
			require.NoError(t, p.send())
			require.Zero(t, *left, "it was not refused")
		})
	}
}

// TestTooManyReferencesForever: they are not sent again for ever.
func TestTooManyReferencesForever(t *testing.T) {
	old := sendTime
	sendTime = 20 * time.Millisecond
	t.Cleanup(func() { sendTime = old })
	for name, c := range map[string]struct {
		kind uint16
		fds  int
	}{"HELLO": {kindHello, 1}, "its answer": {kindHello, 2}} {
		t.Run(name, func(t *testing.T) {
			refuse(t, c.kind, c.fds, -1, unix.ETOOMANYREFS)
			p := newPair(t, na.Config{ConnectTimeout: 100 * time.Millisecond})
			require.ErrorIs(t, p.send(), na.ErrUnreachable)
		})
	}
}
