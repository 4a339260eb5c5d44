package sm

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
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

// refusePackets has the system refuse packets of a kind with so many descriptors, the first n of them; n < 0: all.
func refusePackets(t *testing.T, kind uint16, fds, n int, err error) (left *int) {
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

// TestTooManyReferences checks that packets that the system refuses are sent again. It counts
// descriptors in flight through sockets by user, and refuses more than RLIMIT_NOFILE of them, as
// when many processes start together. Each packet with which a session begins is sent again then,
// and no call fails.
func TestTooManyReferences(t *testing.T) {
	for name, c := range map[string]struct {
		kind uint16
		fds  int
	}{"HELLO": {kindHello, 1}, "its answer": {kindHello, 2}, "the segment": {kindSegment, 1}} {
		t.Run(name, func(t *testing.T) {
			left := refusePackets(t, c.kind, c.fds, 3, unix.ETOOMANYREFS)
			p := newPair(t, na.Config{})
			require.NoError(t, p.send())
			require.Zero(t, *left, "it was not refused")
		})
	}
}

// TestTooManyReferencesForever checks that packets are not sent again for ever.
func TestTooManyReferencesForever(t *testing.T) {
	old := sendTime
	sendTime = 20 * time.Millisecond
	t.Cleanup(func() { sendTime = old })
	for name, c := range map[string]struct {
		kind uint16
		fds  int
	}{"HELLO": {kindHello, 1}, "its answer": {kindHello, 2}} {
		t.Run(name, func(t *testing.T) {
			refusePackets(t, c.kind, c.fds, -1, unix.ETOOMANYREFS)
			p := newPair(t, na.Config{ConnectTimeout: 100 * time.Millisecond})
			require.ErrorIs(t, p.send(), na.ErrUnreachable)
		})
	}
}

// limitFDs has this process get no new descriptor of n or more until restore is called.
func limitFDs(t *testing.T, n int) (restore func()) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: old.Max}))
	restore = sync.OnceFunc(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) })
	t.Cleanup(restore)
	return restore
}

// TestAreaWithoutDescriptors checks that a peer's area reaches a process that can have no more
// descriptors: its memory is mapped and the descriptor closed, for which the spare one of the
// context is enough. Where even that is taken the session waits, others continue, and it continues
// when descriptors are free again.
func TestAreaWithoutDescriptors(t *testing.T) {
	for name, limit := range map[string]func(t *testing.T) int{
		"one is spare": func(t *testing.T) int {
			first, err := unix.Dup(0)
			require.NoError(t, err)
			require.NoError(t, unix.Close(first))
			return first
		},
		"none": func(*testing.T) int { return 3 },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 300_000
			h := newRawHost(t, Options{})
			other := h.newRawPeer()
			otherAddr := other.join()
			s := h.newRawPeer()
			from := s.join()
			area, fd, err := makeMemory(ring.AreaSize)
			require.NoError(t, err)
			defer unmap(&area)
			h.nctx.Upper().GrantRoom(from, n)
			var env *na.Envelope
			require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { env = r.Envelope })))

			restore := limitFDs(t, limit(t))
			require.NoError(t, sendPacket(s.fd, kindArea, nil, fd))
			s.end.SetArea(area)
			b, ok := s.end.Reserve(n)
			require.True(t, ok)
			s.sendBody(frame.Body, b.At, n)
			s.send(frame.Header{Kind: frame.Unexpected, Flags: frame.FlagBody, Op: bodyID(n)}, []byte("front"))
			if name == "none" {
				requireIdle(t, h.nctx)
				sent := false
				require.NoError(t, h.nctx.SendExpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) { sent = r.Err == nil }), otherAddr, 1, nil))
				h.until("another session goes on", func() bool { return sent })
				require.Nil(t, env)
				restore()
			}
			h.until("the message arrives", func() bool { return env != nil })
			require.Len(t, env.Body, n)
			env.Free()
			require.Equal(t, 2, h.nctx.Stats().Peers)
			restore()
			require.NoError(t, unix.Close(fd))
		})
	}
}

// TestTooManyReferencesOfArea checks that a long message waits until the system takes the area.
func TestTooManyReferencesOfArea(t *testing.T) {
	p := newPair(t, na.Config{})
	require.NoError(t, p.send())
	left := refusePackets(t, kindArea, 1, 3, unix.ETOOMANYREFS)
	const n = 300_000
	host := p.ctxs[0]
	mem, err := host.Class().Register(na.ReadWrite, make([]byte, n))
	require.NoError(t, err)
	own, err := p.ctxs[1].Class().Register(na.ReadWrite, bytes.Repeat([]byte{7}, n))
	require.NoError(t, err)
	ended := false
	require.NoError(t, p.ctxs[1].Put(p.ctxs[1].NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		ended = true
	}), own, 0, host.Class().Addr(), mem.Key(), 0, n))
	p.until("it is put", func() bool { return ended })
	require.Zero(t, *left, "it was not refused")
}
