package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
)

// TestSharedMemory: the commands, with targets that are reached through shared memory.
func TestSharedMemory(t *testing.T) {
	s := serveFiles(t, "", "sm://*")
	require.Regexp(t, `^sm://`, s.addr)
	require.Contains(t, run(t, 0, "ping", "-interval", "0", "-count", "3", s.addr).out.String(), "\n3 sent, 3 answered, 0 lost; ")
	require.Contains(t, run(t, 0, "rpcs", s.addr).out.String(), "qs/echo")

	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(3*testPiece+13))
	run(t, 0, cp(src, s.addr+"/f")...)
	requireFile(t, src, filepath.Join(s.root, "f"))
	run(t, 0, cp("-sha256", s.addr+"/f", src+".back")...)
	requireFile(t, src, src+".back")

	var rs []bench.Result
	q := run(t, 0, "perf", "-transport", "sm", "-json", "-time", short, "-inflight", "1,64", "-bulk", "300000")
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs), "%s", &q.out)
	require.Equal(t, "quicksilver-sm-callback", rs[0].Peer)
	require.Positive(t, rs[0].P50)
	require.Positive(t, rs[0].Rate["64"])
	require.Positive(t, rs[0].Bulk)

	require.Regexp(t, `(?m)^plugins linked in +.*\bsm\b`, run(t, 0, "info").out.String())
	require.Regexp(t, `(?m)^addresses to listen on .*sm://NAME`, run(t, 0, "info").out.String())
}

// TestSoakSharedMemory is TestSoak with the faults that processes have.
func TestSoakSharedMemory(t *testing.T) {
	t.Parallel()
	runSoakOver(t, "sm", "kill", "stop")
}
