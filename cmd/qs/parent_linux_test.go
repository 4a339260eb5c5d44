package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRunKilled checks that the processes that qs run has started end with it, also when it is
// killed.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	h := newHeldPipe(t)
	q := newQS(t, "run", "-n", "2", "--", "sh", "-c", `exec 3>`+h.name+`; echo here >&3; exec sleep 60`)
	q.start()
	h.waitForWriters(2)
	require.NoError(t, q.cmd.Process.Kill())
	q.wait(-1)
	h.requireGone()
}
