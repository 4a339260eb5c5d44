//go:build unix

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// busyTime returns the time that a process has computed, where the system tells; ticks are 10 ms.
func busyTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(after)
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// requireEnds wants q, whose peer timeout is 500 ms, to end with an error within a second more once lose has taken its
// target away, and to compute less than half of that time. There is some allowance for a machine that is busy.
func requireEnds(t *testing.T, q *qs, lose func()) {
	t.Helper()
	before := busyTime(t, q.cmd.Process.Pid)
	begun := time.Now()
	lose()
	q.wait(1)
	took := time.Since(begun)
	state := q.cmd.ProcessState
	busy := state.UserTime() + state.SystemTime() - before
	require.Less(t, took, 1500*time.Millisecond+allowance, "%s", &q.errors)
	if runtime.GOOS == "linux" && took > 200*time.Millisecond {
		require.Less(t, busy, took/2)
	}
}

const allowance = 2 * time.Second

// TestTargetIsLost: a target that is killed or stopped under load.
func TestTargetIsLost(t *testing.T) {
	for name, args := range map[string][]string{
		"ping":      {"ping", "-interval", "0", "-json"},
		"slow ping": {"ping", "-interval", "2ms", "-timeout", "100ms", "-json"},
		"perf":      {"perf", "-time", "1h", "-inflight", "1", "-target"},
		"perf sync": {"perf", "-time", "1h", "-inflight", "1", "-api", "sync", "-target"},
		"perf bulk": {"perf", "-time", "1h", "-op", "write", "-target"},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				s := serve(t, "")
				args := append([]string{args[0], "-peer-timeout", "500ms"}, args[1:]...)
				rest := busyTime(t, s.cmd.Process.Pid) // starting may take long, too
				q := newQS(t, append(args, s.addr)...).start()
				soon(t, "load", func() bool {
					return busyTime(t, s.cmd.Process.Pid) >= rest+20*time.Millisecond || runtime.GOOS != "linux"
				})
				requireEnds(t, q, func() { require.NoError(t, s.cmd.Process.Signal(sig)) })
				require.Regexp(t, `^qs \w+: `, q.errors.String())
				require.Contains(t, q.errors.String(), s.addr)
				require.Regexp(t, `lost|silent|connection (closed|reset)|cannot be reached`, q.errors.String())
			})
		}
	}
}
