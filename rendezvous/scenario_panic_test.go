package rendezvous_test

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// TestPanic checks that a panic caused by the bytes of a member ends the server with an error that
// states it, and not the process. The state of the machine may be half changed then.
func TestPanic(t *testing.T) {
	t.Cleanup(rendezvous.Plant(func(b []byte) {
		if bytes.Contains(b, []byte("plant-me")) {
			panic("planted")
		}
	}))
	h := startServer(t, rendezvous.ServerConfig{Size: 2, Auth: secret})
	other, err := net.Dial("tcp", h.addr)
	require.NoError(t, err)
	defer other.Close()
	nc, err := net.Dial("tcp", h.addr)
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.Write([]byte("plant-me"))
	require.NoError(t, err)
	require.ErrorContains(t, h.end(t), "planted")
}
