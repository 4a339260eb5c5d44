package failpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = 20 * time.Second

// A log is a buffer for log lines that goroutines share.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A node is a class with two contexts; panics are planted only for the first.
type node struct {
	t    *testing.T
	cls  *na.Class
	ctxs []*na.Context
	log  log
}

func openNode(t *testing.T, addr string, plugin na.Plugin) *node {
	t.Helper()
	n := &node{t: t}
	var err error
	n.cls, err = na.Open(addr, na.Config{Contexts: 2, Plugins: []na.Plugin{plugin}, Logger: slog.New(slog.NewTextHandler(&n.log, nil))})
	require.NoError(t, err)
	for range 2 {
		c, err := n.cls.NewContext()
		require.NoError(t, err)
		n.ctxs = append(n.ctxs, c)
	}
	return n
}

func (n *node) close() {
	n.t.Helper()
	require.NoError(n.t, n.cls.Close())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(n.t, n.cls.Shutdown(ctx))
}

func driveUntil(t *testing.T, what string, done func() bool, nodes ...*node) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); {
		require.True(t, time.Now().Before(end), what)
		for _, n := range nodes {
			for _, c := range n.ctxs {
				_ = c.Progress(100 * time.Microsecond)
				c.Trigger(0)
			}
		}
	}
}

// sendText sends a message and returns the error of the send.
func sendText(t *testing.T, from *na.Context, to na.Addr, tag na.Tag, text string, nodes ...*node) (err error) {
	t.Helper()
	over := false
	require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) { over, err = true, r.Err }), to, tag, []byte(text)))
	driveUntil(t, "a send ends", func() bool { return over }, nodes...)
	return err
}

// receiveText receives the next message.
func receiveText(t *testing.T, at *na.Context, nodes ...*node) (text string) {
	t.Helper()
	over := false
	require.NoError(t, at.RecvUnexpected(at.NewOp(func(_ *na.Op, r na.Result) {
		require.NoError(t, r.Err)
		over, text = true, string(r.Envelope.Data)
		r.Envelope.Free()
	})))
	driveUntil(t, "a message comes", func() bool { return over }, nodes...)
	return text
}

const panicTag na.Tag = 0xbad

// panicText panics where bytes with it are read, until it is disarmed.
const panicText = "plant-me"

// plantPanics makes frames with panicTag panic, and reads of bytes that contain panicText until disarm is called.
func plantPanics(t *testing.T) (disarm func()) {
	var off atomic.Bool
	failpoint.Set(func(b []byte) {
		if bytes.Contains(b, []byte(panicText)) && !off.Load() {
			panic("planted, without a lock")
		}
	}, func(h frame.Header) {
		if h.Kind == frame.Unexpected && h.Tag == uint64(panicTag) {
			panic("planted, with the lock")
		}
	})
	t.Cleanup(func() { failpoint.Set(nil, nil) })
	return func() { off.Store(true) }
}

var transports = map[string]struct {
	plugin na.Plugin
	listen string
	cuts   bool // a panic without the lock cuts the connection; else it loses a datagram
}{
	"tcp":           {tcp.New(tcp.Options{}), "tcp://127.0.0.1:0", true},
	"tcp, portable": {tcp.New(tcp.Options{Portable: true}), "tcp://127.0.0.1:0", true},
	"udp":           {udp.New(udp.Options{}), "udp://127.0.0.1:0", false},
	"udp, portable": {udp.New(udp.Options{Portable: true}), "udp://127.0.0.1:0", false},
	"sm":            {sm.New(sm.Options{}), "sm://host*", true},
}

// TestPanicWithLock checks that a panic while the endpoint is locked ends the context. Every
// operation of it gets the reason, those that begin later, too, and so does Progress; the process
// continues, the other context serves, and all can be closed.
func TestPanicWithLock(t *testing.T) {
	plantPanics(t)
	for name, tr := range transports {
		t.Run(name, func(t *testing.T) {
			a, b := openNode(t, tr.listen[:strings.Index(tr.listen, "://")+3], tr.plugin), openNode(t, tr.listen, tr.plugin)
			broken := b.ctxs[0]
			to := broken.Self()
			require.NoError(t, sendText(t, a.ctxs[0], to, 1, "first", a, b))
			require.Equal(t, "first", receiveText(t, broken, a, b))

			var ends []error
			end := func(_ *na.Op, r na.Result) { ends = append(ends, r.Err) }
			require.NoError(t, broken.RecvUnexpected(broken.NewOp(end)))
			require.NoError(t, broken.RecvExpected(broken.NewOp(end), a.ctxs[0].Self(), 7, make([]byte, 8)))
			require.NoError(t, broken.Timer(broken.NewOp(end), time.Hour))
			_ = sendText(t, a.ctxs[0], to, panicTag, "bad", a, b)
			driveUntil(t, "everything has ended", func() bool { return len(ends) == 3 }, a, b)
			require.NoError(t, broken.Timer(broken.NewOp(end), time.Hour))
			driveUntil(t, "what begins ends, too", func() bool { return len(ends) == 4 }, a, b)
			for _, err := range ends {
				require.ErrorContains(t, err, "planted, with the lock")
				require.ErrorIs(t, err, na.ErrIO)
			}
			var err error
			driveUntil(t, "Progress says so", func() bool {
				err = broken.Progress(time.Hour)
				return err != nil
			}, a)
			require.ErrorContains(t, err, "planted, with the lock")
			require.EqualValues(t, 1, broken.Stats().Panics)
			driveUntil(t, "it is logged", func() bool { return strings.Contains(b.log.String(), "failpoint_linux_test.go") }, a)

			require.NoError(t, sendText(t, a.ctxs[1], b.ctxs[1].Self(), 1, "other", a, b))
			require.Equal(t, "other", receiveText(t, b.ctxs[1], a, b))
			a.close()
			b.close()
		})
	}
}

// TestPanicWithoutLock checks that a panic while no lock is held cuts that connection only.
func TestPanicWithoutLock(t *testing.T) {
	for name, tr := range transports {
		if strings.HasPrefix(name, "sm") { // see TestPanicOfPacket: sm reads no messages without the lock
			continue
		}
		t.Run(name, func(t *testing.T) {
			disarm := plantPanics(t)
			a, b := openNode(t, tr.listen[:strings.Index(tr.listen, "://")+3], tr.plugin), openNode(t, tr.listen, tr.plugin)
			var lost []error
			b.ctxs[0].OnFault(func(_ na.Addr, err error) { lost = append(lost, err) })
			to := b.ctxs[0].Self()
			for _, from := range a.ctxs {
				require.NoError(t, sendText(t, from, to, 1, "first", a, b))
				require.Equal(t, "first", receiveText(t, b.ctxs[0], a, b))
			}
			_ = sendText(t, a.ctxs[0], to, 1, panicText, a, b)
			driveUntil(t, "it is counted", func() bool { return b.ctxs[0].Stats().Panics > 0 && (len(lost) == 1 || !tr.cuts) }, a, b)
			if tr.cuts {
				require.ErrorContains(t, lost[0], "planted, without a lock")
			}
			driveUntil(t, "it is logged", func() bool { return strings.Contains(b.log.String(), "failpoint_linux_test.go") }, a, b)
			require.NoError(t, sendText(t, a.ctxs[1], to, 1, "other", a, b))
			require.Equal(t, "other", receiveText(t, b.ctxs[0], a, b))
			if !tr.cuts {
				disarm() // the datagram is sent again and again
				require.Equal(t, panicText, receiveText(t, b.ctxs[0], a, b))
			}
			a.close()
			b.close()
		})
	}
}

// TestPanicOfPacket checks that a hello that panics cuts its peer: sm reads packets without the
// lock, and the rings with it.
func TestPanicOfPacket(t *testing.T) {
	plantPanics(t)
	tr := transports["sm"]
	a, b, c := openNode(t, "sm://"+panicText+"*", tr.plugin), openNode(t, tr.listen, tr.plugin), openNode(t, "sm://", tr.plugin)
	require.ErrorContains(t, sendText(t, a.ctxs[0], b.ctxs[0].Self(), 1, "in vain", a, b), "planted, without a lock")
	driveUntil(t, "it is counted", func() bool { return b.ctxs[0].Stats().Panics+b.ctxs[1].Stats().Panics > 0 }, a, b)
	require.NoError(t, sendText(t, c.ctxs[0], b.ctxs[0].Self(), 1, "other", c, b))
	require.Equal(t, "other", receiveText(t, b.ctxs[0], c, b))
	a.close()
	b.close()
	c.close()
}

// TestPanicBeforeHello checks that a connection that panics before its HELLO is whole is cut, and
// counted.
func TestPanicBeforeHello(t *testing.T) {
	plantPanics(t)
	for _, name := range []string{"tcp", "tcp, portable"} {
		tr := transports[name]
		b := openNode(t, tr.listen, tr.plugin)
		nc, err := net.Dial("tcp", strings.TrimPrefix(b.cls.Addr().Name(), "tcp://"))
		require.NoError(t, err)
		require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
		_, err = nc.Write([]byte(panicText))
		require.NoError(t, err)
		_, err = io.ReadAll(nc)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection continues")
		require.NoError(t, nc.Close())
		driveUntil(t, "it is counted", func() bool { return b.ctxs[0].Stats().Panics == 1 }, b)
		driveUntil(t, "it is logged", func() bool { return strings.Contains(b.log.String(), "failpoint_linux_test.go") }, b)
		b.close()
	}
}

// TestUserPanicIsPassedOn checks that a panic of a callback in Trigger is passed on to the program,
// also when it is caused by bytes of a peer.
func TestUserPanicIsPassedOn(t *testing.T) {
	b := openNode(t, "tcp://127.0.0.1:0", tcp.New(tcp.Options{}))
	mine := errors.New("mine")
	require.NoError(t, b.ctxs[0].Timer(b.ctxs[0].NewOp(func(*na.Op, na.Result) { panic(mine) }), 0))
	require.PanicsWithError(t, "mine", func() {
		driveUntil(t, "the timer ends", func() bool { return false }, b)
	})
	require.Zero(t, b.ctxs[0].Stats().Panics)
	b.close()
}

// TestServeEnds checks that Serve of a node whose context has broken returns the reason.
func TestServeEnds(t *testing.T) {
	plantPanics(t)
	cfg := qs.Config{Logger: slog.New(slog.DiscardHandler)}
	n, err := qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	served := make(chan error)
	go func() { served <- n.Serve(t.Context()) }()
	a := openNode(t, "tcp://", tcp.New(tcp.Options{}))
	_ = sendText(t, a.ctxs[0], na.MakeAddr(n.Addr().Name(), 0), panicTag, "bad", a)
	require.ErrorContains(t, <-served, "planted, with the lock")
	require.NoError(t, n.Close())
	a.close()
}
