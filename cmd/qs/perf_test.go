package main

import (
	"encoding/json"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
)

const short = "20ms" // duration of a measurement whose result is not used

func TestPerfJSON(t *testing.T) {
	for _, api := range []string{"callback", "sync", "typed"} {
		q := run(t, 0, "perf", "-json", "-api", api, "-time", "1ns", "-inflight", "1,5", "-bulk", "300000")
		var rs []map[string]any
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs), "%s", &q.out)
		require.Len(t, rs, 1)
		require.Equal(t, "quicksilver-tcp-"+api, rs[0]["peer"])
		for _, field := range []string{"lat_p50_us", "lat_p99_us", "bulk_mib_per_s"} {
			require.Greater(t, rs[0][field], 0.0, field)
		}
		rates := rs[0]["rate_per_s"].(map[string]any)
		require.Len(t, rates, 2)
		require.Greater(t, rates["1"], 0.0)
		require.Greater(t, rates["5"], 0.0)
	}
}

func TestPerfPlain(t *testing.T) {
	s := serve(t, "")
	q := run(t, 0, "perf", "-target", s.addr, "-time", short, "-inflight", "2", "-bulk", "0", "-size", "0", "-pause", "1us", "-spin", "0")
	lines := strings.Split(strings.TrimSpace(q.out.String()), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, []string{"peer", "p50", "us", "p99", "us", "rate@2", "bulk", "MiB/s"}, strings.Fields(lines[1]))
	fields := strings.Fields(lines[2])
	require.Equal(t, "quicksilver-tcp-callback", fields[0])
	require.Equal(t, "-", fields[len(fields)-1], "bulk was not requested")
}

func TestPerfLadders(t *testing.T) {
	for op, want := range map[string]struct {
		column string
		says   string
	}{
		"rate": {"Rate (ops/s)", "3 in flight"}, "lat": {"p50 (us)", "1 in flight"},
		"read": {"Bandwidth (MiB/s)", "3 in flight"}, "write": {"Bandwidth (MiB/s)", "3 in flight"},
	} {
		q := run(t, 0, "perf", "-op", op, "-json", "-time", "2ms", "-inflight", "4", "-size", "1", "-bulk", "256")
		var table struct {
			Op, Column string
			Sizes      []bench.Rung
		}
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &table), "%s", &q.out)
		require.Equal(t, op, table.Op)
		require.Equal(t, want.column, table.Column)
		require.Len(t, table.Sizes, 9, op)
		for i, r := range table.Sizes {
			require.EqualValues(t, 1<<i, r.Size)
			require.Positive(t, r.Value)
			require.Positive(t, r.Time)
		}
		plain := run(t, 0, "perf", "-op", op, "-time", "1ms", "-inflight", "1,3", "-size", "2", "-bulk", "2")
		require.Contains(t, plain.out.String(), want.column)
		require.Contains(t, plain.out.String(), want.says)
	}
}

// TestPerfLargeCalls checks that the tables of calls include payloads larger than a message, in one
// direction and in both.
func TestPerfLargeCalls(t *testing.T) {
	for _, args := range [][]string{{"rate"}, {"rate", "-both"}, {"lat"}, {"lat", "-both"}, {"rate", "-api", "typed"}, {"lat", "-both", "-api", "typed"}} {
		q := run(t, 0, append([]string{"perf", "-time", "1ms", "-inflight", "2", "-bulk", "131072", "-op"}, args...)...)
		require.Contains(t, q.out.String(), "\n131072 ", "%v", args)
	}
	for _, args := range [][]string{{"rate"}, {"lat", "-api", "sync", "-transport", "sm"}} {
		q := run(t, 0, append([]string{"perf", "-output-only", "-time", "1ms", "-inflight", "2", "-bulk", "131072", "-op"}, args...)...)
		require.Contains(t, q.out.String(), "\n131072 ", "%v", args)
	}
	require.Contains(t, run(t, 2, "perf", "-op", "read", "-both").errors.String(), "-both is for")
	for _, args := range [][]string{{"read"}, {"rate", "-both"}, {"rate", "-api", "typed"}} {
		q := run(t, 2, append([]string{"perf", "-output-only", "-op"}, args...)...)
		require.Contains(t, q.errors.String(), "-output-only is for")
	}
}

func TestPerfMixed(t *testing.T) {
	q := run(t, 0, "perf", "-op", "mixed", "-json", "-time", short, "-bulk", "4000000")
	var r bench.MixedResult
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	require.Positive(t, r.IdleP50)
	require.Positive(t, r.BusyP99)
	require.Positive(t, r.IdleBulk)
	require.Positive(t, r.Bulk)
	require.Contains(t, run(t, 0, "perf", "-op", "mixed", "-time", short, "-bulk", "100000").out.String(), "beside bulk")
}

func TestPerfIdle(t *testing.T) {
	q := run(t, 0, "perf", "-op", "idle", "-peers", "40", "-json", "-time", short)
	var r bench.IdleResult
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	require.Equal(t, 40, r.Peers) // the envelopes that each peer has beside its credit count, too
	require.Equal(t, 10, r.Processes)
	require.Positive(t, r.Seconds)
	require.Zero(t, r.Rate)
	require.Contains(t, run(t, 0, "perf", "-op", "idle", "-peers", "2", "-time", short).out.String(), "2 idle peers in 2 processes")
	require.Contains(t, run(t, 2, "perf", "-op", "idle", "-peers", "0").errors.String(), "-peers is 0")
}

func TestPerfCallers(t *testing.T) {
	for _, peers := range []string{"0", "5"} {
		q := run(t, 0, "perf", "-op", "idle", "-peers", peers, "-callers", "3", "-processes", "2", "-json", "-time", "300ms")
		var r bench.IdleResult
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
		require.Equal(t, peers, strconv.Itoa(r.Peers))
		require.Equal(t, 3, r.Callers)
		require.Positive(t, r.Rate)
	}
	require.Contains(t, run(t, 0, "perf", "-op", "idle", "-peers", "0", "-callers", "1", "-time", short).out.String(), "0 idle peers and 1 that make")
	require.Contains(t, run(t, 2, "perf", "-op", "mixed", "-callers", "1").errors.String(), "-callers is for")
}

func TestPerfFloor(t *testing.T) {
	if runtime.GOOS != "linux" {
		require.Contains(t, run(t, 1, "perf", "-floor", "-time", short).errors.String(), "Linux only")
		return
	}
	for _, spin := range []string{"0", "50us"} {
		q := run(t, 0, "perf", "-floor", "-json", "-time", short, "-spin", spin, "-inflight", "1", "-bulk", "0")
		var rs []bench.Result
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs), "%s", &q.out)
		require.Len(t, rs, 3)
		for i, peer := range []string{"floor-tcp", "floor-unix"} {
			require.Equal(t, peer, rs[1+i].Peer)
			require.Positive(t, rs[1+i].P50)
			require.Positive(t, rs[1+i].Rate["1"])
		}
	}
}

func TestPerfCores(t *testing.T) {
	q := run(t, 0, "perf", "-op", "cores", "-json", "-api", "typed", "-transport", "sm", "-time", short, "-inflight", "3", "-bulk", "0", "-size", "9")
	var rs []bench.CoresResult
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &rs), "%s", &q.out)
	require.Equal(t, coreCounts(runtime.NumCPU()), coresIn(rs))
	for _, r := range rs {
		require.Equal(t, "quicksilver-sm-typed", r.Peer)
		require.Positive(t, r.P50)
		require.Positive(t, r.Rate["3"])
	}
	lines := strings.Split(strings.TrimSpace(run(t, 0, "perf", "-op", "cores", "-time", "1ms", "-bulk", "0").out.String()), "\n")
	require.Len(t, lines, 2+len(rs))
	require.Equal(t, []string{"GOMAXPROCS", "p50", "us", "p99", "us", "rate@1", "rate@16", "rate@64", "bulk", "MiB/s"}, strings.Fields(lines[1]))
	require.Equal(t, "1", strings.Fields(lines[2])[0])
}

func coresIn(rs []bench.CoresResult) (cores []int) {
	for _, r := range rs {
		cores = append(cores, r.Cores)
	}
	return cores
}

func TestCoreCounts(t *testing.T) {
	for n, want := range map[int][]int{1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 8: {1, 2, 4, 8}, 12: {1, 2, 4, 8, 12}} {
		require.Equal(t, want, coreCounts(n))
	}
}
