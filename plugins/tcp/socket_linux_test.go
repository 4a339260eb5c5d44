package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// pair is two ends of a stream that do not wait.
func pair(t *testing.T) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	})
	return fds[0], fds[1]
}

// TestSocketQueuesRest checks that bytes that the socket does not take wait, in their order,
// up to a limit that ends the connection.
func TestSocketQueuesRest(t *testing.T) {
	a, b := pair(t)
	s := &fdSocket{fd: a}
	var sent, got []byte
	chunk := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 10_000) }
	for i := 0; !s.hasPending(); i++ {
		n, err := s.Write(chunk(i))
		require.NoError(t, err)
		require.Equal(t, 10_000, n)
		sent = append(sent, chunk(i)...)
	}
	for range 3 {
		n, err := s.Write(chunk(99))
		require.NoError(t, err)
		require.Equal(t, 10_000, n)
		sent = append(sent, chunk(99)...)
	}
	buf := make([]byte, 30_000)
	for done := false; len(got) < len(sent); {
		n, err := unix.Read(b, buf)
		if err == nil {
			got = append(got, buf[:n]...)
		}
		if !done {
			done, err = s.drain()
			require.NoError(t, err)
			require.LessOrEqual(t, len(s.unsent), maxEncrypted)
		}
	}
	require.True(t, bytes.Equal(sent, got))
	require.False(t, s.hasPending())
	require.Nil(t, s.unsent)

	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 1000)
		_, err = s.Write(chunk(i))
		require.LessOrEqual(t, len(s.unsent), maxEncrypted)
	}
	require.True(t, errors.Is(err, na.ErrProtocol))
	require.Equal(t, err, s.replyErr())
	require.False(t, s.hasPending(), "nothing is waited for any more")
}

// TestSocketReads checks that an end is distinguished from no data, and no data is an error that
// package tls takes for a pause. A short read is not followed by another.
func TestSocketReads(t *testing.T) {
	a, b := pair(t)
	s := &fdSocket{fd: a}
	buf := make([]byte, 8)
	_, err := s.Read(buf)
	require.Equal(t, errWouldBlock, err)
	var pause net.Error
	require.ErrorAs(t, err, &pause)
	require.True(t, pause.Timeout())
	require.True(t, err.(interface{ Temporary() bool }).Temporary())

	_, err = unix.Write(b, []byte("hello"))
	require.NoError(t, err)
	n, err := s.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf[:n]))
	require.True(t, s.drained)
	_, err = s.Read(buf)
	require.Equal(t, errWouldBlock, err)

	require.NoError(t, unix.Shutdown(b, unix.SHUT_WR))
	s.drained = false
	_, err = s.Read(buf)
	require.Equal(t, io.EOF, err)
}
