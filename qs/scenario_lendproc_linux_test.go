package qs_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestLendProc checks that a file that holds bytes although its size is 0 is lent to its end.
func TestLendProc(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	const name = "/proc/self/cmdline"
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NotEmpty(t, want)
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	src := qs.File(f)
	require.EqualValues(t, -1, src.Len())
	got, err := put.Call(testContext(t), to, putIn{"copy", src})
	require.NoError(t, err)
	require.Equal(t, hashOf(want), got)
}
