package freeport

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestAddr checks that the address can be listened on, and is not one that the system would give to
// another process.
func TestAddr(t *testing.T) {
	addr := Addr(t)
	host, text, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", host)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.Less(t, port, 32768)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
