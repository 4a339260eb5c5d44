package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestCancel(t *testing.T) {
	var out strings.Builder
	run(&out)
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 5, out.String())
	require.Equal(t, "answered in 200ms: false", lines[0])
	require.Equal(t, "callback has run: true - canceled: true", lines[1])
	require.Regexp(t, `^the error: hg: forward ask to tcp://127\.0\.0\.1:\d+: operation canceled \(may have run, after .*s\)$`, lines[2])
	require.Equal(t, "forwarded again: here you are - late answers dropped: 1, connections lost: 0", lines[3])
}

func TestMain(m *testing.M) { leak.Main(m) }
