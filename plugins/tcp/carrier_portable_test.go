package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// TestGoawayOfALateWriter: on a busy machine a writer may not run before the deadline that Cut has set. It sends the last frame all
// the same.
func TestGoawayOfALateWriter(t *testing.T) {
	in, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer in.Close()
	peer, err := net.Dial("tcp", in.Addr().String())
	require.NoError(t, err)
	defer peer.Close()
	nc, err := in.Accept()
	require.NoError(t, err)

	require.NoError(t, nc.SetWriteDeadline(time.Unix(1, 0)))
	c := (&portable{}).newConn(nil)
	s := &socket{ReadWriter: nc, tcp: nc.(*net.TCPConn)}
	c.sendLast(s, c.writer(s), frame.Bye{Code: na.ErrClosed, Text: "closed"}.Frame())
	s.Close()

	require.NoError(t, peer.SetReadDeadline(time.Now().Add(20*time.Second)))
	got, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.Equal(t, frame.Bye{Code: na.ErrClosed, Text: "closed"}.Frame(), got)
}
