//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/long"
)

// TestSoak: each kind of fault, and no promise broken. The seed is one whose first faults are short.
func TestSoak(t *testing.T) {
	t.Parallel()
	runSoakOver(t, "tcp", soak.Faults...)
}

// TestSoakDatagrams is TestSoak over udp, with the faults that processes have.
func TestSoakDatagrams(t *testing.T) {
	t.Parallel()
	runSoakOver(t, "udp", "kill", "stop")
}

func runSoakOver(t *testing.T, transport string, faults ...string) {
	q := run(t, 0, "soak", "-transport", transport, "-time", long.Or("400ms", "5s"), "-every", long.Or("20ms", "150ms"), "-peer-timeout", long.Or("500ms", "2s"), "-targets", "3",
		"-inflight", "8", "-bulk", "100000", "-seed", "184955")
	var r soak.Report
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	t.Logf("%s", &q.out)
	require.Equal(t, uint64(184955), r.Seed)
	require.Positive(t, r.Completions["success"])
	require.Positive(t, r.Completions[hg.ErrCanceled.Error()])
	require.Positive(t, r.Cancels)
	for _, kind := range faults {
		require.Positive(t, r.Faults[kind], kind)
	}
	require.Positive(t, r.PeersLost)
	require.NoError(t, r.Err())
}

// TestSoakBadFlags: what cannot be is said before anything is started.
func TestSoakBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-targets", "1"}, {"-faults", "fire"}, {"-every", "0s"}, {"-inflight", "7"}, {"-bulk", "0"},
		{"-faults", "stall", "-transport", "sm"}} {
		err := runSoak(args, nil)
		var bad usageError
		require.True(t, errors.As(err, &bad), "%v: %v", args, err)
		require.Contains(t, bad.text, args[0])
	}
}
