package netconn

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestGoawayOfALateWriter checks that a writer that does not run before the deadline that Cut has
// set, as on a busy machine, still sends the last frame.
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
	c := (&Carrier{}).newConn(&framing.In{}, nil)
	c.writeLast(nc, frame.Bye{Code: codes.ErrClosed, Text: "closed"}.Frame())
	require.NoError(t, nc.Close())

	require.NoError(t, peer.SetReadDeadline(time.Now().Add(20*time.Second)))
	got, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.Equal(t, frame.Bye{Code: codes.ErrClosed, Text: "closed"}.Frame(), got)
}
