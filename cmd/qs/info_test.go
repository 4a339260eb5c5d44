package main

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInfo(t *testing.T) {
	out := run(t, 0, "info").out.String()
	require.Regexp(t, `(?m)^plugins linked in +.*\btcp\b`, out)
	require.Regexp(t, `(?m)^tcp: unexpected message, at most +4096 bytes$`, out)
	require.Regexp(t, `(?m)^tcp: default of PeerTimeout +5s$`, out)
	require.Regexp(t, `(?m)^addresses to listen on .*tcp://127\.0\.0\.1:PORT`, out)
	if runtime.GOOS == "linux" {
		require.Regexp(t, `(?m)^kernel +Linux \d+\.`, out)
		require.Regexp(t, `(?m)^descriptors of a process \(NOFILE\) +(\d+|unlimited)$`, out)
	}
}

func TestInfoJSON(t *testing.T) {
	var object map[string]any
	require.NoError(t, json.Unmarshal(run(t, 0, "info", "-json").out.Bytes(), &object))
	require.EqualValues(t, runtime.NumCPU(), object["cores"])
	require.Contains(t, object["plugins"], "tcp")
	require.EqualValues(t, 4096, object["tcp_max_unexpected_bytes"])
	lines := strings.Split(strings.TrimSpace(run(t, 0, "info").out.String()), "\n")
	require.Len(t, object, len(lines), "both forms have the same facts")
	if runtime.GOOS == "linux" {
		require.Contains(t, object, "epoll_pwait2")
		require.IsType(t, 0.0, object["rmem_max"])
	}
}

func TestFact(t *testing.T) {
	require.Equal(t, "unknown: no", infoFact{value: 1, err: errors.New("no")}.String())
	require.Equal(t, "a  b", infoFact{value: []string{"a", "b"}}.String())
	require.Equal(t, "none", infoFact{value: []string{}}.String())
	require.Equal(t, "7 bytes", infoFact{value: 7, unit: "bytes"}.String())
}
