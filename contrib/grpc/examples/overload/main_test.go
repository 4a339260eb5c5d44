package main

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *serving != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestMeasure(t *testing.T) {
	*second, *rounds, *cancels, *work = 30*time.Millisecond, 1, 3, 10*time.Microsecond
	var out strings.Builder
	require.NoError(t, measure(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 5, "%s", &out)
	for i, name := range []string{"grpc", "grpc-limited", "qs", "qs-limited"} {
		fields := strings.Fields(lines[1+i])
		require.Len(t, fields, 12, lines[1+i])
		require.Equal(t, name, fields[0])
		require.NotEqual(t, "0", fields[1], "answers a second of 4 callers")
	}
}
