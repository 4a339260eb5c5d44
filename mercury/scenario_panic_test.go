package mercury_test

import (
	"bytes"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// TestPanic checks that a panic over a peer's bytes costs that peer its connection. The node
// survives, counts it, and serves others.
func TestPanic(t *testing.T) {
	n := open(t, mercury.Config{Logger: slog.New(slog.DiscardHandler)})
	serveEcho(n)
	good := dialDouble(t, n, 70)
	bad := xnet.Setup{Kind: xnet.Request, Version: 1, Port: 4711, PID: 9}
	t.Cleanup(mercury.Plant(func(b []byte) {
		if bytes.Contains(b, []byte("plant-me")) || bytes.Equal(b, bad.Append(nil)) {
			panic("planted")
		}
	}))
	d := dialDouble(t, n, 71)
	d.sendRequest(1, echoID, 0, []byte("plant-me"))
	d.requireEnded()
	require.EqualValues(t, 1, n.Panics())

	nc, err := net.Dial("tcp", hostPort(n))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = nc.Write(bad.Append(nil))
	require.NoError(t, err)
	_, err = nc.Read(make([]byte, 1))
	require.Error(t, err)
	require.EqualValues(t, 2, n.Panics())

	good.sendRequest(1, echoID, 0, []byte("in"))
	_, out := good.recvResponse(1)
	require.Equal(t, "in", string(out))
}
