package mercury_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// TestTruncatedMessages checks that no truncated message ends a node; others are served afterwards.
func TestTruncatedMessages(t *testing.T) {
	n, client := open(t, mercury.Config{}), open(t, mercury.Config{})
	serveEcho(n)
	via, session := beginnings.Record(t, "tcp", hostPort(n))
	_, err := client.Call(testContext(t), "ofi+tcp://"+via, echoID, []byte("in"))
	require.NoError(t, err)
	_, err = client.Call(testContext(t), "ofi+tcp://"+via, echoID, bytes.Repeat([]byte("long"), 8<<10)) // with lent input
	require.NoError(t, err)
	recorded := session()
	require.NotEmpty(t, recorded)
	beginnings.Send(t, func() (net.Conn, error) { return net.Dial("tcp", hostPort(n)) }, recorded)
	out, err := open(t, mercury.Config{}).Call(testContext(t), n.Addr(), echoID, []byte("in"))
	require.NoError(t, err)
	require.Equal(t, "in", string(out))
}
