package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestGer checks that the command prints the numbers of the GER paper's example, as na.TestGERTable
// has them, as text and as JSON, parses the kinds of pairs in -contexts, and rejects invalid
// numbers of envelopes.
func TestGer(t *testing.T) {
	args := []string{"ger", "-groups", "4", "-tags", "8", "-peers", "128", "-eager", "1024", "-processes", "4"}
	out := run(t, 0, args...).out.String()
	require.Regexp(t, `(?m)^envelopes guaranteed to each peer +32$`, out)
	require.Regexp(t, `(?m)^envelopes of a process +4096$`, out)
	require.Regexp(t, `(?m)^their messages +4.00 MiB$`, out)
	require.Regexp(t, `(?m)^and for expedited messages, envelopes +128$`, out)
	require.Regexp(t, `(?m)^messages of 4 processes on a node +16.0 MiB$`, out)
	require.Regexp(t, `(?m)^na.Config +\{Peers: 128, Envelopes: 32, Eager: 1024, Budget: 4595712\}$`, out)
	var g guaranteeReport
	require.NoError(t, json.Unmarshal(run(t, 0, append(args, "-json")...).out.Bytes(), &g))
	require.Equal(t, guaranteeReport{
		Peers: 128, Envelopes: 32, Eager: 1024, Processes: 4, All: 4096, Messages: 4 << 20, NodeMsgs: 16 << 20,
		Bytes: na.GuaranteedBytes(128, 32, 1024), NodeBytes: 4 * na.GuaranteedBytes(128, 32, 1024),
	}, g)
	require.NoError(t, json.Unmarshal(run(t, 0, append(args, "-in-order", "-json")...).out.Bytes(), &g))
	require.Equal(t, 1, g.Envelopes)

	for contexts, want := range map[string]int{"8x4,16x2": 32, "8x4": 32, "8x4+2,16x2": 34, "1,2,3": 3, "1+2+3,5": 6} {
		require.NoError(t, json.Unmarshal(run(t, 0, "ger", "-contexts", contexts, "-json").out.Bytes(), &g))
		require.Equal(t, want, g.Envelopes, contexts)
	}
	for _, bad := range []string{"x", "8x", "8x0", "0", "-1", "8,,4", "8x4x2", "99999999x99999999", "9999999999999999999999"} {
		require.Contains(t, run(t, 2, "ger", "-contexts", bad).errors.String(), "-contexts")
	}
	require.Contains(t, run(t, 0, "ger", "-ger", "5000").out.String(), "Envelopes may be 4096 at most")
	require.Contains(t, run(t, 0, "ger", "-eager", "100").out.String(), "Eager may be 256 to 49152")
	require.Contains(t, run(t, 2, "ger", "-peers", "0").errors.String(), "-peers 0")
	require.Contains(t, run(t, 2, "ger", "-ger", "-3").errors.String(), "-ger -3")
	require.Contains(t, run(t, 2, "ger", "-groups", "-3").errors.String(), "-groups -3")
	require.Contains(t, run(t, 2, "ger", "-groups", "-1", "-tags", "-1").errors.String(), "-groups -1 and --tags -1")
	require.Contains(t, run(t, 2, "ger", "-groups", "100000000", "-tags", "100000000").errors.String(), "want at most 16777216")
	require.Contains(t, run(t, 2, "ger", "-peers", "16777216", "-ger", "16777216", "-eager", "65536").errors.String(), "1.8e+19 bytes")
}

// TestGEROfRunningProgram checks that a running program reports the envelopes that it uses and needs.
func TestGEROfRunningProgram(t *testing.T) {
	s := serveFiles(t, "")
	out := run(t, 0, "ger", s.addr).out.String()
	require.Regexp(t, `(?m)^offered to each +256 envelopes of 4096 bytes$`, out)
	require.Regexp(t, `(?m)^guaranteed now +1.02 MiB of 256 MiB$`, out)
	require.Regexp(t, `(?m)^most that a peer has used here +1$`, out)
	require.Regexp(t, `(?m)^ +Envelopes: 1 would have done here$`, out)
	var all []contextReport
	require.NoError(t, json.Unmarshal(run(t, 0, "ger", "-json", s.addr).out.Bytes(), &all))
	require.Len(t, all, 1)
	require.Equal(t, s.addr, all[0].Address)
	require.EqualValues(t, 257*(4096+64), all[0].Reserved)
	require.Len(t, all[0].Peers, 1)

	run(t, 0, "perf", "-target", s.addr, "-time", "5ms", "-inflight", "4", "-bulk", "0", "-size", "10000")
	out = run(t, 0, "ger", s.addr).out.String()
	require.Regexp(t, `(?m)^longer bodies: inline, lent, no room +[1-9]\d*, \d+, \d+$`, out)
	require.Regexp(t, `(?m)^peer .* room +taken +room there$`, out)
	require.Contains(t, run(t, exitNotRun, "ger", "tcp://127.0.0.1:1").errors.String(), "cannot be reached")
}
