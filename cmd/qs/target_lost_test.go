//go:build unix

package main

import (
	"cmp"
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

// processorTime returns the processor time of a process, if the system reports it, in ticks of 10 ms.
func processorTime(t *testing.T, pid int) time.Duration {
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

// requireEnds requires that q, whose peer timeout is 500 ms, ends with an exit code after lose has
// removed its target, and uses a processor for less than half of the time until then.
func requireEnds(t *testing.T, q *process, code int, lose func()) {
	t.Helper()
	before := processorTime(t, q.cmd.Process.Pid)
	begun := time.Now()
	lose()
	q.wait(code)
	took := time.Since(begun)
	state := q.cmd.ProcessState
	busy := state.UserTime() + state.SystemTime() - before
	if runtime.GOOS == "linux" && took > 200*time.Millisecond {
		require.Less(t, busy, took/2)
	}
}

// waitForLoad waits until a client has a session with s and sends requests, which s processes.
func (s *server) waitForLoad() {
	s.t.Helper()
	c, err := dial(&network{timeout: patience}, s.addr)
	require.NoError(s.t, err)
	defer c.close()
	waitUntil(s.t, "requests", func() bool {
		all, err := c.gauges(s.t.Context())
		if err != nil {
			return false
		}
		numCallers := 0
		for _, p := range all[0].Peers {
			if p.HeldMax > 0 {
				numCallers++
			}
		}
		return numCallers >= 2 // we are one of them; a slow machine may have lost and found the other
	})
	before := processorTime(s.t, s.cmd.Process.Pid)
	waitUntil(s.t, "load", func() bool {
		return processorTime(s.t, s.cmd.Process.Pid) >= before+20*time.Millisecond || runtime.GOOS != "linux"
	})
}

// TestTargetLost checks a target that is killed or stopped under load.
func TestTargetLost(t *testing.T) {
	t.Parallel()
	listen := map[string]string{"perf sm": "sm://*"}
	cases := map[string][]string{
		"ping":      {"ping", "-count", "1000000000", "-interval", "0", "-json"},
		"slow ping": {"ping", "-count", "1000000000", "-interval", "2ms", "-timeout", "100ms", "-json"},
		"perf":      {"perf", "-time", "1h", "-inflight", "1", "-target"},
		"perf sync": {"perf", "-time", "1h", "-inflight", "1", "-api", "sync", "-target"},
		"perf bulk": {"perf", "-time", "1h", "-op", "write", "-target"},
	}
	if runtime.GOOS == "linux" {
		cases["perf sm"] = []string{"perf", "-time", "1h", "-inflight", "1", "-target"}
	}
	for name, args := range cases {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				s := serve(t, "", cmp.Or(listen[name], "tcp://127.0.0.1:0"))
				args := append([]string{args[0], "-peer-timeout", "500ms"}, args[1:]...)
				q := newQS(t, append(args, s.addr)...).start()
				s.waitForLoad()
				requireEnds(t, q, 1, func() { require.NoError(t, s.cmd.Process.Signal(sig)) })
				require.Regexp(t, `(?m)^qs \w+: |^\{"error":\{`, q.errors.String())
				require.Contains(t, q.errors.String(), s.addr)
				require.Regexp(t, `lost|silent|connection (closed|reset)|cannot be reached|no process listens|connection refused`, q.errors.String())
			})
		}
	}
}
