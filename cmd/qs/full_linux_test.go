package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFullOutput checks that a failed write of the output is an error, which for a call states that
// the method ran.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	addr := serve(t, "").addr
	full := func(args ...string) *process {
		out, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		defer out.Close()
		q := newQS(t, args...)
		q.cmd.Stdout = out
		return q.start().wait(exitFailed)
	}
	for _, line := range []string{"help", "rpcs %", "health %", "version", "info", "ping -count 1 %", "call -h"} {
		q := full(strings.Fields(strings.ReplaceAll(line, "%", addr))...)
		require.Contains(t, q.errors.String(), "no space left on device", line)
	}
	require.Regexp(t, `^qs call: cannot write the output of greet: .*no space left on device; the method ran\n$`, full("call", addr, "greet", `"x"`).errors.String())
	for _, args := range [][]string{{"call", "-json", addr, "greet", `"x"`}, {"call", "-json", "-raw", addr, "qs/echo", "x"}} {
		var e struct{ Error errorReport }
		require.NoError(t, json.Unmarshal(full(args...).errors.Bytes(), &e))
		require.Equal(t, "ran", e.Error.Fate)
		require.Equal(t, "failed", e.Error.Kind)
	}
}
