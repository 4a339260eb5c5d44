package main

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func Example() {
	main()
	// Output: 42 <nil>
}

// TestSilentTarget checks that a target that accepts connections and sends nothing is given up by
// the loop that the page shows.
func TestSilentTarget(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	var b strings.Builder
	require.NoError(t, run(&b, "tcp://"+silent.Addr().String()))
	require.Contains(t, b.String(), "canceled")
}

// TestShown checks that docs/MERCURY.md shows the handler and the origin as they are here.
func TestShown(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(program), "\ntype sum")
	require.True(t, ok)
	block, _, ok := strings.Cut("type sum"+rest, "\nfunc run")
	require.True(t, ok)
	page, err := os.ReadFile("../../docs/MERCURY.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```go\n"+block+"```\n")
}
