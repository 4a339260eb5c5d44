package tcp_test

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestListenerAndControl checks that a class listens on a socket that was passed to it, and is
// reached there; Control gets sockets that the class makes itself.
func TestListenerAndControl(t *testing.T) {
	t.Parallel()
	for _, portable := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		at := "tcp://" + l.Addr().String()
		with := func(o tcp.Options) na.Config {
			o.Portable = portable
			return na.Config{Plugins: []na.Plugin{tcp.New(o)}}
		}
		_, err = na.Open("tcp://127.0.0.1:1", with(tcp.Options{Listener: l.(*net.TCPListener)}))
		require.ErrorIs(t, err, na.ErrInvalid)
		require.ErrorContains(t, err, "Listener is at")
		_, err = na.Open(at, with(tcp.Options{Listener: l.(*net.TCPListener), ReusePort: true}))
		require.ErrorIs(t, err, na.ErrInvalid)
		server, err := na.Open(at, with(tcp.Options{Listener: l.(*net.TCPListener)}))
		require.NoError(t, err)
		sctx, err := server.NewContext()
		require.NoError(t, err)
		require.Equal(t, at, server.Addr().String())

		var sockets atomic.Int32
		control := func(network, address string, c syscall.RawConn) error {
			sockets.Add(1)
			return nil
		}
		client, err := na.Open("tcp://127.0.0.1:0", with(tcp.Options{Control: control}))
		require.NoError(t, err)
		cctx, err := client.NewContext()
		require.NoError(t, err)
		require.EqualValues(t, 1, sockets.Load())

		got := false
		recv := sctx.NewOp(func(_ *na.Op, r na.Result) { got = r.Err == nil })
		require.NoError(t, sctx.RecvUnexpected(recv))
		sent := false
		to, err := na.ParseAddr(at)
		require.NoError(t, err)
		send := cctx.NewOp(func(_ *na.Op, r na.Result) { sent = r.Err == nil })
		require.NoError(t, cctx.SendUnexpected(send, to, 1, []byte("hello")))
		for !got || !sent {
			for _, c := range []*na.Context{sctx, cctx} {
				_ = c.Progress(0)
				c.Trigger(0)
			}
		}
		require.EqualValues(t, 2, sockets.Load())
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
		for _, c := range []*na.Context{sctx, cctx} {
			for c.Progress(0) == nil || c.Trigger(0) > 0 {
			}
		}
	}
}
