package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// TestSharedMemory: the commands, with targets that are reached through shared memory.
func TestSharedMemory(t *testing.T) { testCommands(t, "sm", "sm://*", "sm://NAME") }

// A process with a thousand peers that say nothing, in ten processes, takes next to nothing of a
// processor.
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
