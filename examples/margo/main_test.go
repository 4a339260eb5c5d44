package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

func TestMain(m *testing.M) { leak.Main(m) }

func Example() {
	os.Args = os.Args[:1]
	main()
	// Output: 42 <nil>
}

// TestCall checks that the client calls another process's provider, and reports an error if there
// is none.
func TestCall(t *testing.T) {
	node, err := serve()
	require.NoError(t, err)
	defer node.Close()
	out, err := call(t.Context(), node.Addr())
	require.NoError(t, err)
	require.EqualValues(t, 42, out)
	other, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer other.Close()
	_, err = call(t.Context(), other.Addr())
	require.ErrorIs(t, err, mercury.ErrNoMethod)
}
