package bench

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFloorWritesAll checks that bytes that do not fit the socket wait until the other end has
// read.
func TestFloorWritesAll(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	end := func(nc net.Conn, err error) *floorEnd {
		require.NoError(t, err)
		e, err := newFloorEnd(nc.(*net.TCPConn), 0)
		require.NoError(t, err)
		t.Cleanup(e.close)
		return e
	}
	a := end(net.Dial("tcp", l.Addr().String()))
	b := end(l.Accept())
	sent := make(chan error, 1)
	go func() { sent <- a.write(Pattern(32 << 20)) }()
	in := make([]byte, 32<<20)
	require.NoError(t, b.read(in))
	require.NoError(t, <-sent)
	require.True(t, isPattern(in))
}
