package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
)

// interruptAt runs a command on a terminal, but for its output, and types Ctrl-C when the terminal
// has shown something.
func interruptAt(t *testing.T, shown string, args ...string) *process {
	t.Helper()
	screen, terminal := openTerminal(t)
	q := newQS(t, args...)
	q.cmd.Env = append(q.cmd.Env, "TERM=xterm")
	q.cmd.Stdin, q.cmd.Stderr = terminal, terminal
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	q.start()
	require.NoError(t, terminal.Close())
	at, all := regexp.MustCompile(shown), []byte{}
	for b := make([]byte, 4096); ; {
		n, err := screen.Read(b) // an error once the terminal is closed in all processes
		before := at.Match(all)
		all = append(all, b[:n]...)
		if !before && at.Match(all) {
			_, err := screen.Write([]byte{3})
			require.NoError(t, err)
		}
		if err != nil {
			break
		}
	}
	require.Regexp(t, shown, string(all))
	q.wait(exitInterrupted)
	_, _ = q.errors.Write(all)
	return q
}

// TestPerfInterrupt checks that perf shows its progress, and after Ctrl-C the results so far.
func TestPerfInterrupt(t *testing.T) {
	t.Parallel()
	// long enough for the interrupt to precede the last
	many := strings.TrimSuffix(strings.Repeat("1,2,", 50), ",")
	q := interruptAt(t, `3 of 102: rate of calls, 2 in flight, 100ms each`, "perf", "-json", "-time", "100ms", "-inflight", many, "-bulk", "1000")
	requireSchema(t, "perf", q.out.Bytes())
	var rs []bench.Result
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs))
	require.Positive(t, rs[0].P50)
	require.Positive(t, rs[0].Rate["1"])
	require.Zero(t, rs[0].Bulk)
	require.Contains(t, q.errors.String(), `"kind":"interrupted"`)

	q = interruptAt(t, `3 of 31: latency of calls of 4 bytes`, "perf", "-op", "lat", "-time", "100ms", "-size", "1", "-bulk", "1073741824")
	require.Regexp(t, `(?s)^# quicksilver tcp: latency of calls, 1 in flight\n# Size .*\n1 .*\n2 `, q.out.String())
	require.NotContains(t, q.out.String(), "\n1073741824 ")
	require.Contains(t, q.errors.String(), "qs perf: interrupted")
}

// TestSoakInterrupt checks that soak shows its progress, and Ctrl-C ends the load early: the audit
// is still made.
func TestSoakInterrupt(t *testing.T) {
	t.Parallel()
	q := interruptAt(t, `[1-9]s of 1h0m0s: [0-9,]+ calls from this process; faults: `, "soak", "-json", "-time", "1h", "-every", "100ms",
		"-peer-timeout", "2s", "-targets", "2", "-origins", "1", "-inflight", "4", "-streams", "1", "-faults", "kill")
	requireSchema(t, "soak", q.out.Bytes())
	var r soak.Report
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r))
	require.True(t, r.Interrupted)
	require.Positive(t, r.Calls)
}
