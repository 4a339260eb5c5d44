package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestNested(t *testing.T) {
	var out strings.Builder
	run(&out)
	require.Equal(t, "relay/callback: twice 21 is 42\nrelay/wait: twice 22 is 44\n", out.String())
}

func TestMain(m *testing.M) { leak.Main(m) }
