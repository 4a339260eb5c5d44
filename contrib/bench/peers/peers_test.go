package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain has the test's own binary be the program, and its server.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "-serve" || os.Args[1] == "-peers" || os.Args[1] == "-op") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestSystems checks that each system answers calls of several workers, and bulk data, in a process
// of its own.
func TestSystems(t *testing.T) {
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			r := measure(s, plan{time: 20 * time.Millisecond, size: 64, answer: 64, bulk: 3 << 20, inFlight: []int{1, 4}})
			require.Equal(t, s.name, r.Peer)
			require.Positive(t, r.P50)
			require.GreaterOrEqual(t, r.P99, r.P50)
			require.Len(t, r.Rate, 2)
			require.Positive(t, r.Rate["4"])
			require.Positive(t, r.Bulk)
		})
	}
}

// TestOutput checks that the output is a list with a result for each system, as contrib/plot reads
// it.
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

// Calls and answers may have other sizes than one another.
func TestSizes(t *testing.T) {
	i := slices.IndexFunc(systems, func(s system) bool { return s.name == "raw-unix" })
	workers, stop := start(systems[i], 1)
	defer stop()
	for _, sizes := range [][2]int{{0, 70_000}, {70_000, 1}, {70_000, 70_000}, {3, 5}} {
		out, err := workers[0](request(sizes[0], sizes[1]), make([]byte, sizes[1]))
		require.NoError(t, err)
		require.Len(t, out, sizes[1], "%v", sizes)
	}
	out, err := workers[0](append(request(0, 70_000), bytes.Repeat([]byte{7}, 70_000)...), make([]byte, 70_000))
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{7}, 70_000), out)
}

// Calls and bulk data are measured alone and beside one another, with the fields of qs perf.
func TestMixed(t *testing.T) {
	out, err := exec.Command(os.Args[0], "-op", "mixed", "-peers", "raw-tcp,grpc-tcp", "-time", "20ms", "-bulk", "3000000").Output()
	require.NoError(t, err)
	var all []map[string]any
	require.NoError(t, json.Unmarshal(out, &all))
	require.Len(t, all, 2)
	for i, name := range []string{"raw-tcp", "grpc-tcp"} {
		require.Equal(t, name, all[i]["peer"])
		for _, field := range []string{"idle_p50_us", "idle_p99_us", "busy_p50_us", "busy_p99_us", "idle_bulk_mib_per_s", "bulk_mib_per_s"} {
			require.Positive(t, all[i][field], field)
		}
	}
	out, err = exec.Command(os.Args[0], "-op", "other").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `-op is "other"`)
	out, err = exec.Command(os.Args[0], "-peers", "raw-tcp", "-answer", "0").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "at least one byte")
}

func TestAnswer(t *testing.T) {
	out, err := answer(append(request(0, 3), 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3}, out)
	out, err = answer(request(0, 100))
	require.NoError(t, err)
	require.Len(t, out, 100)
	require.Equal(t, byte(99), out[99], "the pages of bulk data are written")
	_, err = answer(request(0, largestAnswer+1))
	require.ErrorContains(t, err, "1073741825 bytes")
}
