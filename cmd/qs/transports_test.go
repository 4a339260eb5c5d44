package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
)

// TestDatagrams checks the commands with targets that are reached over udp.
func TestDatagrams(t *testing.T) {
	testCommands(t, "udp", "udp://127.0.0.1:0", `udp://127\.0\.0\.1:PORT`)
}

// testCommands runs the commands over a transport; form is how qs info describes its addresses.
func testCommands(t *testing.T, scheme, listen, form string) {
	s := serveFiles(t, "", listen)
	require.Regexp(t, "^"+scheme+"://", s.addr)
	require.Contains(t, run(t, 0, "ping", "-interval", "0", "-count", "3", s.addr).out.String(), "\n3 sent, 3 answered, 0 lost; ")
	require.Contains(t, run(t, 0, "rpcs", "-all", s.addr).out.String(), "qs/echo")
	run(t, 0, "bench", "-n", "100", "-connections", "2", "-raw", s.addr, "qs/echo", "x")

	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(3*testPiece+13))
	run(t, 0, cpArgs(src, s.addr+"/f")...)
	requireFile(t, src, filepath.Join(s.root, "f"))
	run(t, 0, cpArgs("-sha256", s.addr+"/f", src+".back")...)
	requireFile(t, src, src+".back")

	var rs []bench.Result
	q := run(t, 0, "perf", "-transport", scheme, "-json", "-time", short, "-inflight", "1,64", "-bulk", "300000")
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs), "%s", &q.out)
	require.Equal(t, "quicksilver-"+scheme+"-callback", rs[0].Peer)
	require.Positive(t, rs[0].P50)
	require.Positive(t, rs[0].Rate["64"])
	require.Positive(t, rs[0].Bulk)

	require.Regexp(t, `(?m)^plugins linked in +.*\b`+scheme+`\b`, run(t, 0, "info").out.String())
	require.Regexp(t, `(?m)^addresses to listen on .*`+form, run(t, 0, "info").out.String())
}
