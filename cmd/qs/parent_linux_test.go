package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What qs run has started ends with it, also when it cannot do anything any more.
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
