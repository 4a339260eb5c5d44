//go:build linux

package tcp_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// requireIdle drives one context for d, in which the process must use less than a third of a processor. It looks three times: the
// collector may have work that others have left.
func requireIdle(t testing.TB, n *node, d time.Duration, what string) {
	t.Helper()
	var all []time.Duration
	for range 3 {
		used := processorTime(n, d)
		if used < d/3 {
			return
		}
		all = append(all, used)
	}
	require.Fail(t, "it spins", "%s: in %v processor time of %v", what, d, all)
}

// processorTime returns the processor time that the process uses in d, while one context is driven.
func processorTime(n *node, d time.Duration) time.Duration {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for end := time.Now().Add(d); time.Now().Before(end); {
		_ = n.ctx().Progress(time.Until(end))
		n.ctx().Trigger(0)
	}
	return used() - before
}

// TestIdle checks that nothing spins when there is no work, whatever happened before.
func TestIdle(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		opts.MaxHalfOpen = 1
		const size, window = 24 << 20, 150 * time.Millisecond
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{PeerTimeout: time.Hour}, 1)
		requireIdle(t, n, window, "listening")
		rawDial(t, n)
		rawDial(t, n) // one too many
		requireIdle(t, n, window, "half open")

		l := rawListen(t)
		r := join(t, n, l)
		requireIdle(t, n, window, "a session")
		mem, err := n.cls.NewMem(make([]byte, size))
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Put(o, mem, 0, l.addr(), someKey(size), 0, size))
		driveUntilStalled(n)
		requireIdle(t, n, window, "a full socket")
		o.Cancel()
		n.ctx().Trigger(0)
		require.True(t, end.done())
		go func() {
			b := make([]byte, 1<<20)
			for _, err := r.nc.Read(b); err == nil; _, err = r.nc.Read(b) {
			}
		}()
		driveUntilStalled(n)
		requireIdle(t, n, window, "a socket that was full")
		require.NoError(t, r.nc.Close())
		driveUntilStalled(n)
		requireIdle(t, n, window, "a closed connection")
	})
}

// TestOutOfDescriptors checks that when the process has no descriptor left, accepting pauses and
// does not spin, dialing fails with the reason, sessions continue, and all recovers. It runs in a
// process of its own.
func TestOutOfDescriptors(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		r := rawJoin(t, n, greeting())
		l := rawListen(t)
		late := rawDial(t, n) // its socket is ours; the accepted one will not be had
		_ = late.nc.Close()
		driveUntilStalled(n)

		// Our ends of connections need descriptors too: make them before the limit is set.
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer func() { _ = unix.Close(fd) }()
		var old unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
		restore := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }
		defer restore()

		at, err := net.ResolveTCPAddr("tcp", hostPort(n))
		require.NoError(t, err)
		require.NoError(t, unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte{127, 0, 0, 1}}))
		hello := helloFrame(func(*frame.Greeting) {})
		_, err = unix.Write(fd, hello)
		require.NoError(t, err)
		const window = 500 * time.Millisecond
		requireIdle(t, n, window, "accepting spins")
		require.Equal(t, 1, n.ctx().Stats().Peers)

		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, l.addr(), 1, nil))
		driveUntil(t, "failure", end.done, n)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "too many open files")
		r.send(frame.Header{Kind: frame.Ping}, nil)
		r.readKind(frame.Pong)

		restore()
		driveUntil(t, "the connection that waited", func() bool { return n.ctx().Stats().Peers == 2 }, n)
	})
}

// TestContextWithoutDescriptors checks that an Open of a context that fails for want of descriptors
// affects nothing else: the next one serves. It runs in a process of its own.
func TestContextWithoutDescriptors(t *testing.T) {
	if !leak.Alone(t) {
		return
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 0)
		var old unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
		first, err := unix.Dup(0) // the first that is free
		require.NoError(t, err)
		require.NoError(t, unix.Close(first))
		defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
		failed := 0
		for more := 0; len(n.ctxs) == 0; more++ {
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first + more), Max: old.Max}))
			c, err := n.cls.NewContext()
			if err == nil {
				n.ctxs = append(n.ctxs, c)
				break
			}
			require.ErrorContains(t, err, "too many open files")
			failed++
		}
		require.Positive(t, failed)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		r := rawJoin(t, n, greeting())
		r.send(frame.Header{Kind: frame.Ping}, nil)
		r.readKind(frame.Pong)
	})
}
