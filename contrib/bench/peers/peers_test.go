package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain has the test's own binary be the program, and its server.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "-serve" || os.Args[1] == "-peers") {
		main()
		return
	}
	os.Exit(m.Run())
}

// Each system answers calls of several workers, and bulk data, in a process of its own.
func TestSystems(t *testing.T) {
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			r := measure(s, plan{time: 20 * time.Millisecond, size: 64, bulk: 3 << 20, inFlight: []int{1, 4}})
			require.Equal(t, s.name, r.Peer)
			require.Positive(t, r.P50)
			require.GreaterOrEqual(t, r.P99, r.P50)
			require.Len(t, r.Rate, 2)
			require.Positive(t, r.Rate["4"])
			require.Positive(t, r.Bulk)
		})
	}
}

// What is printed is a list with a result for each system, as contrib/plot reads it.
func TestOutput(t *testing.T) {
	out, err := exec.Command(os.Args[0], "-peers", "raw-tcp,shmipc-go", "-time", "5ms", "-inflight", "2", "-bulk", "0").Output()
	require.NoError(t, err)
	var all []map[string]any
	require.NoError(t, json.Unmarshal(out, &all))
	require.Len(t, all, 2)
	require.Equal(t, "shmipc-go", all[1]["peer"])
	require.Positive(t, all[1]["lat_p50_us"])
	require.Positive(t, all[1]["rate_per_s"].(map[string]any)["2"])
	require.NotContains(t, all[1], "bulk_mib_per_s")
	out, err = exec.Command(os.Args[0], "-peers", "nothing").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `no system "nothing"`)
}

func TestAnswer(t *testing.T) {
	out, err := answer(append(request(0, 3), 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3}, out)
	out, err = answer(request(0, 100))
	require.NoError(t, err)
	require.Len(t, out, 100)
	_, err = answer(request(0, 1<<30))
	require.ErrorContains(t, err, "1073741824 bytes")
}
