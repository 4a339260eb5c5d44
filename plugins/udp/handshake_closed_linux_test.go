package udp

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestClosedSendsNothing checks that a class that is closed while a function of the tls.Config runs
// sends nothing more, especially not to the next owner of its descriptor number.
func TestClosedSendsNothing(t *testing.T) {
	c := testcert.New()
	entered, leave := make(chan struct{}), make(chan struct{})
	var theirs *domain
	cfg := &tls.Config{RootCAs: testcert.Pool(c), GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		close(entered)
		<-leave
		return &c, nil
	}}
	open := func(addr string, cfg *tls.Config, keep **domain) (*na.Class, *na.Context) {
		cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{plugin{opts: Options{TLS: cfg}, tune: func(d *domain) { *keep = d }}}})
		require.NoError(t, err)
		ctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, ctx
	}
	shut := func(cls *na.Class, ctx *na.Context) {
		ctx.Close()
		for end := time.Now().Add(20 * time.Second); !ctx.Closed(); ctx.Trigger(0) {
			require.Less(t, time.Now(), end, "a context does not close")
			_ = ctx.Progress(time.Millisecond)
		}
		require.NoError(t, cls.Close())
	}
	target, at := open("udp://127.0.0.1:0", cfg, &theirs)
	var ours *domain
	source, from := open("udp://", &tls.Config{RootCAs: testcert.Pool(c)}, &ours)
	defer shut(source, from)
	require.NoError(t, from.SendUnexpected(from.NewOp(func(*na.Op, na.Result) {}), target.Addr(), 1, []byte("x")))
	for came := false; !came; {
		_ = from.Progress(time.Millisecond)
		_ = at.Progress(time.Millisecond)
		select {
		case <-entered:
			came = true
		default:
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	near, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = near.Close() }()
	far, err := l.Accept()
	require.NoError(t, err)
	defer func() { _ = far.Close() }()
	fd := theirs.shared.sock.(*pollSocket).fd
	shut(target, at)

	// The descriptor number is used again, by a connection of TCP.
	raw, err := near.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(own uintptr) {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.ErrorIs(t, err, unix.EBADF, "the descriptor is in use")
		require.NoError(t, unix.Dup2(int(own), fd))
	}))
	defer func() { _ = unix.Close(fd) }()
	close(leave)
	require.NoError(t, far.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	b := make([]byte, 4096)
	n, err := far.Read(b)
	require.Zero(t, n, "another connection has %x", b[:min(n, 32)])
	require.True(t, errors.Is(err, os.ErrDeadlineExceeded))
}
