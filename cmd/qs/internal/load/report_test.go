package load

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Parallel()
	after := makeResult(1000, 45, 0.01, 20)
	*after = Result{
		Method: "gre\x1b[31met", Nodes: []string{"tcp://a:1", "tcp://b:1"}, Concurrency: 50, Connections: 1, TargetRate: 2000, InputBytes: 7,
		Seconds: 10, WarmupCalls: 5, Calls: 10_100, Succeeded: 10_000, Late: 700, Failed: 100, Canceled: 3, Unsent: 9_897, Interrupted: true,
		CallsPerS: 1000, SentPerS: 7000, ReceivedPerS: 3 << 20,
		Latency:  Latencies{10_000, 12.345, 50, 45.6, 999.7, 1234, 12_345, 1_234_567},
		Service:  &Latencies{10_000, 1, 2, 3, 4, 5, 6, 7},
		Failures: &Latencies{100, 1, 2, 3, 4, 5, 6, 7},
		Errors:   []Failure{{Count: 100, Code: 69, Meaning: "exhausted", Fate: "did_not_run", Answered: true, Example: "quota\n"}},
		ByNode:   []NodeResult{{"tcp://a:1", 5000, 100}, {"tcp://b:1", 5000, 0}},
		Slices:   after.Slices,
	}
	after.Changes = Compare(makeResult(2000, 45.6, 0.01, 20), after)
	after.Before, after.Now = "before.json", "this run"
	for i := range after.Slices { // after the comparison: the stall is not in its noise
		s := &after.Slices[i]
		if s.At, s.Ended = float64(i), 1000; i >= 3 && i < 6 || i == 8 {
			s.Ended = 0
		}
	}
	var b strings.Builder
	require.NoError(t, after.Report(&b))
	require.Equal(t, `gre\x1b[31met at tcp://a:1, tcp://b:1
open loop at 2000 calls/s, at most 50 calls in flight, 1 connection to each node, inputs of 7 bytes

calls  10100 in 10 s, 10000 succeeded, 100 failed; 700 ended after that, and are not in the rate; 3 canceled in flight; and 5 before, to warm up; interrupted
rate   1000 calls/s, 6.84 KiB/s sent, 3 MiB/s received

No call ended from 3.0 to 6.0 s.

The rate was not reached: 9897 calls were due and not sent, since 50 were in flight (-c). The latencies are without them, and too low.

                    min     mean      p50      p90      p99    p99.9      max
       latency  12.3 µs  50.0 µs  45.6 µs  1.00 ms  1.23 ms  12.3 ms   1.23 s
  service time  1.00 µs  2.00 µs  3.00 µs  4.00 µs  5.00 µs  6.00 µs  7.00 µs
        failed  1.00 µs  2.00 µs  3.00 µs  4.00 µs  5.00 µs  6.00 µs  7.00 µs

Latencies are from when a call was due, service times from its send.

errors  code           fate         for example
100     69, exhausted  did not run  quota\n

node       succeeded  failed
tcp://a:1  5000       100
tcp://b:1  5000       0

before: before.json
now:    this run

            before      now     ratio  noise
  calls/s     2000     1000      0.50   ±1 %  beyond noise
      p50  45.6 µs  45.6 µs      1.00   ±1 %
      p90  45.6 µs  1.00 ms     21.92   ±1 %  beyond noise
      p99  45.6 µs  1.23 ms     27.06   ±1 %  beyond noise
    p99.9  45.6 µs  12.3 ms    270.72   ±1 %  beyond noise
      max  45.6 µs   1.23 s  27073.84      -
   failed      0 %   0.99 %         -      -
`, b.String())
}

// TestReportNoSuccess checks that a run without a success has no rate and no latencies, and one
// without a call no table of them.
func TestReportNoSuccess(t *testing.T) {
	t.Parallel()
	r := &Result{Method: "fail", Nodes: []string{"tcp://a:1"}, Seconds: 1, Calls: 3, Failed: 3, Failures: &Latencies{3, 1, 2, 3, 4, 5, 6, 7}}
	var b strings.Builder
	require.NoError(t, r.Report(&b))
	require.NotContains(t, b.String(), "rate")
	require.NotContains(t, b.String(), "latency")
	require.Contains(t, b.String(), "failed  1.00 µs")
	require.Equal(t, "1.0 s  3 calls  3/s now  3 failed  0 in flight", Snapshot{Elapsed: time.Second, Calls: 3, Failed: 3}.Line(Snapshot{}, 0))
	b.Reset()
	require.NoError(t, (&Result{Seconds: 1}).Report(&b))
	require.NotContains(t, b.String(), "p50")
}

func TestLine(t *testing.T) {
	t.Parallel()
	s := Snapshot{Elapsed: 12 * time.Second, Calls: 1_000_000, Failed: 3, InFlight: 50, P50: 14 * time.Microsecond, P99: 1234 * time.Microsecond}
	require.Equal(t, "12.0 s  1000000 calls  80000/s now  p50 14.0 µs  p99 1.23 ms  3 failed  50 in flight", s.Line(Snapshot{Elapsed: 11500 * time.Millisecond, Calls: 960_000}, 0))
	require.Equal(t, "warming up, 2 of 3s", Snapshot{Elapsed: -time.Second}.Line(Snapshot{}, 3*time.Second))
}
