package yokan_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

func TestMain(m *testing.M) { leak.Main(m) }

// openNode returns a node of package mercury, which is closed when the test ends.
func openNode(t testing.TB) *mercury.Node {
	n, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// testContext bounds what a test waits for.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
