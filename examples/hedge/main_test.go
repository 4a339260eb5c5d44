package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

// TestHedge checks that every handler that was not spared has run, and no other.
func TestHedge(t *testing.T) {
	var out strings.Builder
	spared, ran := run(&out)
	require.Positive(t, spared, "%s", &out)
	require.Equal(t, 2*calls-spared, ran, "%s", &out)
	require.Contains(t, out.String(), "25 calls to two targets each")
}

func TestMain(m *testing.M) { leak.Main(m) }
