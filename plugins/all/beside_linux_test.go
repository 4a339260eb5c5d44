package all_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

func TestMain(m *testing.M) { leak.Main(m) }

func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "sm") // short: it is part of the address of a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// besideSharedMemory is a network whose classes have shared memory beside another transport: everybody is reached by it.
func besideSharedMemory(scheme string, first na.Plugin) natest.Maker {
	return func(t testing.TB) natest.Network {
		return natest.Network{
			Listen:     func(int) string { return scheme + "://127.0.0.1:0,sm://" },
			Origin:     scheme + "://,sm://",
			Nobody:     scheme + "://127.0.0.1:1",
			Invalid:    scheme + "://127.0.0.1",
			Plugins:    []na.Plugin{first, sm.New(sm.Options{Dir: shortDir(t)})},
			Concurrent: true,
			Assisted:   true,
			Carrier:    !long.On, // tcp keeps the other rules with the same code
		}
	}
}

// TestConformance checks the rules of a plugin over two transports.
func TestConformance(t *testing.T) {
	t.Parallel()
	natest.TestVariants(t, map[string]natest.Maker{
		"tcp": besideSharedMemory("tcp", tcp.New(tcp.Options{})),
		"udp": besideSharedMemory("udp", udp.New(udp.Options{})),
	})
}
