package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// TestSharedMemory checks the commands with targets that are reached through shared memory.
func TestSharedMemory(t *testing.T) { testCommands(t, "sm", "sm://*", "sm://NAME") }

// TestIdleSharedMemory checks that a process with a thousand silent peers, in ten processes, uses
// almost no processor time.
func TestIdleSharedMemory(t *testing.T) {
	q := run(t, 0, "perf", "-op", "idle", "-transport", "sm", "-json", "-peers", long.Or("20", "1000"), "-time", long.Or(short, "20s"))
	var r bench.IdleResult
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	require.Equal(t, 10, r.Processes)
	t.Logf("%d peers: %.3f %% of a processor", r.Peers, r.CPU)
	if long.On {
		require.Less(t, r.CPU, 0.1)
	}
}
