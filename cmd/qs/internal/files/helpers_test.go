package files

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/filetest"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	testPiece = 64 << 10
	// patience bounds what has to happen at some time.
	patience = 30 * time.Second
)

var noise, writeFile, requireNames = filetest.Noise, filetest.Write, filetest.RequireNames

// serveNode opens a node that serves what register registers until the test ends, and returns its address.
func serveNode(t *testing.T, register func(n *qs.Node)) string {
	t.Helper()
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	register(n)
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, n.Close())
		require.NoError(t, <-ended)
	})
	return n.Addr().String()
}

// serveFiles serves an empty folder that may be written to.
func serveFiles(t *testing.T) (addr, root string) {
	t.Helper()
	_, addr, root = newServer(t)
	return addr, root
}

// newServer is serveFiles, with the server.
func newServer(t *testing.T) (s *Server, addr, root string) {
	t.Helper()
	root = t.TempDir()
	addr = serveNode(t, func(n *qs.Node) {
		var err error
		s, err = Serve(n, root, true)
		require.NoError(t, err)
	})
	t.Cleanup(s.Close)
	return s, addr, root
}

// openOrigin opens a node that calls, and returns the arguments of NewCopier and newClient.
func openOrigin(t *testing.T, target string) (*qs.Node, na.Addr) {
	t.Helper()
	addr, err := na.ParseAddr(target)
	require.NoError(t, err)
	n, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	return n, addr
}

func openClient(t *testing.T, target string) *client {
	t.Helper()
	n, addr := openOrigin(t, target)
	c, err := newClient(n, addr, patience)
	require.NoError(t, err)
	t.Cleanup(c.close)
	return c
}
