package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestSame checks that the program prints the same over grpc-go and over Quicksilver.
func TestSame(t *testing.T) {
	var ours, theirs strings.Builder
	require.NoError(t, overQuicksilver(&ours))
	require.NoError(t, overGRPC(&theirs))
	require.Equal(t, theirs.String(), ours.String())
	require.Equal(t, 7, strings.Count(ours.String(), "\n"), ours.String())
}
